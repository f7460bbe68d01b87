"""Decode rounds: a token a round of every job whose prompt is done, and the choice of that token."""

import time
from collections.abc import Set as AbstractSet

from superfluid.core.plan import JobState, Plan
from superfluid.worker.jobs import Account, Job, Jobs
from superfluid.worker.llama.context import Context, Outcome
from superfluid.worker.llama.library import forget_complaints
from superfluid.worker.llama.sampler import NotFiniteError


class Rounds:
    """Decodes on one context.

    Args:
        ends: the ids that end a generation.
    """

    def __init__(self, context: Context, jobs: Jobs, ends: AbstractSet[int]) -> None:
        self._context = context
        self._jobs = jobs
        self._eog = ends

    def run(self, plan: Plan, account: Account) -> None:
        """Advance every decoding job by up to ``plan.decode_rounds`` tokens; ends early when a signal comes."""
        began = time.perf_counter_ns()
        for _ in range(plan.decode_rounds):
            if account.interrupted or self._jobs.cut_if_signalled(plan, account):
                break
            jobs = sorted((job for job in self._jobs if job.decoding), key=lambda job: job.seq)
            if not jobs:
                break
            self._step(jobs, account)
        account.decode_us += (time.perf_counter_ns() - began) // 1000

    def _step(self, jobs: list[Job], account: Account) -> None:
        """Advance every one of *jobs* by a token, in one call where that works.

        A batch that fails is tried again row by row, so that the one job that cannot go on is found and the others are
        not taken with it.
        """
        account.touched.update(job.seq for job in jobs)
        forget_complaints()
        outcome = self._context.decode_rows(
            [job.seq for job in jobs], [job.n for job in jobs], [job.next_token for job in jobs]
        )
        if outcome is Outcome.OK:
            account.decode_steps += 1
            account.decode_rows += len(jobs)
            for row, job in enumerate(jobs):
                job.n += 1
                self.sample(job, row, account)
            return
        if outcome is Outcome.ABORTED:
            # Only a stop aborts decode rounds: nobody will ask for these jobs again.
            self._jobs.cut(account)
        intact = [job for job in jobs if self._restore(job, outcome, account)]
        if outcome is Outcome.ABORTED:
            return
        if len(jobs) == 1:
            for job in intact:
                self._jobs.fail(job, outcome, account)
            return
        for job in intact:
            self._step([job], account)

    def _restore(self, job: Job, outcome: Outcome, account: Account) -> bool:
        """Take back a row that was stored although its batch failed; False (and an error) if that cannot be."""
        if self._context.trim(job.seq, job.n):
            return True
        self._jobs.fail(job, outcome, account)
        return False

    def sample(self, job: Job, row: int, account: Account) -> None:
        """Choose the job's next token by the logits of batch row *row*, and see whether it is the last one."""
        line = account.line(job.id)
        try:
            token = job.sampler.choose(self._context.logits(row), job.n)
        except NotFiniteError as error:
            # What is in the cache is as broken as what came out of it.
            self._context.clear(job.seq)
            self._jobs.end(job, JobState.ERROR, account, str(error))
            return
        job.next_token = token
        job.generated += 1
        line.tokens.append(token)
        if token in self._eog:
            self._jobs.end(job, JobState.END, account)
        elif job.generated >= job.limit:
            self._jobs.end(job, JobState.LIMIT, account)
        elif job.n >= self._context.n_ctx:
            self._jobs.end(
                job, JobState.CONTEXT_FULL, account, f"the context of {self._context.n_ctx} is full"
            )
