"""Prefill: the prompt rows of jobs, in chunks that a signal may abort.

A chunk that did not end well, or was cut, leaves what the memory says; the job goes on only from positions that are
really there. A model whose sequences cannot be cut (recurrent layers) is not aborted inside a chunk: its one state would
be half the old one and half the new, while the memory says that it holds the whole chunk.
"""

import time

from superfluid.core.plan import JobState, Plan
from superfluid.worker.jobs import Account, Job, Jobs
from superfluid.worker.llama.context import Context, Outcome
from superfluid.worker.llama.library import forget_complaints
from superfluid.worker.rounds import Rounds
from superfluid.worker.signals import Signals


class Prefill:
    """Computes prompt rows on one context."""

    def __init__(self, context: Context, jobs: Jobs, signals: Signals, rounds: Rounds) -> None:
        self._context = context
        self._jobs = jobs
        self._signals = signals
        self._rounds = rounds

    def run(self, plan: Plan, account: Account) -> None:
        """Compute the rows that *plan* asks for, in its order; ends early when a signal comes."""
        for job_id, rows in plan.prefill:
            job = self._jobs.get(job_id)
            if job is None:
                # Ended earlier in this plan or refused at its door; anything else is told so.
                if job_id not in account.jobs:
                    line = account.line(job_id)
                    line.state, line.detail = JobState.ERROR, "no such job"
                continue
            began = time.perf_counter_ns()
            self._job(plan, job, rows, account)
            account.prefill_us += (time.perf_counter_ns() - began) // 1000
            if account.interrupted:
                return

    def _job(self, plan: Plan, job: Job, rows: int, account: Account) -> None:
        """Compute up to *rows* prompt rows of one job, and sample its first token if they complete the prompt."""
        account.touched.add(job.seq)
        line = account.line(job.id)
        abortable = self._context.cuts != "none"
        while rows > 0 and not job.decoding:
            if self._jobs.cut_if_signalled(plan, account):
                return
            if not self._signals.enter_prefill(plan.id, job.id, abortable=abortable):
                continue  # a signal came between the two looks: the next one sees it
            chunk = job.prompt[: self._rows(job, rows)]
            last = len(chunk) == len(job.prompt)
            forget_complaints()
            outcome = self._context.decode_chunk(job.seq, job.n, chunk, logits=last, exact=job.exact)
            self._signals.leave_prefill()
            done = len(chunk)
            if outcome is not Outcome.OK:
                done = self._salvage(job, len(chunk), outcome, account)
            rows -= done
            job.n += done
            job.prompt = job.prompt[done:]
            line.prefilled += done
            account.prefill_rows += done
            if outcome is not Outcome.OK:
                # Aborted: the rest is for another plan. Failed: the job is over.
                self._jobs.cut_if_signalled(plan, account)
                return
            if last:
                self._rounds.sample(job, len(chunk) - 1, account)

    def _rows(self, job: Job, most: int) -> int:
        """Rows of the next chunk, at most *most*.

        The chunks of an exact job need no dummies, but for the last one, and for one whose plan allows too few rows.
        """
        rows = min(most, self._context.chunk_rows(exact=job.exact), len(job.prompt))
        if not job.exact or rows == len(job.prompt):
            return rows
        return rows - rows % self._context.exact_rows or rows

    def _salvage(self, job: Job, chunk: int, outcome: Outcome, account: Account) -> int:
        """After a chunk that did not end well: how many of its rows the memory really holds.

        The last row of a prompt counts as not done even when it is stored: its logits were never seen. What is stored
        beyond the chunk are dummies.
        """
        done = min(self._context.length(job.seq) - job.n, chunk)
        if outcome is Outcome.ABORTED and self._context.cuts != "none":
            keep = min(done, len(job.prompt) - 1)
            if keep >= 0 and self._context.trim(job.seq, job.n + keep):
                return keep
        self._jobs.fail(job, outcome, account)
        return 0
