"""Which lanes are taken from their jobs, and how those go on."""

import pytest

from superfluid.core import schedule
from tests.core.bench import ENDLESS, LONG, Bench, endless
from tests.core.fake_engine import Trouble


def test_a_chat_takes_the_lane_of_the_least_urgent_job_which_goes_on_later():
    bench = Bench(lanes=3)
    bench.submit(1, ENDLESS, limit=50, qos=2)
    bench.submit(2, [*ENDLESS, 2], limit=50, qos=3)
    bench.submit(3, [*ENDLESS, 3], limit=50, qos=3, exact=True)
    bench.tick()
    bench.submit(4, [4], limit=3, qos=0)

    plan = bench.tick()

    assert plan.retire == (2,)
    assert [admit.job for admit in plan.admit] == [4]
    assert bench.waiting() == [2]
    bench.drain()
    assert all(bench.is_whole(job) for job in (1, 2, 3, 4))
    assert bench.ends[2].warm == 0, "as it was admitted first"


@pytest.mark.parametrize("kwargs", [{"qos": 0}, {"qos": 2, "exact": True}], ids=["as urgent", "exact"])
def test_a_lane_that_is_not_taken(kwargs):
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=50, **kwargs)
    bench.tick()
    bench.submit(2, [4], limit=3, qos=0)

    assert not bench.scheduler.joinable(0)
    assert bench.tick().retire == ()
    bench.drain()
    assert bench.is_whole(2)


def test_a_lane_that_was_given_in_the_same_plan_is_not_taken():
    """One that waited for long goes first, and a plan cannot name its sequence twice."""
    bench = Bench(lanes=1, starvation_ticks=1)
    bench.submit(1, ENDLESS, limit=60, qos=0)
    bench.submit(2, [2] * 30, limit=3, qos=3)
    for _ in range(4):
        bench.tick()
    bench.submit(3, [3] * 30, limit=3, qos=0)
    while 1 not in bench.ends:
        plan = bench.tick()
    plan = bench.tick()

    assert [admit.job for admit in plan.admit] == [2]
    assert [admit.job for admit in bench.tick().admit] == [3]
    bench.drain()
    assert bench.is_whole(2)


def test_paused_background_jobs_give_their_lanes_up_and_go_on_warm():
    bench = Bench(lanes=2)
    bench.submit(1, [*[7] * 40], limit=60, qos=3)
    bench.submit(2, [*[8] * 40], limit=60, qos=3)
    bench.tick()
    bench.scheduler.background_divisor = 0
    bench.scheduler.cancel(2)
    plan = bench.scheduler.plan()
    assert list(bench.scheduler.running) == [2], "it ends anyway"
    assert plan.retire == (1,)
    bench.settle(bench.engine.run(plan, Trouble(cancel={2: 1})))
    assert bench.scheduler.plan() is None
    bench.scheduler.background_divisor = 1
    stored = len(bench.stream(1)) - 1
    (admit,) = bench.tick().admit

    assert (admit.job, admit.start) == (1, stored)
    bench.drain()
    assert bench.is_whole(1)


def background_pair(*, divisor=4, **kwargs):
    """Two background jobs on the only lanes, at the beginning of the ticks in which they rest."""
    bench = Bench(lanes=2)
    bench.scheduler.background_divisor = divisor
    bench.submit(1, endless(first=7), limit=LONG, qos=3, **kwargs)
    bench.submit(2, endless(first=300), limit=LONG, qos=3, **kwargs)
    while bench.scheduler.tick % divisor or not bench.scheduler.tick:
        bench.tick()
    return bench


def test_background_jobs_that_rest_give_their_lanes_to_whoever_waits_and_go_on_warm():
    bench = background_pair()
    stored = {job: len(bench.stream(job)) - 1 for job in (1, 2)}
    for job in (3, 4):
        bench.submit(job, endless(3, first=job), limit=80)

    plan = bench.tick()

    assert set(plan.retire) == {1, 2}
    assert [admit.job for admit in plan.admit] == [3, 4]
    again = {admit.job: admit.start for plan in bench.drain() for admit in plan.admit if admit.job < 3}
    assert again == stored
    assert all(bench.is_whole(job) for job in range(1, 5))


def test_background_jobs_in_whose_tick_another_comes_keep_their_lanes_for_it():
    bench = background_pair()
    bench.tick(), bench.tick(), bench.tick()
    bench.submit(3, [3] * 3, limit=80)

    assert bench.tick().retire == ()
    assert [admit.job for admit in bench.tick().admit] == [3]
    bench.drain()


def test_exact_background_jobs_keep_their_lanes_while_they_rest():
    bench = background_pair(exact=True)
    bench.submit(3, [3] * 3, limit=80)

    assert bench.tick().retire == ()
    bench.drain()
    assert all(bench.is_whole(job) for job in (1, 2, 3))


def test_a_background_job_that_computes_what_another_waits_for_keeps_its_lane():
    bench = Bench(lanes=1, coalesce_min=256)
    bench.scheduler.background_divisor = 4
    bench.submit(1, [7] * 4000, limit=5, qos=3)
    bench.tick()
    bench.submit(2, [*[7] * 3000, 2], limit=5)
    bench.submit(3, [3] * 3, limit=5)
    bench.tick()

    assert list(bench.scheduler.running) == [1]
    bench.drain()
    assert bench.ends[2].warm == 3000


def test_a_resting_background_job_that_waited_for_long_does_not_come_before_others():
    """It would lose the lane again in the next tick."""
    bench = Bench(lanes=1, starvation_ticks=1)
    bench.scheduler.background_divisor = 100
    bench.submit(1, ENDLESS, limit=60)
    bench.submit(2, [2] * 30, limit=3, qos=3)
    for _ in range(4):
        bench.tick()
    bench.submit(3, [3] * 30, limit=3)
    bench.drain()

    assert bench.scheduler.counts.preemptions == 0
    assert list(bench.ends) == [1, 3, 2]


def test_a_job_that_lost_its_lane_has_not_waited_meanwhile():
    """It ran, so it is no more urgent than before; but it is first in its class, and as urgent as those behind it."""
    bench = Bench(lanes=1, starvation_ticks=4)
    bench.submit(1, ENDLESS, limit=LONG, qos=2)
    for _ in range(9):
        bench.tick()
    for job in (2, 3):
        bench.submit(job, [job], limit=3, qos=0)
    bench.tick()
    bench.submit(4, [4], limit=3, qos=2)
    assert bench.waiting() == [3, 1, 4]
    bench.submit(5, [5], limit=3, qos=1)
    (waits,) = (job for job in bench.scheduler.queues.order(0) if job.id == 4)
    waits.since -= 4

    assert bench.waiting() == [3, 1, 4, 5]


def test_an_exact_job_does_not_wait_for_rows_that_will_not_be_exact():
    bench = Bench(lanes=2)
    bench.submit(1, [7] * 2000)
    bench.submit(2, [*[7] * 1000, 2], exact=True)
    bench.submit(3, [*[7] * 1000, 3])
    bench.tick()

    assert list(bench.scheduler.running) == [1, 2]
    bench.drain()
    assert all(bench.is_whole(job) for job in (1, 2, 3))


def test_no_lane_is_taken_while_one_is_free(monkeypatch):
    """The second chat is beyond what one plan admits, and comes with the next."""
    monkeypatch.setattr(schedule, "MAX_ADMITTED_BYTES", 4 * 100)
    bench = Bench(lanes=3)
    bench.submit(1, ENDLESS, limit=50)
    bench.tick()
    bench.submit(2, [2] * 60, qos=0)
    bench.submit(3, [3] * 60, qos=0)

    plans = [bench.tick(), bench.tick()]

    assert [[admit.job for admit in plan.admit] for plan in plans] == [[2], [3]]
    assert bench.scheduler.counts.preemptions == 0


def test_a_job_whose_kept_kv_is_lost_while_it_waits_for_its_lane_again_goes_on_cold():
    bench = Bench(lanes=1, kept=1, host=1 << 20)
    bench.run(1, [1] * 30, limit=1)
    bench.submit(2, [*[1] * 30, 2, 2], limit=60)
    bench.tick()
    for job in (3, 4):
        bench.submit(job, [job] * 30, limit=3, qos=0)
    while not bench.engine.colds:
        bench.tick(loads_fail=True)
    bench.drain()

    assert bench.is_whole(2)
    assert bench.ends[2].warm == 30, "as it began"
