"""The engine loop: carries out plans on one context, and reports what really happened.

It decides no policy and sees only ids. A plan runs in a fixed order: retire, moves, admits, prefill rows, decode
rounds. Between two calls of llama.cpp it looks at the signals: a cancelled job ends there, and so does the rest of the
plan, so that whoever waits for the result has it soon. Retiring, moves and admits are always carried out.

What a sequence holds is known from the memory alone. Whenever a call did not end well, or could have been cut, its
sequences are asked; a job goes on only if its sequence holds exactly the positions that it should.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from superfluid.core.plan import Admit, JobState, MoveKind, Plan, Result
from superfluid.core.sampling import SamplingParams
from superfluid.worker.host import HostMemory
from superfluid.worker.jobs import Account, Job, Jobs
from superfluid.worker.llama.context import Context, Ids
from superfluid.worker.llama.library import build
from superfluid.worker.llama.model import Model
from superfluid.worker.llama.sampler import Candidates, Sampler
from superfluid.worker.llama.state_kind import measure_state, read_by
from superfluid.worker.messages import Load, Ready, clip
from superfluid.worker.moves import Moves, changed_sequence
from superfluid.worker.prefill import Prefill
from superfluid.worker.rounds import Rounds
from superfluid.worker.signals import Signals


class PlanError(Exception):
    """The plan contradicts itself or an earlier one: the scheduler has a bug, and nothing may be built on it."""


class Engine:
    """Runs plans on one context. One thread calls ``run``; ``signals`` and ``host`` may be used from any."""

    def __init__(self, model: Model, load: Load) -> None:
        self._model = model
        self._context = context = Context(model, load)
        self._candidates = Candidates(context.n_vocab)
        self.host = HostMemory()
        self.signals = Signals(context)
        self._moves = Moves(context, self.host)
        self._jobs = Jobs(context, self.signals)
        self._rounds = Rounds(context, self._jobs, model.eog_ids())
        self._prefill = Prefill(context, self._jobs, self.signals, self._rounds)
        kind = measure_state(context)
        self.ready = Ready(
            n_vocab=context.n_vocab,
            n_ctx=context.n_ctx,
            n_ctx_train=model.n_ctx_train,
            n_seq=context.n_seq,
            bytes_per_token=kind.per_token,
            bytes_per_sequence=kind.per_sequence,
            lossy_refusal=clip(kind.lossy_refusal),
            description=clip(model.description),
            library=clip(build()),
            threads=load.threads,
            cuts=context.cuts,
            settings=clip(read_by(context, load)),
        )

    @classmethod
    def open(cls, load: Load, on_progress: Callable[[float], None] | None = None) -> "Engine":
        """Load the model and make the context.

        Raises:
            ModelError: names the path and the cause.
        """
        model = Model(
            Path(load.model_path), vocab_only=False, plain=load.kernels == "plain", on_progress=on_progress
        )
        try:
            return cls(model, load)
        except BaseException:
            model.close()
            raise

    def close(self) -> None:
        """Free samplers, context and model. Calling it again does nothing."""
        self._jobs.close()
        self._context.close()
        self._model.close()

    def run(self, plan: Plan) -> Result:
        """Carry out *plan*, and say what came of it. Faults of the engine are results, too.

        Raises:
            PlanError: the plan names sequences or jobs that cannot be meant; nothing of it was carried out.
        """
        self._check(plan)
        account = Account()
        for job_id in plan.retire:
            self._jobs.drop(job_id)
        self._moves.run(plan.moves, account)
        for admit in plan.admit:
            self._admit(admit, account)
        self._jobs.sweep_cancelled(account)
        self._prefill.run(plan, account)
        self._rounds.run(plan, account)
        self._jobs.settle_signals()
        return account.result(plan, self._context)

    # -- before the rows ----------------------------------------------------------------------------

    def _check(self, plan: Plan) -> None:
        seqs = range(self._context.n_seq)
        taken = {job.seq for job in self._jobs if job.id not in plan.retire}
        self._check_moves(plan, taken)
        for admit in plan.admit:
            if admit.seq not in seqs or admit.seq in taken:
                raise PlanError(f"sequence {admit.seq} does not exist or is taken")
            if admit.job in self._jobs and admit.job not in plan.retire:
                raise PlanError(f"job {admit.job} is there already")
            taken.add(admit.seq)

    def _check_moves(self, plan: Plan, taken: set[int]) -> None:
        saved: set[int] = set()
        for move in plan.moves:
            changed = changed_sequence(move)
            if move.kind is not MoveKind.DROP and max(move.seq, changed or 0) >= self._context.n_seq:
                raise PlanError("a move names a sequence that does not exist")
            if changed in taken:
                raise PlanError(f"a move changes sequence {changed} under a running job")
            if move.kind is MoveKind.SAVE and (move.entry in saved or move.entry in self.host):
                raise PlanError(f"entry {move.entry} is there already")
            if move.kind is MoveKind.SAVE:
                saved.add(move.entry)

    def _admit(self, admit: Admit, account: Account) -> None:
        context = self._context
        account.touched.add(admit.seq)
        line = account.line(admit.job)
        # A copy: the message's bytes are read-only and would be kept alive as a whole.
        tokens = np.frombuffer(admit.tokens, "<u4").astype(np.int64)
        history = np.frombuffer(admit.history, "<u4")
        room = context.room(exact=admit.exact)
        if not len(tokens) or admit.limit < 1:
            line.state, line.detail = JobState.ERROR, "a job needs at least one row and one token to generate"
        elif max(int(tokens.max()), int(history.max(initial=0))) >= context.n_vocab:
            line.state, line.detail = JobState.ERROR, "a token id is not in the vocabulary"
        elif admit.exact and context.exact_rows > 1 and context.cuts == "none":
            line.state, line.detail = JobState.ERROR, "rows of this model cannot be padded to be exact"
        elif admit.start + len(tokens) > room:
            line.state = JobState.CONTEXT_FULL
            line.detail = f"{admit.start + len(tokens)} tokens do not fit a context of {room}"
        elif context.length(admit.seq) < admit.start or not context.trim(admit.seq, admit.start):
            context.clear(admit.seq)
            line.state = JobState.COLD
            line.detail = f"the sequence could not be cut to, or did not hold, {admit.start} positions"
        else:
            self._jobs.add(self._job(admit, tokens.astype(np.int32)))

    def _job(self, admit: Admit, tokens: Ids) -> Job:
        params = SamplingParams(
            temperature=admit.temperature,
            top_p=admit.top_p,
            min_p=admit.min_p,
            top_k=admit.top_k,
            seed=admit.seed,
        )
        # Guesses that were wrong have to be cut off again.
        drafts = admit.draft and self._context.cuts != "none"
        return Job(
            id=admit.job,
            seq=admit.seq,
            n=admit.start,
            prompt=tokens,
            limit=admit.limit,
            sampler=Sampler(params, self._candidates),
            # With one row each, exact rows are like any others.
            exact=admit.exact and self._context.exact_rows > 1,
            drafter=self._rounds.drafter(admit) if drafts else None,
        )
