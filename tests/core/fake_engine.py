"""An engine that computes nothing: it keeps the token ids of every sequence, and holds plans to the engine's rules.

The next token is a function of all that the sequence holds, so that one wrong position anywhere shows in the reply.
"""

from array import array
from dataclasses import dataclass, field

from superfluid.core.ids import packed
from superfluid.core.plan import JobResult, JobState, MoveKind, Plan, Result

END = 0
"""The id that ends a reply."""

N_VOCAB = 50


def next_token(stream: list[int]) -> int:
    mixed = 17
    for token in stream:
        mixed = (mixed * 31 + token + 1) % 1_000_003
    return mixed % N_VOCAB


def expected_reply(prompt: list[int], limit: int) -> list[int]:
    """What a job must generate, whoever else is served."""
    stream = list(prompt)
    while len(stream) < len(prompt) + limit:
        stream.append(next_token(stream))
        if stream[-1] == END:
            break
    return stream[len(prompt) :]


@dataclass
class _Job:
    seq: int
    rest: list[int]
    limit: int
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
    """

    cancel: dict[int, int] = field(default_factory=dict)
    fail: frozenset[int] = frozenset()


class FakeEngine:
    """Carries out plans.

    Args:
        cuts: Whether a sequence can be cut at any position; a recurrent model's cannot.
        prompts: The whole prompt of every job that may be admitted.
    """

    def __init__(
        self, sequences: int, prompts: dict[int, list[int]], *, cuts: bool = True, step_us: int = 10_000
    ) -> None:
        self.contents: list[list[int]] = [[] for _ in range(sequences)]
        self.jobs: dict[int, _Job] = {}
        self.prompts = prompts
        self.cuts = cuts
        self.step_us = step_us
        self.clock_us = 0

    def run(self, plan: Plan, trouble: Trouble | None = None) -> Result:
        self._trouble = trouble or Trouble()
        self._steps = 0
        self._cut = False
        self._lines: dict[int, _Line] = {}
        self._touched: set[int] = set()
        self._rows = self._rounds = self._decoded = 0
        for job in plan.retire:
            assert self.jobs.pop(job, None) is not None, "a job is retired once, and only if it is there"
        for move in plan.moves:
            self._move(move)
        for admit in plan.admit:
            self._admit(admit)
        for job, rows in plan.prefill:
            assert rows > 0
            self._prefill(job, rows)
        assert plan.decode_rounds > 0
        self._decode(plan.decode_rounds)
        self.clock_us += self._rows * 1000 + self._rounds * self.step_us
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
            positions=tuple((seq, len(self.contents[seq])) for seq in sorted(self._touched)),
            prefill_rows=self._rows,
            prefill_us=self._rows * 1000,
            decode_steps=self._rounds,
            decode_rows=self._decoded,
            decode_us=self._rounds * self.step_us,
            interrupted=self._cut,
        )

    # -- before the rows ----------------------------------------------------------------------------

    def _move(self, move) -> None:
        busy = {job.seq for job in self.jobs.values()}
        changed = move.dst if move.kind is MoveKind.COPY else move.seq
        assert changed not in busy, "a move changes a sequence under a running job"
        self._touched |= {move.seq, changed}
        match move.kind:
            case MoveKind.COPY:
                assert move.seq != move.dst
                source = self.contents[move.seq]
                if self.cuts:
                    assert 0 < move.n <= len(source), "the books claim more than there is"
                self.contents[move.dst] = list(source) if move.n <= len(source) else []
                self._trim(move.dst, move.n)
            case MoveKind.CLEAR:
                self.contents[move.seq] = []

    def _admit(self, admit) -> None:
        assert admit.seq not in {job.seq for job in self.jobs.values()}, "the sequence is busy"
        assert admit.job not in self.jobs
        prompt = self.prompts[admit.job]
        assert packed(admit.tokens).tolist() == prompt[admit.start :]
        assert admit.start < len(prompt), "at least one row is computed"
        line = self._line(admit.job, admit.seq)
        held = self.contents[admit.seq]
        if len(held) < admit.start:
            assert not self.cuts, "the books claim more than there is"
            self.contents[admit.seq] = []
            line.state = JobState.COLD
            return
        assert held[: admit.start] == prompt[: admit.start], "the sequence holds other ids than the job's"
        if self._trim(admit.seq, admit.start):
            self.jobs[admit.job] = _Job(admit.seq, prompt[admit.start :], admit.limit)
        else:
            line.state = JobState.COLD

    def _trim(self, seq: int, n: int) -> bool:
        held = self.contents[seq]
        if n < len(held) and n and not self.cuts:
            self.contents[seq] = []
            return False
        del held[n:]
        return True

    # -- rows ---------------------------------------------------------------------------------------

    def _line(self, job: int, seq: int) -> _Line:
        self._touched.add(seq)
        return self._lines.setdefault(job, _Line())

    def _step(self) -> None:
        """A moment in which cancellations arrive: they end their jobs and the rest of the plan."""
        self._steps += 1
        for job, when in self._trouble.cancel.items():
            if when <= self._steps and job in self.jobs:
                self._end(job, JobState.CANCELLED)
                self._cut = True

    def _end(self, job: int, state: JobState) -> None:
        ended = self.jobs.pop(job)
        self._line(job, ended.seq).state = state

    def _prefill(self, job_id: int, rows: int) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            assert job_id in self._lines, "rows for a job that is not there"
            return
        assert rows <= len(job.rest)
        line = self._line(job_id, job.seq)
        if job_id in self._trouble.fail:
            self._fail(job_id)
            return
        for _ in range(rows):
            self._step()
            if self._cut:
                return
            self.contents[job.seq].append(job.rest.pop(0))
            line.prefilled += 1
            self._rows += 1
            if not job.rest:
                self._sample(job_id, job)

    def _decode(self, rounds: int) -> None:
        for _ in range(rounds):
            if self._cut or not any(not job.rest for job in self.jobs.values()):
                return
            self._step()
            if self._cut:
                return
            self._rounds += 1
            for job_id, job in list(self.jobs.items()):
                if job.rest:
                    continue
                if job_id in self._trouble.fail:
                    self._fail(job_id)
                    continue
                self._decoded += 1
                self.contents[job.seq].append(job.waiting)
                self._sample(job_id, job)

    def _sample(self, job_id: int, job: _Job) -> None:
        job.waiting = next_token(self.contents[job.seq])
        job.generated += 1
        self._line(job_id, job.seq).tokens.append(job.waiting)
        if job.waiting == END:
            self._end(job_id, JobState.END)
        elif job.generated == job.limit:
            self._end(job_id, JobState.LIMIT)

    def _fail(self, job: int) -> None:
        self.contents[self.jobs[job].seq] = []
        self._end(job, JobState.ERROR)
