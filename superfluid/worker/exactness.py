"""Whether a row of logits depends on what is computed beside it: bits compared, shape by shape.

One sequence of a few hundred ids is computed again and again, each time in another of the shapes in which the daemon
may come to compute it, and whole rows of logits are compared at a dozen positions. A row depends on every KV cell before
it, so that the last one of a sequence also vouches for all that led to it.

The rows go through the functions that serve (``Context.decode_chunk``, ``Context.decode_rows``): what is found holds for
what is served.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Final, TypeAlias

import numpy as np
from xxhash import xxh3_128_digest

from superfluid.core.capability import PADDINGS, SHAPES, Exactness, Trial
from superfluid.core.errors import ModelError
from superfluid.worker.llama.context import Context, Ids, Outcome
from superfluid.worker.llama.model import Model
from superfluid.worker.messages import Load

ENDS: Final = (29, 60, 98, 131, 167, 192, 225, 258, 289, 323, 354, 390, 421, 448)
"""Positions at which rows are compared, and where the reference's chunks end: unevenly, so that no chunk is a multiple of
anything, and on both sides of 256, a step in which llama.cpp's attention grows. The last are far in: at 100, rows of
kernels that differ were seen to match by chance."""

_DECODE_FROM: Final = ENDS[5]
_BESIDE_FROM: Final = ENDS[8]
_CUT_AT: Final = 300
_EXPORT_AT: Final = ENDS[9]
_THREADED_STEPS: Final = 5
_CONTEXT: Final = 512
_LANES: Final = 7
_MEASURED: Final = 3
_SPARE: Final = 7
"""The sequence that takes the import, beyond the lanes."""
_PREFILL_EVERY: Final = 23
"""Decode steps between two prefills of neighbours."""


class _MismatchError(Exception):
    """Two shapes gave different bits; the text says which, and where."""


class _GivenUpError(Exception):
    """Nothing can be said: the engine failed, or time is up. The text says so."""


def exactness(
    model: Model,
    load: Load,
    *,
    seconds: float,
    report: Callable[[float], None] = lambda fraction: None,
    clock: Callable[[], float] = time.monotonic,
) -> Exactness:
    """Find the fewest rows that make this context exact: tries each number until one passes every shape.

    Args:
        load: the context's kernel and KV type; its own sizes and rows are not used.
        seconds: after which it is given up.
        report: told the share of the shapes that are done.
    """
    budget = _Budget(seconds=seconds, clock=clock, report=report)
    trials: list[Trial] = []
    unfinished = ""
    try:
        # One thread: several that wait for each other are many times slower beside other busy programs.
        small = replace(load, n_ctx=_CONTEXT, n_seq=_LANES + 1, threads=1)
        for rows, outputs in PADDINGS:
            budget.padding = rows, outputs
            small = replace(small, exact_rows=rows, exact_outputs=outputs)
            with closing(Context(model, small)) as context:
                if rows > 1 and context.cuts == "none":
                    break  # what is padded has to be cut off again
                trials.append(_try(_Bench(context, model.n_vocab, budget, threads=max(load.threads, 2))))
            if not trials[-1].mismatch:
                break
    except (_GivenUpError, ModelError) as error:
        unfinished = str(error)
    report(1.0)
    return Exactness(
        positions=ENDS[-1],
        plain_us=trials[0].step_us if trials else 0,
        trials=tuple(trials),
        unfinished=unfinished,
    )


class _Budget:
    """Time, and how far it has brought us."""

    def __init__(
        self, *, seconds: float, clock: Callable[[], float], report: Callable[[float], None]
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._report = report
        self._deadline = clock() + seconds
        self.padding = PADDINGS[0]
        self._shape = "reference"

    def begin(self, shape: str) -> None:
        self._shape = shape
        done = PADDINGS.index(self.padding) + (SHAPES.index(shape) / len(SHAPES) if shape in SHAPES else 0)
        self._report(done / len(PADDINGS))

    def check(self) -> None:
        if self._clock() > self._deadline:
            raise _GivenUpError(
                f"it could not be measured within {self._seconds:g} s: "
                f"time was up at {self._shape!r} with {self.padding[0]} rows of a sequence together"
            )


@dataclass(slots=True, kw_only=True)
class _Line:
    """A sequence of ids, and how much of it is computed in which sequence of the context."""

    seq: int
    ids: Ids
    n: int = 0


class _Bench:
    """Computes rows as they are served, and keeps the fastest lone step."""

    def __init__(self, context: Context, n_vocab: int, budget: _Budget, *, threads: int = 2) -> None:
        self.context = context
        self.budget = budget
        self.step_us = 0
        self.threads = threads
        self._ids = [random_ids(_CONTEXT, n_vocab, salt=salt) for salt in range(_LANES)]

    def line(self, seq: int, salt: int = _MEASURED) -> _Line:
        """An empty sequence that is to hold the ids of *salt*."""
        self.context.clear(seq)
        return _Line(seq=seq, ids=self._ids[salt])

    def chunk(self, line: _Line, end: int) -> bytes:
        """Compute a line up to *end*, in one call if a call takes as many rows; a digest of the last one."""
        most = self.context.chunk_rows(exact=True)
        while True:
            self.budget.check()
            rows = line.ids[line.n : min(end, line.n + most)]
            outcome = self.context.decode_chunk(line.seq, line.n, rows, logits=True, exact=True)
            line.n += len(rows)
            digest = self._digest(outcome, len(rows) - 1)
            if line.n == end:
                return digest

    def step(self, lines: Sequence[_Line], wanted: _Line) -> bytes:
        """Compute a row of each of several lines, which are in ascending order; a digest of the *wanted* one's."""
        self.budget.check()
        began = time.perf_counter_ns()
        outcome = self.context.decode_rows(
            [line.seq for line in lines],
            [line.n for line in lines],
            [int(line.ids[line.n]) for line in lines],
            exact=True,
        )
        took = max((time.perf_counter_ns() - began) // 1000, 1)
        if len(lines) == 1:
            self.step_us = min(took, self.step_us or took)
        for line in lines:
            line.n += 1
        return self._digest(outcome, lines.index(wanted))

    def _digest(self, outcome: Outcome, row: int) -> bytes:
        if outcome is not Outcome.OK:
            raise _GivenUpError(f"the engine failed while it was measured: {outcome.name.lower()}")
        return xxh3_128_digest(self.context.logits(row).data)


# -- the shapes -------------------------------------------------------------------------------------

Points: TypeAlias = Iterator[tuple[int, bytes]]
"""(positions held, digest of the last of their rows), as a shape gives them."""


def _try(bench: _Bench) -> Trial:
    bench.budget.begin("reference")
    line = bench.line(0)
    reference = {end: bench.chunk(line, end) for end in ENDS}
    shapes = (_whole, _lone, _odd, _beside, _imported, _threads)
    mismatch = ""
    for name, shape in zip(SHAPES, shapes, strict=True):
        bench.budget.begin(name)
        differs = (n for n, digest in shape(bench) if reference.get(n, digest) != digest)
        if (position := next(differs, None)) is not None:
            mismatch = f"{name}, at position {position}"
            break
    rows, outputs = bench.budget.padding
    return Trial(rows=rows, outputs=outputs, mismatch=mismatch, step_us=bench.step_us)


def _whole(bench: _Bench) -> Points:
    line = bench.line(1)
    yield ENDS[-1], bench.chunk(line, ENDS[-1])


def _lone(bench: _Bench) -> Points:
    line = bench.line(2)
    bench.chunk(line, _DECODE_FROM)
    yield from _alone(bench, line)


def _alone(bench: _Bench, line: _Line) -> Points:
    while line.n < ENDS[-1]:
        digest = bench.step([line], line)
        yield line.n, digest


def _odd(bench: _Bench) -> Points:
    line = bench.line(4)
    sizes = cycle((1, 17, 2, 7, 3, 40, 5, 11))
    for end in ENDS:
        while line.n < end:
            digest = bench.chunk(line, min(line.n + next(sizes), end))
            yield line.n, digest


def _beside(bench: _Bench) -> Points:
    """Between one and all lanes, those beside the measured one at other depths, some of them prefilling now and then."""
    lines = [bench.line(seq, salt=seq) for seq in range(_LANES)]
    for seq, line in enumerate(lines):
        bench.chunk(line, _BESIDE_FROM if seq == _MEASURED else 5 + 23 * seq)
    measured = lines[_MEASURED]
    for number in range(ENDS[-1] - _BESIDE_FROM):
        low, high = number * 5 % (_MEASURED + 1), _MEASURED + 1 + number * 3 % (_LANES - _MEASURED)
        digest = bench.step(lines[low:high], measured)
        yield measured.n, digest
        other = lines[number % _LANES]
        if number % _PREFILL_EVERY == 0 and other is not measured:
            bench.chunk(other, other.n + 3 + number % 30)
        for line in lines:
            if line is not measured and line.n > ENDS[-1] - 40:
                bench.context.clear(line.seq)
                line.n = 0


def _imported(bench: _Bench) -> Points:
    line = bench.line(_MEASURED)
    bench.chunk(line, _EXPORT_AT + 20)
    if bench.context.cuts != "none" and bench.context.trim(line.seq, _CUT_AT):
        line.n = _CUT_AT
    else:
        line = bench.line(_MEASURED)
    bench.chunk(line, _EXPORT_AT)
    state = bench.context.export(line.seq)
    if state is None or not bench.context.restore(_SPARE, state, line.n):
        raise _GivenUpError("the engine could not move a sequence")
    line.seq = _SPARE
    yield from _alone(bench, line)


def _threads(bench: _Bench) -> Points:
    """With as many as serve: all before this had one. So neither does a reply depend on their number, which a later start
    may choose differently. A few rows do, see above."""
    bench.context.set_threads(bench.threads)
    line = bench.line(5)
    bench.chunk(line, ENDS[-1] - _THREADED_STEPS)
    yield from _alone(bench, line)


def random_ids(n: int, n_vocab: int, *, salt: int) -> Ids:
    """Ids of no meaning, the same in every process: bits differ on them as on any text."""
    return np.random.default_rng(salt).integers(0, n_vocab, n).astype(np.int32)
