"""Decode rounds: a token a round of every job whose prompt is done, or several where they could be guessed.

Exact and plain jobs never share a call: the engine would compute as many rows of each sequence together as the shortest
has, and exact rows have to stay together. A job that is alone may have its next tokens guessed from its own text: they
are computed in one call, and each is sampled as if it were the only one, by the draw of its own position. They stand as
far as the samples equal them; the first that differs is the next token. What is generated is the same, and only the
number of calls depends on the guesses.

Jobs that decode together are not guessed for. They share the cost of a call already, and what guesses can still gain is
small: measured at two jobs, a quarter if every guess is right.
"""

import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from superfluid.core.draft import Costs, Drafter
from superfluid.core.ids import packed
from superfluid.core.plan import Admit, JobState, Plan
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
        self._plain_costs = Costs()
        self._exact_costs = Costs(context.exact_rows)

    def drafter(self, admit: Admit) -> Drafter:
        """What guesses for a job: it knows the job's text so far, and what calls for such jobs take."""
        exact = admit.exact and self._context.exact_rows > 1
        costs = self._exact_costs if exact else self._plain_costs
        return Drafter(packed(admit.history + admit.tokens), costs)

    def run(self, plan: Plan, account: Account) -> None:
        """Advance every decoding job that is not held, in up to ``plan.decode_rounds`` rounds; ends early when a signal
        comes."""
        began = time.perf_counter_ns()
        held = frozenset(plan.hold)
        for _ in range(plan.decode_rounds):
            if account.interrupted or self._jobs.cut_if_signalled(plan, account):
                break
            jobs = [job for job in self._jobs if job.decoding and job.id not in held]
            if not jobs:
                break
            self._round(sorted(jobs, key=lambda job: job.seq), account)
        account.decode_us += (time.perf_counter_ns() - began) // 1000

    def _round(self, jobs: list[Job], account: Account) -> None:
        account.touched.update(job.seq for job in jobs)
        drafter = jobs[0].drafter
        if len(jobs) == 1 and drafter is not None:
            self._alone(jobs[0], drafter, account)
            return
        for together in self._calls(jobs):
            if not account.interrupted:
                self._step(together, account)

    def _calls(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """The jobs of each call: plain ones, and exact ones, which have to fit a micro-batch."""
        for exact in (False, True):
            alike = [job for job in jobs if job.exact is exact]
            most = self._context.lanes(exact=exact)
            for first in range(0, len(alike), most):
                yield alike[first : first + most]

    # -- one token of each --------------------------------------------------------------------------

    def _step(self, jobs: list[Job], account: Account) -> None:
        """Advance every one of *jobs* by a token, in one call where that works.

        A batch that fails is tried again row by row, so that the one job that cannot go on is found and the others are
        not taken with it.
        """
        forget_complaints()
        outcome = self._context.decode_rows(
            [job.seq for job in jobs],
            [job.n for job in jobs],
            [job.next_token for job in jobs],
            exact=jobs[0].exact,
        )
        if outcome is Outcome.OK:
            account.decode_steps += 1
            for row, job in enumerate(jobs):
                self._advance(job, row, account)
            return
        intact = self._take_back(jobs, outcome, account)
        if outcome is Outcome.ABORTED:
            return
        if len(jobs) == 1:
            for job in intact:
                self._jobs.fail(job, outcome, account)
            return
        for job in intact:
            self._step([job], account)

    def _take_back(self, jobs: list[Job], outcome: Outcome, account: Account) -> list[Job]:
        """Cut off rows that were stored although their call did not end well; returns the jobs that can go on."""
        if outcome is Outcome.ABORTED:
            # Only a stop aborts decode rounds: nobody will ask for these jobs again.
            self._jobs.cut(account)
        return [job for job in jobs if self._restore(job, outcome, account)]

    def _restore(self, job: Job, outcome: Outcome, account: Account) -> bool:
        """Whether the sequence holds again what it held before the call; otherwise the job has failed."""
        if self._context.trim(job.seq, job.n):
            return True
        self._jobs.fail(job, outcome, account)
        return False

    # -- several tokens of one ----------------------------------------------------------------------

    def _alone(self, job: Job, drafter: Drafter, account: Account) -> None:
        """Advance a job that is alone by as many tokens as can be had in one call."""
        began = time.perf_counter_ns()
        tokens = account.line(job.id).tokens
        before = len(tokens)
        room = self._context.room(exact=job.exact) - job.n
        most = min(job.limit - job.generated, room, self._context.chunk_rows(exact=job.exact)) - 1
        guess = drafter.propose(most)
        if guess and not self._verify(job, guess, account):
            return
        if not guess:
            self._step([job], account)
        right = drafter.settle(guess, tokens[before:], time.perf_counter_ns() - began)
        account.drafted += len(guess)
        account.accepted += right

    def _verify(self, job: Job, guess: Sequence[int], account: Account) -> bool:
        """Compute the next token and the *guess* after it together, and keep what would have come anyway.

        Returns:
            False if the call did not end well; the job is then where it was, and the next round goes on from there.
        """
        forget_complaints()
        rows = np.array([job.next_token, *guess], np.int32)
        outcome = self._context.decode_guesses(job.seq, job.n, rows, exact=job.exact)
        if outcome is not Outcome.OK:
            if self._take_back([job], outcome, account) and outcome is not Outcome.ABORTED:
                self._step([job], account)
            return False
        account.decode_steps += 1
        for row in range(len(rows)):
            self._advance(job, row, account)
            if job.id not in self._jobs or (row < len(guess) and job.next_token != guess[row]):
                break
        if not self._context.trim(job.seq, job.n) and job.id in self._jobs:
            self._jobs.fail(job, Outcome.FAILED, account)
        return True

    # -- the choice ---------------------------------------------------------------------------------

    def _advance(self, job: Job, row: int, account: Account) -> None:
        """The job's next token is in its sequence now; choose the one after it by the logits of *row*."""
        job.n += 1
        account.decode_rows += 1
        self.sample(job, row, account)

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
        if job.drafter is not None:
            job.drafter.extend(token)
        if token in self._eog:
            self._jobs.end(job, JobState.END, account)
        elif job.generated >= job.limit:
            self._jobs.end(job, JobState.LIMIT, account)
        elif job.n >= self._context.room(exact=job.exact):
            self._jobs.end(
                job, JobState.CONTEXT_FULL, account, f"the context of {self._context.n_ctx} is full"
            )
