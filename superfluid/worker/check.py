"""What a worker may honestly answer to a plan. Pure: plain data in, nothing or one error out.

The worker is our own program, but what it links is not: after a memory error in it any bytes may come. A token id that
is not in the vocabulary would take the daemon down with the worker, and a count that is not true the scheduler's books.
"""

from collections.abc import Set as AbstractSet

import numpy as np

from superfluid.core.limits import MAX_DRAFT, STATE_SLACK_BYTES
from superfluid.core.plan import FINISHED, JobResult, JobState, MoveKind, Plan, Result
from superfluid.worker.messages import Fetch, Filed, FromWorker, MessageError, Ready, Seal


def jobs_of(plan: Plan, running: AbstractSet[int]) -> frozenset[int]:
    """The jobs that a result of *plan* may speak of, when *running* ran before it."""
    named = {job for job, _ in plan.prefill} | {admit.job for admit in plan.admit}
    return frozenset(named | (running - set(plan.retire)))


def still_running(plan: Plan, result: Result, running: AbstractSet[int]) -> frozenset[int]:
    """The jobs that run after *result*, when *running* ran before its *plan*. One that the plan retires may come back in
    the same plan: a paused job that went on before any other plan."""
    ended = {line.job for line in result.jobs if line.state in FINISHED}
    return frozenset((running - set(plan.retire) | {admit.job for admit in plan.admit}) - ended)


def state_bound(ready: Ready, positions: int) -> int:
    """Bytes beyond which no state of so many positions is honest. The foretold size is exact for most models only."""
    return 2 * (ready.bytes_per_sequence + positions * ready.bytes_per_token) + STATE_SLACK_BYTES


def check_result(plan: Plan, result: FromWorker, ready: Ready, running: AbstractSet[int]) -> Result:
    """*result*, or ``MessageError`` if it cannot be what an honest worker answers to *plan*."""
    if not isinstance(result, Result):
        raise MessageError("the answer to a plan is no result")
    if result.plan_id != plan.id:
        raise MessageError(f"the result of plan {result.plan_id} came for plan {plan.id}")
    allowed = jobs_of(plan, running)
    seen: set[int] = set()
    for line in result.jobs:
        if line.job not in allowed or line.job in seen:
            raise MessageError("the result names a job that it cannot speak of")
        seen.add(line.job)
        _check_line(plan, result, line, ready)
    _check_positions(result, ready)
    _check_saved(plan, result, ready)
    _check_counts(plan, result, ready)
    return result


def check_filed(request: Seal | Fetch, filed: Filed, ready: Ready) -> None:
    """Raise ``MessageError`` if *filed* cannot be what an honest worker answers to *request*."""
    honest = 0 < filed.size <= state_bound(ready, request.positions) if filed.ok else filed.size == 0
    if not honest:
        raise MessageError("the answer about a park file claims an absurd size")


def _check_line(plan: Plan, result: Result, line: JobResult, ready: Ready) -> None:
    if line.prefilled > sum(rows for job, rows in plan.prefill if job == line.job):
        raise MessageError("the result holds more prompt rows than were asked for")
    ids = np.frombuffer(line.tokens, "<u4")
    # A token a round, the guesses that were right, and the first one of a prompt whose last row was computed.
    if len(ids) > plan.decode_rounds + result.accepted + (line.prefilled > 0):
        raise MessageError("the result holds more tokens than were asked for")
    if len(ids) and int(ids.max()) >= ready.n_vocab:
        raise MessageError("the result holds a token that is not in the vocabulary")
    match line.state:
        case JobState.COLD:
            if line.prefilled or line.tokens or all(admit.job != line.job for admit in plan.admit):
                raise MessageError("the result calls a job cold that was admitted")
        case JobState.END | JobState.LIMIT if not len(ids):
            raise MessageError("the result ends a job by a token that it does not hold")


def _check_positions(result: Result, ready: Ready) -> None:
    if len({seq for seq, _ in result.positions}) < len(result.positions):
        raise MessageError("the result speaks of a sequence twice")
    for seq, length in result.positions:
        if seq >= ready.n_seq or length > ready.n_ctx:
            raise MessageError("the result speaks of cells that do not exist")


def _check_saved(plan: Plan, result: Result, ready: Ready) -> None:
    """The entries, of which the scheduler keeps the books of host memory."""
    asked = {move.entry: move.n for move in plan.moves if move.kind is MoveKind.SAVE}
    if sorted(entry for entry, _, _ in result.saved) != sorted(asked):
        raise MessageError("the result does not speak of each entry that was asked for, and of no other")
    for entry, positions, size in result.saved:
        if positions not in {0, asked[entry]} or (positions > 0) != (size > 0):
            raise MessageError("the result claims an entry of other positions than were asked for")
        if size > state_bound(ready, positions):
            raise MessageError("the result claims an entry of absurd size")


def _check_counts(plan: Plan, result: Result, ready: Ready) -> None:
    """The sums, of which the scheduler learns how long things take."""
    # A batch that fails is tried again row by row, so that each row may be a step.
    most = plan.decode_rounds * ready.n_seq
    if (
        result.prefill_rows != sum(line.prefilled for line in result.jobs)
        or not result.decode_steps <= result.decode_rows <= most + result.accepted
        or not result.accepted <= result.drafted <= plan.decode_rounds * MAX_DRAFT
    ):
        raise MessageError("the result counts more work than was asked for")
