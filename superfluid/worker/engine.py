"""The engine loop: carries out plans on one context, and reports what really happened.

It decides no policy and sees only ids. A plan runs in a fixed order: retire, moves, admits, prefill rows, decode
rounds. Between two calls of llama.cpp it looks at the signals: a cancelled job ends there, and so does the rest of the
plan, so that whoever waits for the result has it soon. Retiring, moves and admits are always carried out.

What a sequence holds is known from the memory alone. Whenever a call did not end well, or could have been cut, its
sequences are asked; a job goes on only if its sequence holds exactly the positions that it should.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superfluid.core.plan import Admit, JobResult, JobState, Move, MoveKind, Plan, Result
from superfluid.core.sampling import SamplingParams
from superfluid.worker.llama.context import Context, Ids, Outcome
from superfluid.worker.llama.library import build, complaints, forget_complaints
from superfluid.worker.llama.model import Model
from superfluid.worker.llama.sampler import Candidates, NotFiniteError, Sampler
from superfluid.worker.messages import Load, Ready, clip
from superfluid.worker.signals import Signals


class PlanError(Exception):
    """The plan contradicts itself or an earlier one: the scheduler has a bug, and nothing may be built on it."""


@dataclass(slots=True, kw_only=True)
class _Job:
    """A job that holds a sequence."""

    id: int
    seq: int
    n: int
    """Positions that the sequence holds of the job's stream."""
    prompt: Ids
    """Rows still to be prefilled, at positions ``n`` and on."""
    limit: int
    sampler: Sampler
    generated: int = 0
    next_token: int = 0
    """Sampled, and not yet in the sequence; meaningful once the prompt is done."""

    @property
    def decoding(self) -> bool:
        return not len(self.prompt)


@dataclass(slots=True, kw_only=True)
class _Account:
    """What a plan has done so far."""

    jobs: dict[int, "_Line"] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    prefill_rows: int = 0
    prefill_us: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    decode_us: int = 0
    interrupted: bool = False

    def line(self, job: int) -> "_Line":
        return self.jobs.setdefault(job, _Line())


@dataclass(slots=True, kw_only=True)
class _Line:
    """What a plan has done for one job so far."""

    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)
    state: JobState = JobState.RUNNING
    detail: str = ""


class Engine:
    """Runs plans on one context. One thread calls ``run``; ``signals`` may be used from any."""

    def __init__(self, model: Model, load: Load) -> None:
        self._model = model
        self._context = context = Context(model, load)
        self._eog = model.eog_ids()
        self._candidates = Candidates(context.n_vocab)
        self._jobs: dict[int, _Job] = {}
        self.signals = Signals(context)
        self.ready = Ready(
            n_vocab=context.n_vocab,
            n_ctx=context.n_ctx,
            n_ctx_train=model.n_ctx_train,
            n_seq=context.n_seq,
            bytes_per_token=context.bytes_per_token,
            description=clip(model.description),
            library=clip(build()),
            threads=load.threads,
            cuts=context.cuts,
            settings=clip(
                f"n_seq={context.n_seq} n_ctx={context.n_ctx} kv={load.kv_type} flash={load.flash_attn} "
                f"exact_rows={load.exact_rows} library={build()}"
            ),
        )

    @classmethod
    def open(cls, load: Load, on_progress: Callable[[float], None] | None = None) -> "Engine":
        """Load the model and make the context.

        Raises:
            ModelError: names the path and the cause.
        """
        model = Model(Path(load.model_path), vocab_only=False, on_progress=on_progress)
        try:
            return cls(model, load)
        except BaseException:
            model.close()
            raise

    def close(self) -> None:
        """Free samplers, context and model. Calling it again does nothing."""
        for job in self._jobs.values():
            job.sampler.close()
        self._jobs.clear()
        self._context.close()
        self._model.close()

    def run(self, plan: Plan) -> Result:
        """Carry out *plan*, and say what came of it. Faults of the engine are results, too.

        Raises:
            PlanError: the plan names sequences or jobs that cannot be meant; nothing of it was carried out.
        """
        self._check(plan)
        account = _Account()
        for job_id in plan.retire:
            self._drop(job_id)
        for move in plan.moves:
            self._move(move, account)
        for admit in plan.admit:
            self._admit(admit, account)
        self._sweep_cancelled(account)
        self._prefill(plan, account)
        self._decode(plan, account)
        self.signals.forget(self._jobs)
        return self._result(plan, account)

    # -- before the rows ----------------------------------------------------------------------------

    def _check(self, plan: Plan) -> None:
        seqs = range(self._context.n_seq)
        taken = {job.seq for job in self._jobs.values() if job.id not in plan.retire}
        for move in plan.moves:
            changed = move.dst if move.kind is MoveKind.COPY else move.seq
            if move.seq not in seqs or changed not in seqs:
                raise PlanError("a move names a sequence that does not exist")
            if changed in taken:
                raise PlanError(f"a move changes sequence {changed} under a running job")
        for admit in plan.admit:
            if admit.seq not in seqs or admit.seq in taken:
                raise PlanError(f"sequence {admit.seq} does not exist or is taken")
            if admit.job in self._jobs and admit.job not in plan.retire:
                raise PlanError(f"job {admit.job} is there already")
            taken.add(admit.seq)

    def _move(self, move: Move, account: _Account) -> None:
        account.touched |= {move.seq, move.dst} if move.kind is MoveKind.COPY else {move.seq}
        match move.kind:
            case MoveKind.COPY:
                self._context.copy(move.seq, move.dst, move.n)
            case MoveKind.CLEAR:
                self._context.clear(move.seq)

    def _admit(self, admit: Admit, account: _Account) -> None:
        context = self._context
        account.touched.add(admit.seq)
        line = account.line(admit.job)
        # A copy: the message's bytes are read-only and would be kept alive as a whole.
        tokens = np.frombuffer(admit.tokens, "<u4").astype(np.int64)
        if not len(tokens) or admit.limit < 1:
            line.state, line.detail = JobState.ERROR, "a job needs at least one row and one token to generate"
        elif int(tokens.max()) >= context.n_vocab:
            line.state, line.detail = JobState.ERROR, "a token id is not in the vocabulary"
        elif admit.start + len(tokens) > context.n_ctx:
            line.state = JobState.CONTEXT_FULL
            line.detail = f"{admit.start + len(tokens)} tokens do not fit a context of {context.n_ctx}"
        elif context.length(admit.seq) < admit.start or not context.trim(admit.seq, admit.start):
            context.clear(admit.seq)
            line.state = JobState.COLD
            line.detail = f"the sequence could not be cut to, or did not hold, {admit.start} positions"
        else:
            params = SamplingParams(
                temperature=admit.temperature,
                top_p=admit.top_p,
                min_p=admit.min_p,
                top_k=admit.top_k,
                seed=admit.seed,
            )
            self._jobs[admit.job] = _Job(
                id=admit.job,
                seq=admit.seq,
                n=admit.start,
                prompt=tokens.astype(np.int32),
                limit=admit.limit,
                sampler=Sampler(params, self._candidates),
            )

    # -- rows ---------------------------------------------------------------------------------------

    def _prefill(self, plan: Plan, account: _Account) -> None:
        for job_id, rows in plan.prefill:
            job = self._jobs.get(job_id)
            if job is None:
                # Ended earlier in this plan or refused at its door; anything else is told so.
                if job_id not in account.jobs:
                    self._unknown(job_id, account)
                continue
            began = time.perf_counter_ns()
            self._prefill_job(plan, job, rows, account)
            account.prefill_us += (time.perf_counter_ns() - began) // 1000
            if account.interrupted:
                return

    def _prefill_job(self, plan: Plan, job: _Job, rows: int, account: _Account) -> None:
        """Compute up to *rows* prompt rows of one job, and sample its first token if they complete the prompt."""
        account.touched.add(job.seq)
        line = account.line(job.id)
        while rows > 0 and not job.decoding:
            if self._cut_if_signalled(plan, account):
                return
            if not self.signals.enter_prefill(plan.id, job.id):
                continue  # a signal came between the two looks: the next one sees it
            chunk = job.prompt[: min(rows, self._context.n_batch)]
            last = len(chunk) == len(job.prompt)
            forget_complaints()
            outcome = self._context.decode_chunk(job.seq, job.n, chunk, logits=last)
            self.signals.leave_prefill()
            done = len(chunk)
            if outcome is not Outcome.OK:
                done = self._salvage(job, outcome, account)
            rows -= done
            job.n += done
            job.prompt = job.prompt[done:]
            line.prefilled += done
            account.prefill_rows += done
            if outcome is not Outcome.OK:
                # Aborted: the rest is for another plan. Failed: the job is over.
                self._cut_if_signalled(plan, account)
                return
            if last:
                self._sample(job, len(chunk) - 1, account)

    def _salvage(self, job: _Job, outcome: Outcome, account: _Account) -> int:
        """After a chunk that did not end well: how many of its rows the memory really holds.

        The last row of a prompt counts as not done even when it is stored: its logits were never seen.
        """
        done = self._context.length(job.seq) - job.n
        if outcome is Outcome.ABORTED:
            keep = min(done, len(job.prompt) - 1)
            if keep >= 0 and self._context.trim(job.seq, job.n + keep):
                return keep
        self._fail(job, outcome, account)
        return 0

    def _decode(self, plan: Plan, account: _Account) -> None:
        began = time.perf_counter_ns()
        for _ in range(plan.decode_rounds):
            if account.interrupted or self._cut_if_signalled(plan, account):
                break
            jobs = sorted((job for job in self._jobs.values() if job.decoding), key=lambda job: job.seq)
            if not jobs:
                break
            self._step(jobs, account)
        account.decode_us += (time.perf_counter_ns() - began) // 1000

    def _step(self, jobs: list[_Job], account: _Account) -> None:
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
                self._sample(job, row, account)
            return
        if outcome is Outcome.ABORTED:
            # Only a stop aborts decode rounds: nobody will ask for these jobs again.
            self._cut(account)
        intact = [job for job in jobs if self._restore(job, outcome, account)]
        if outcome is Outcome.ABORTED:
            return
        if len(jobs) == 1:
            for job in intact:
                self._fail(job, outcome, account)
            return
        for job in intact:
            self._step([job], account)

    def _restore(self, job: _Job, outcome: Outcome, account: _Account) -> bool:
        """Take back a row that was stored although its batch failed; False (and an error) if that cannot be."""
        if self._context.trim(job.seq, job.n):
            return True
        self._fail(job, outcome, account)
        return False

    def _sample(self, job: _Job, row: int, account: _Account) -> None:
        """Choose the job's next token by the logits of batch row *row*, and see whether it is the last one."""
        line = account.line(job.id)
        try:
            token = job.sampler.choose(self._context.logits(row), job.n)
        except NotFiniteError as error:
            # What is in the cache is as broken as what came out of it.
            self._context.clear(job.seq)
            self._end(job, JobState.ERROR, account, str(error))
            return
        job.next_token = token
        job.generated += 1
        line.tokens.append(token)
        if token in self._eog:
            self._end(job, JobState.END, account)
        elif job.generated >= job.limit:
            self._end(job, JobState.LIMIT, account)
        elif job.n >= self._context.n_ctx:
            self._end(job, JobState.CONTEXT_FULL, account, f"the context of {self._context.n_ctx} is full")

    # -- signals and ends ---------------------------------------------------------------------------

    def _cut_if_signalled(self, plan: Plan, account: _Account) -> bool:
        """Whether the plan ends here: it is interrupted, or a job was cancelled (which ends with it)."""
        if self._sweep_cancelled(account) or self.signals.interrupted(plan.id):
            account.interrupted = True
        return account.interrupted

    def _cut(self, account: _Account) -> None:
        self._sweep_cancelled(account)
        account.interrupted = True

    def _sweep_cancelled(self, account: _Account) -> bool:
        """End the jobs whose cancellation has come. Their sequences stay as they are."""
        cancelled = [job for job in self._jobs.values() if self.signals.cancelled(job.id)]
        for job in cancelled:
            self._end(job, JobState.CANCELLED, account)
        return bool(cancelled)

    def _fail(self, job: _Job, outcome: Outcome, account: _Account) -> None:
        """End a job that the engine cannot go on with; its sequence is cleared, nothing may be built on it."""
        if outcome is Outcome.FULL:
            self._end(job, JobState.CONTEXT_FULL, account, "the sequence has no cell left")
            return
        self._context.clear(job.seq)
        said = "; ".join(complaints()) or outcome.name.lower()
        self._end(job, JobState.ERROR, account, f"the engine failed on this job: {said}")

    def _end(self, job: _Job, state: JobState, account: _Account, detail: str = "") -> None:
        line = account.line(job.id)
        line.state, line.detail = state, detail
        account.touched.add(job.seq)
        self._drop(job.id)

    def _drop(self, job_id: int) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            job.sampler.close()

    def _unknown(self, job_id: int, account: _Account) -> None:
        line = account.line(job_id)
        line.state, line.detail = JobState.ERROR, "no such job"

    def _result(self, plan: Plan, account: _Account) -> Result:
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
                for job, line in account.jobs.items()
            ),
            positions=tuple((seq, self._context.length(seq)) for seq in sorted(account.touched)),
            prefill_rows=account.prefill_rows,
            prefill_us=account.prefill_us,
            decode_steps=account.decode_steps,
            decode_rows=account.decode_rows,
            decode_us=account.decode_us,
            interrupted=account.interrupted,
        )
