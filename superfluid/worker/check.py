"""What a worker may honestly answer to a plan. Pure: plain data in, nothing or one error out.

The worker is our own program, but what it links is not: after a memory error in it any bytes may come. A
token id that is not in the vocabulary would take the daemon down with the worker.
"""

from collections.abc import Set as AbstractSet

import numpy as np

from superfluid.core.plan import FINISHED, Plan, Result
from superfluid.worker.messages import FromWorker, MessageError, Ready


def jobs_of(plan: Plan, running: AbstractSet[int]) -> frozenset[int]:
    """The jobs that a result of *plan* may speak of, when *running* ran before it."""
    named = {job for job, _ in plan.prefill} | {admit.job for admit in plan.admit}
    return frozenset(named | running)


def still_running(plan: Plan, result: Result, running: AbstractSet[int]) -> frozenset[int]:
    """The jobs that run after *result*, when *running* ran before its *plan*."""
    ended = {line.job for line in result.jobs if line.state in FINISHED}
    return frozenset((running | {admit.job for admit in plan.admit}) - set(plan.retire) - ended)


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
        ids = np.frombuffer(line.tokens, "<u4")
        if len(ids) > plan.decode_rounds + 1:
            raise MessageError("the result holds more tokens than were asked for")
        if len(ids) and int(ids.max()) >= ready.n_vocab:
            raise MessageError("the result holds a token that is not in the vocabulary")
    for seq, length in result.positions:
        if seq >= ready.n_seq or length > ready.n_ctx:
            raise MessageError("the result speaks of cells that do not exist")
    return result
