"""An engine that computes nothing: it keeps the token ids of every sequence, host-memory entry and park file, and holds
plans to the engine's rules.

The next token is a function of all that the sequence holds, so that one wrong position anywhere shows in the reply. What
a plan builds on has to be there, position for position, and where an exact job builds on it, computed exactly: anything
else would be somebody else's KV.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

from superfluid.core.ids import packed
from superfluid.core.options import Pool
from superfluid.core.plan import JobResult, JobState, MoveKind, Plan, Result

END = 0
"""The id that ends a reply."""

N_VOCAB = 400
"""A reply of a hundred tokens ends by itself one time in five."""


def next_token(stream: array) -> int:
    """The model. A checksum of 32 bits shows every change of one id."""
    return crc32(stream) % N_VOCAB


def expected_reply(prompt, limit: int) -> list[int]:
    """What a job must generate, whoever else is served."""
    stream = array("I", prompt)
    while len(stream) < len(prompt) + limit:
        stream.append(next_token(stream))
        if stream[-1] == END:
            break
    return stream[len(prompt) :].tolist()


@dataclass
class Kv:
    """What a sequence or an entry holds; its first `exact` positions were computed exactly."""

    tokens: array = field(default_factory=lambda: array("I"))
    exact: int = 0

    def first(self, n: int) -> "Kv":
        return Kv(self.tokens[:n], min(n, self.exact))

    def append(self, token: int, *, exact: bool) -> None:
        if exact and self.exact == len(self.tokens):
            self.exact += 1
        self.tokens.append(token)

    def cut(self, n: int) -> None:
        del self.tokens[n:]
        self.exact = min(self.exact, n)


@dataclass
class _Job:
    seq: int
    rest: array
    limit: int
    exact: bool
    generated: int = 0
    waiting: int = 0


@dataclass
class _Line:
    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)
    state: JobState = JobState.RUNNING


@dataclass
class Trouble:
    """What happens inside one plan, counted in steps: a row of a prompt is one, and so is a round.

    Attributes:
        cancel: When the cancellation of a job arrives.
        fail: Jobs that the engine fails on at their next step.
        interrupt: When the plan is interrupted.
        loses_rows: A prefill that is cut short has lost the rows of this plan.
        saves_fail, loads_fail: Host memory cannot be had, or not be read.
        on_step: Called before every step; True interrupts the plan.
    """

    cancel: dict[int, int] = field(default_factory=dict)
    fail: frozenset[int] = frozenset()
    interrupt: int | None = None
    loses_rows: bool = False
    saves_fail: bool = False
    loads_fail: bool = False
    on_step: Callable[[], bool] = lambda: False


class FakeEngine:
    """Carries out plans.

    Args:
        prompts: The whole prompt of every job that may be admitted.
        pool: What it says of itself.
        row_us, step_us, copy_us: What a prompt row, a decode round and a copied position take.
    """

    def __init__(
        self,
        sequences: int,
        prompts: dict[int, list[int]],
        *,
        pool: Pool | None = None,
        step_us: int = 10_000,
        row_us: int = 1_000,
        copy_us: int = 8,
    ) -> None:
        self.pool = pool if pool is not None else Pool(n_ctx=1 << 20)
        self.contents = [Kv() for _ in range(sequences)]
        self.host: dict[int, Kv] = {}
        self.jobs: dict[int, _Job] = {}
        self.prompts = prompts
        self.step_us, self.row_us, self.copy_us = step_us, row_us, copy_us
        self.clock_us = 0
        self.rows = 0
        """Prompt rows computed since the start."""
        self.colds = 0

    def run(self, plan: Plan, trouble: Trouble | None = None) -> Result:
        self._trouble = trouble or Trouble()
        self._steps = 0
        self._cut = False
        self._lines: dict[int, _Line] = {}
        self._touched: set[int] = set()
        self._saved: list[tuple[int, int, int]] = []
        self._broken: set[int] = set()
        """Sequences that may be empty, since something was made to fail."""
        self._rows = self._rounds = self._decoded = 0
        for job in plan.retire:
            assert self.jobs.pop(job, None) is not None, "a job is retired once, and only if it is there"
        for move in plan.moves:
            self._move(move)
        for admit in plan.admit:
            self._admit(admit)
        began = self.clock_us
        for job, rows in plan.prefill:
            assert rows > 0
            assert job not in plan.hold
            self._prefill(job, rows)
        prefill_us, began = self.clock_us - began, self.clock_us
        assert plan.decode_rounds > 0
        self._decode(plan)
        self.rows += self._rows
        return Result(
            plan_id=plan.id,
            jobs=tuple(
                JobResult(
                    job=job,
                    prefilled=line.prefilled,
                    tokens=array("I", line.tokens).tobytes(),
                    state=line.state,
                    detail="as told" if line.state is JobState.ERROR else "",
                )
                for job, line in self._lines.items()
            ),
            positions=tuple((seq, len(self.contents[seq].tokens)) for seq in sorted(self._touched)),
            prefill_rows=self._rows,
            prefill_us=prefill_us,
            decode_steps=self._rounds,
            decode_rows=self._decoded,
            decode_us=self.clock_us - began,
            interrupted=self._cut,
            saved=tuple(self._saved),
        )

    # -- before the rows ----------------------------------------------------------------------------

    def _move(self, move) -> None:
        if move.kind is MoveKind.DROP:
            self.host.pop(move.entry, None)
            return
        self._touched.add(move.seq)
        match move.kind:
            case MoveKind.COPY:
                assert move.seq != move.dst
                self._touched.add(move.dst)
                if move.seq in self._broken:
                    self._broken.add(move.dst)
                self._restore(move.dst, self.contents[move.seq], move.n)
            case MoveKind.CLEAR:
                self._check_idle(move.seq)
                self.contents[move.seq] = Kv()
            case MoveKind.SAVE:
                self._save(move)
            case MoveKind.LOAD:
                held = Kv() if self._trouble.loads_fail else self.host.get(move.entry, Kv())
                if self._trouble.loads_fail or self._trouble.saves_fail:
                    self._broken.add(move.seq)
                self._restore(move.seq, held, move.n)

    def _check_idle(self, seq: int) -> None:
        assert seq not in {job.seq for job in self.jobs.values()}, (
            "a move changes a sequence under a running job"
        )

    def _restore(self, seq: int, source: Kv, n: int) -> None:
        """Make a sequence hold what another or an entry does. It costs all of it, however little is kept."""
        self._check_idle(seq)
        self.clock_us += len(source.tokens) * self.copy_us
        there = 0 < n <= len(source.tokens) and (self.pool.cuts_freely or n == len(source.tokens))
        assert there or seq in self._broken, "the books claim what is not there"
        self.contents[seq] = source.first(n) if there else Kv()

    def _save(self, move) -> None:
        assert move.entry not in self.host, "a number is used once"
        held = self.contents[move.seq]
        self.clock_us += len(held.tokens) * self.copy_us
        if self._trouble.saves_fail or move.n != len(held.tokens):
            self._saved.append((move.entry, 0, 0))
            return
        self.host[move.entry] = held.first(move.n)
        self._saved.append((move.entry, move.n, self.pool.size(move.n)))

    def _admit(self, admit) -> None:
        assert admit.seq not in {job.seq for job in self.jobs.values()}, "the sequence is busy"
        assert admit.job not in self.jobs
        assert admit.limit > 0
        stream = packed(admit.tokens)
        assert len(stream) > 0, "at least one row is computed"
        prompt = self.prompts[admit.job]
        own = array("I", prompt)
        own.extend(expected_reply(prompt, max(0, admit.start + len(stream) - len(prompt))))
        assert stream == own[admit.start :], "rows of another stream"
        assert packed(admit.history) == (own[: admit.start] if admit.draft else array("I"))
        line = self._line(admit.job, admit.seq)
        held = self.contents[admit.seq]
        if admit.start + len(stream) > self.pool.n_ctx:
            line.state = JobState.CONTEXT_FULL
        elif len(held.tokens) < admit.start or not self._trim(admit.seq, admit.start):
            assert admit.seq in self._broken, "the books claim what is not there"
            self.colds += 1
            self.contents[admit.seq] = Kv()
            line.state = JobState.COLD
        else:
            assert held.tokens == own[: admit.start], "somebody else's KV"
            assert held.exact >= admit.start or not admit.exact, "KV that is not exact"
            exact = admit.exact or self.pool.exact
            self.jobs[admit.job] = _Job(admit.seq, stream, admit.limit, exact)

    def _trim(self, seq: int, n: int) -> bool:
        held = self.contents[seq]
        if 0 < n < len(held.tokens) and not self.pool.cuts_freely:
            return False
        held.cut(n)
        return True

    # -- rows ---------------------------------------------------------------------------------------

    def _line(self, job: int, seq: int) -> _Line:
        self._touched.add(seq)
        return self._lines.setdefault(job, _Line())

    def _step(self, us: int) -> bool:
        """A moment in which cancellations arrive: they end their jobs and the rest of the plan. Whether to go on."""
        self._steps += 1
        self._cut = self._trouble.on_step() or self._steps == self._trouble.interrupt
        for job, when in self._trouble.cancel.items():
            if when <= self._steps and job in self.jobs:
                self._end(job, JobState.CANCELLED)
                self._cut = True
        if not self._cut:
            self.clock_us += us
        return not self._cut

    def _end(self, job: int, state: JobState) -> None:
        ended = self.jobs.pop(job)
        self._line(job, ended.seq).state = state

    def _prefill(self, job_id: int, rows: int) -> None:
        if self._cut:
            return
        job = self.jobs.get(job_id)
        if job is None:
            assert job_id in self._lines, "rows for a job that is not there"
            return
        assert rows <= len(job.rest)
        line = self._line(job_id, job.seq)
        held = self.contents[job.seq]
        if job_id in self._trouble.fail:
            self._fail(job_id)
            return
        done = 0
        while done < rows and self._step(self.row_us):
            held.append(job.rest[done], exact=job.exact)
            done += 1
        if done < rows and self._trouble.loses_rows and self.pool.cuts_freely:
            held.cut(len(held.tokens) - done)
            done = 0
        del job.rest[:done]
        line.prefilled += done
        self._rows += done
        if not job.rest and job_id in self.jobs:
            self._sample(job_id, job)

    def _decode(self, plan: Plan) -> None:
        for _ in range(plan.decode_rounds):
            going = {id_: job for id_, job in self.jobs.items() if not job.rest and id_ not in plan.hold}
            if self._cut or not going or not self._step(self.step_us):
                return
            self._rounds += 1
            for job_id, job in going.items():
                if job_id in self._trouble.fail:
                    self._fail(job_id)
                    continue
                self._decoded += 1
                self.contents[job.seq].append(job.waiting, exact=job.exact)
                self._sample(job_id, job)

    def _sample(self, job_id: int, job: _Job) -> None:
        held = self.contents[job.seq].tokens
        job.waiting = next_token(held)
        job.generated += 1
        self._line(job_id, job.seq).tokens.append(job.waiting)
        if job.waiting == END:
            self._end(job_id, JobState.END)
        elif job.generated == job.limit:
            self._end(job_id, JobState.LIMIT)
        elif len(held) >= self.pool.n_ctx:
            self._end(job_id, JobState.CONTEXT_FULL)

    def _fail(self, job: int) -> None:
        self.contents[self.jobs[job].seq] = Kv()
        self._end(job, JobState.ERROR)
