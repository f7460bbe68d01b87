"""Measuring a model, in a worker process that does nothing else (``Load.probe``).

``attention`` times decode steps with either kernel; ``exactness`` (a module of its own) looks for what makes rows
bit-identical. Both are bounded in time whatever the model, and judge nothing: ``core.capability`` does.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from superfluid.core.capability import PROBED_LANES, Capability, KernelTime, to_json
from superfluid.core.errors import ModelError
from superfluid.core.limits import PROBE_EXACT_SECONDS
from superfluid.worker.exactness import exactness, random_ids
from superfluid.worker.llama.context import Context, Ids, Outcome
from superfluid.worker.llama.model import Model
from superfluid.worker.machine import identity
from superfluid.worker.messages import Load

Report = Callable[[float], None]

ATTENTION_DEPTH: Final = 512
"""Positions before the deep steps: enough that attention is a good part of a small model's step."""

_PREFILL_SECONDS: Final = 4.0
"""Both contexts together. A large model gets less deep."""
_STEPS_SECONDS: Final = 1.5
"""Steps of both kernels at one depth."""
_FIRST: Final = 16
_CHUNK: Final = 64
_MOST_STEPS: Final = 24
_LEAST_STEPS: Final = 2
_LEAST_DEPTH: Final = 128
"""A line through the times at 16 and at fewer positions than this says nothing about thousands."""


class _FailedError(Exception):
    """A kernel does not work with this model."""


def probe(load: Load, report: Report) -> str:
    """Load the model, measure what ``load.probe`` names, and return it as a record whose model is not named.

    Args:
        report: told the share that is done, of loading and measuring together.

    Raises:
        ModelError: the model cannot be loaded.
    """
    half = 0.5
    with closing(
        Model(
            Path(load.model_path),
            vocab_only=False,
            plain=load.kernels == "plain",
            on_progress=lambda f: report(f * half),
        )
    ) as model:

        def measured(share: float) -> None:
            report(half + share * (1 - half))

        found = Capability(identity=identity(load, model=""))
        if load.probe == "attention":
            times = attention(model, load, measured)
            trouble = (
                ""
                if times
                else "the attention kernels could not be compared: too slow, or one of them failed"
            )
            return to_json(replace(found, attention=times, trouble=trouble))
        return to_json(
            replace(found, exactness=exactness(model, load, seconds=PROBE_EXACT_SECONDS, report=measured))
        )


def attention(model: Model, load: Load, report: Report) -> tuple[KernelTime, ...]:
    """Time both kernels, in turns, so that whatever else the machine does meets both.

    Returns:
        nothing when one of them does not work with this model, or not fast enough to tell.
    """
    small = replace(
        load, n_ctx=2 * ATTENTION_DEPTH, n_seq=PROBED_LANES, n_batch=ATTENTION_DEPTH, kv_type="f16"
    )
    with ExitStack() as stack:
        try:
            contexts = {
                flash: stack.enter_context(closing(Context(model, replace(small, flash_attn=flash))))
                for flash in ("off", "on")
            }
            ids = random_ids(2 * ATTENTION_DEPTH, model.n_vocab, salt=0)
            for context in contexts.values():
                for seq in range(PROBED_LANES):
                    _compute(context, ids, 0, _FIRST, seq=seq)
            first = _step_times(contexts, ids, _FIRST)
            batch = _step_times(contexts, ids, _FIRST, lanes=PROBED_LANES)
            report(0.3)
            depth = _deepen(contexts, ids)
            report(0.7)
            if depth < _LEAST_DEPTH:
                return ()
            deep = _step_times(contexts, ids, depth)
        except (ModelError, _FailedError):
            return ()
    report(1.0)
    return tuple(
        KernelTime(
            flash_attn=flash,
            depth=depth - _FIRST,
            first_us=first[flash],
            batch_us=batch[flash],
            deep_us=deep[flash],
        )
        for flash in contexts
    )


def _deepen(contexts: dict[str, Context], ids: Ids) -> int:
    """Prefill both until the depth or the time is reached; returns how deep they are."""
    depth, deadline = _FIRST, time.monotonic() + _PREFILL_SECONDS
    while depth < ATTENTION_DEPTH and time.monotonic() < deadline:
        end = min(depth + _CHUNK, ATTENTION_DEPTH)
        for context in contexts.values():
            _compute(context, ids, depth, end)
        depth = end
    return depth


def _step_times(contexts: dict[str, Context], ids: Ids, depth: int, *, lanes: int = 1) -> dict[str, int]:
    """The fastest of some steps of each kernel, in microseconds: whatever slows one down is not the kernel."""
    best: dict[str, int] = {}
    deadline = time.monotonic() + _STEPS_SECONDS
    seqs = list(range(lanes))
    for number in range(_MOST_STEPS):
        if number >= _LEAST_STEPS and time.monotonic() > deadline:
            break
        for flash, context in contexts.items():
            began = time.perf_counter_ns()
            if context.decode_rows(seqs, [depth] * lanes, [int(ids[depth])] * lanes) is not Outcome.OK:
                raise _FailedError("a decode failed")
            took = max((time.perf_counter_ns() - began) // 1000, 1)
            best[flash] = min(took, best.get(flash, took))
            for seq in seqs:
                context.trim(seq, depth)
    return best


def _compute(context: Context, ids: Ids, start: int, end: int, *, seq: int = 0) -> None:
    if context.decode_chunk(seq, start, ids[start:end], logits=True) is not Outcome.OK:
        raise _FailedError("a decode failed")
