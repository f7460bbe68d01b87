"""The jobs of a worker: those that hold sequences, how they end, and what a plan has done for each."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from superfluid.core.draft import Drafter
from superfluid.core.plan import JobResult, JobState, Plan, Result
from superfluid.worker.llama.context import Context, Ids, Outcome
from superfluid.worker.llama.library import complaints
from superfluid.worker.llama.sampler import Sampler
from superfluid.worker.messages import clip
from superfluid.worker.signals import Signals


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that holds a sequence.

    Attributes:
        n: positions that the sequence holds of the job's stream.
        prompt: rows still to be prefilled, at positions `n` and on.
        exact: its rows come in multiples of the context's ``exact_rows``.
        drafter: guesses its next tokens, if it may have any guessed.
        next_token: sampled, and not yet in the sequence; meaningful once the prompt is done.
    """

    id: int
    seq: int
    n: int
    prompt: Ids
    limit: int
    sampler: Sampler
    exact: bool = False
    drafter: Drafter | None = None
    generated: int = 0
    next_token: int = 0

    @property
    def decoding(self) -> bool:
        """Whether its prompt is done."""
        return not len(self.prompt)


@dataclass(slots=True, kw_only=True)
class Line:
    """What a plan has done for one job so far."""

    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)
    state: JobState = JobState.RUNNING
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Account:
    """What a plan has done so far. ``touched`` are the sequences whose positions it may have changed."""

    jobs: dict[int, Line] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    saved: list[tuple[int, int, int]] = field(default_factory=list)
    prefill_rows: int = 0
    prefill_us: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    decode_us: int = 0
    interrupted: bool = False
    drafted: int = 0
    accepted: int = 0

    def line(self, job: int) -> Line:
        """The line of *job*, begun if there is none."""
        return self.jobs.setdefault(job, Line())

    def result(self, plan: Plan, context: Context) -> Result:
        """The result of *plan*, with the positions that *context* really holds now."""
        return Result(
            plan_id=plan.id,
            jobs=tuple(
                JobResult(
                    job=job,
                    prefilled=line.prefilled,
                    tokens=np.array(line.tokens, "<u4").tobytes(),
                    state=line.state,
                    detail=clip(line.detail),
                )
                for job, line in self.jobs.items()
            ),
            positions=tuple((seq, context.length(seq)) for seq in sorted(self.touched)),
            prefill_rows=self.prefill_rows,
            prefill_us=self.prefill_us,
            decode_steps=self.decode_steps,
            decode_rows=self.decode_rows,
            decode_us=self.decode_us,
            interrupted=self.interrupted,
            saved=tuple(self.saved),
            drafted=self.drafted,
            accepted=self.accepted,
        )


class Jobs:
    """The jobs that hold sequences of *context*."""

    def __init__(self, context: Context, signals: Signals) -> None:
        self._context = context
        self._signals = signals
        self._jobs: dict[int, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._jobs

    def get(self, job_id: int) -> Job | None:
        """The job of this id, unless it has ended."""
        return self._jobs.get(job_id)

    def add(self, job: Job) -> None:
        """Let *job* hold its sequence."""
        self._jobs[job.id] = job

    def drop(self, job_id: int) -> None:
        """Forget a job. One that is not there is ignored. Its sequence stays as it is."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            job.sampler.close()

    def close(self) -> None:
        """Forget all."""
        for job_id in list(self._jobs):
            self.drop(job_id)

    # -- signals ------------------------------------------------------------------------------------

    def cut_if_signalled(self, plan: Plan, account: Account) -> bool:
        """Whether the plan ends here: it is interrupted, or a job was cancelled (which ends with it)."""
        if self.sweep_cancelled(account) or self._signals.interrupted(plan.id):
            account.interrupted = True
        return account.interrupted

    def cut(self, account: Account) -> None:
        """End the plan here."""
        self.sweep_cancelled(account)
        account.interrupted = True

    def sweep_cancelled(self, account: Account) -> bool:
        """End the jobs whose cancellation has come; whether there were any. Their sequences stay as they are."""
        cancelled = [job for job in self if self._signals.cancelled(job.id)]
        for job in cancelled:
            self.end(job, JobState.CANCELLED, account)
        return bool(cancelled)

    def settle_signals(self) -> None:
        """Forget the cancellations of jobs that have ended."""
        self._signals.forget(self._jobs)

    # -- ends ---------------------------------------------------------------------------------------

    def end(self, job: Job, state: JobState, account: Account, detail: str = "") -> None:
        """End *job* in *state*; its sequence stays as it is."""
        line = account.line(job.id)
        line.state, line.detail = state, detail
        account.touched.add(job.seq)
        self.drop(job.id)

    def fail(self, job: Job, outcome: Outcome, account: Account) -> None:
        """End a job that the engine cannot go on with; its sequence is cleared, nothing may be built on it."""
        if outcome is Outcome.FULL:
            self.end(job, JobState.CONTEXT_FULL, account, "the sequence has no cell left")
            return
        self._context.clear(job.seq)
        said = "; ".join(complaints()) or outcome.name.lower()
        self.end(job, JobState.ERROR, account, f"the engine failed on this job: {said}")
