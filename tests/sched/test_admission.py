"""What one tick admits fits into one message, however long the prompts and however many the lanes."""

from array import array

import pytest

from superfluid.core import schedule
from superfluid.core.errors import ContextFull
from superfluid.core.limits import MAX_ADMITTED_BYTES
from superfluid.core.plan import JobResult, JobState, Result
from superfluid.core.schedule import Job, Options, Scheduler
from superfluid.worker import codec
from tests.daemon import GREEDY

LANES = 64


def job(number, prompt):
    return Job(id=number, prompt=array("I", [number]) * prompt, params=GREEDY, limit=10)


def admitted(plan):
    return [admit.job for admit in plan.admit]


def carried_out(plan):
    return Result(
        plan_id=plan.id,
        jobs=tuple(
            JobResult(job=number, prefilled=rows, tokens=b"", state=JobState.RUNNING)
            for number, rows in plan.prefill
        ),
        positions=(),
    )


def test_prompts_beyond_the_bound_wait_for_the_next_tick_in_their_order(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_ADMITTED_BYTES", 4 * 100)
    scheduler = Scheduler(options=Options(lanes=LANES))
    for number, prompt in enumerate([60, 40, 1, 99, 100, 30], 1):
        scheduler.submit(job(number, prompt))

    ticks = []
    while scheduler.queues:
        plan = scheduler.plan()
        ticks.append(admitted(plan))
        scheduler.settle(carried_out(plan))

    assert ticks == [[1, 2], [3, 4], [5], [6]]


def test_a_warm_prompt_counts_whole_for_its_history_is_handed_over_too(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_ADMITTED_BYTES", 4 * 100)
    scheduler = Scheduler(options=Options(lanes=LANES, speculate="prompt-lookup"))
    scheduler.submit(job(1, 90))
    plan = scheduler.plan()
    scheduler.settle(
        Result(
            plan_id=plan.id,
            jobs=(JobResult(job=1, prefilled=90, tokens=bytes(4), state=JobState.END),),
            positions=((plan.admit[0].seq, 90),),
        )
    )
    again = Job(id=2, prompt=array("I", [1]) * 95, params=GREEDY, limit=10)
    scheduler.submit(again)
    scheduler.submit(job(3, 90))

    plan = scheduler.plan()

    assert admitted(plan) == [2]
    assert len(plan.admit[0].history) + len(plan.admit[0].tokens) == 4 * 95


def test_a_prompt_that_no_message_holds_is_refused(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_ADMITTED_BYTES", 4 * 100)
    scheduler = Scheduler(options=Options(lanes=LANES))

    with pytest.raises(ContextFull):
        scheduler.submit(job(1, 101))

    assert not scheduler.queues


def test_the_largest_plan_is_a_message():
    scheduler = Scheduler(options=Options(lanes=LANES))
    for number in range(LANES + 1):
        scheduler.submit(job(number, MAX_ADMITTED_BYTES // 4 // LANES))
    plan = scheduler.plan()

    assert len(plan.admit) == LANES
    assert len(codec.encode(plan)) > MAX_ADMITTED_BYTES
