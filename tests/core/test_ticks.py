"""How large a tick is: prompt rows and decode rounds, who gets them, and who may join."""

import pytest

from superfluid.core.cache import Cache
from superfluid.core.options import STARVATION_TICKS
from superfluid.core.plan import Result
from superfluid.core.schedule import EXAMINED_JOBS, Options, Scheduler
from superfluid.core.sizing import (
    BUSY_TARGET_US,
    DECODE_TARGET_US,
    EFFICIENT_ROWS,
    MIN_PREFILL_ROWS,
    PREFILL_TARGET_US,
)
from tests.core.bench import ENDLESS, LONG, Bench


def settled_step(bench, ticks=30):
    for _ in range(ticks):
        bench.tick()


def test_ticks_are_short_while_a_lane_is_free_and_long_while_none_is():
    bench = Bench(lanes=2, step_us=5_000)
    bench.submit(1, ENDLESS, limit=LONG)
    settled_step(bench)
    assert bench.scheduler.plan().decode_rounds == DECODE_TARGET_US // 5_000

    full = Bench(lanes=1, step_us=5_000)
    full.submit(1, ENDLESS, limit=LONG)
    settled_step(full, 3)
    full.scheduler.sizing.step_us = 5_000
    assert full.scheduler.plan().decode_rounds == BUSY_TARGET_US // 5_000


def test_a_long_tick_ends_where_a_lane_does_that_somebody_waits_for():
    bench = Bench(lanes=1, step_us=1_000)
    bench.submit(1, ENDLESS, limit=30)
    bench.tick()
    bench.scheduler.sizing.step_us = 1_000
    left = 30 - len(bench.replies[1])
    assert left > 0
    bench.submit(2, ENDLESS)

    assert bench.scheduler.plan().decode_rounds == left


def test_a_long_tick_goes_on_behind_the_end_of_a_lane_that_nobody_waits_for():
    bench = Bench(lanes=2, step_us=1_000)
    bench.submit(1, ENDLESS, limit=60)
    bench.submit(2, ENDLESS, limit=LONG)
    bench.tick()
    bench.scheduler.sizing.step_us = 1_000

    assert bench.scheduler.plan().decode_rounds == BUSY_TARGET_US // 1_000


def test_no_tick_is_longer_than_its_longest_reply():
    bench = Bench(lanes=2)
    bench.submit(1, ENDLESS, limit=5)
    bench.tick()
    bench.scheduler.sizing.step_us = 0.001

    assert bench.scheduler.plan().decode_rounds == 5 - len(bench.replies[1])


def test_a_tick_can_be_joined_while_a_lane_is_free_and_nobody_prefills():
    bench = Bench(lanes=2)
    assert bench.scheduler.joinable()

    bench.submit(1, ENDLESS, limit=LONG)
    bench.tick()
    assert bench.scheduler.joinable()

    bench.submit(2, [4] * 500, limit=LONG)
    bench.tick()
    assert not bench.scheduler.joinable()

    alone = Bench(lanes=2)
    alone.submit(1, [4] * 500, limit=LONG)
    alone.tick()
    assert not alone.scheduler.running[1].decoding
    assert not alone.scheduler.joinable()


def test_the_tick_that_opens_a_reply_ends_at_its_first_token():
    bench = Bench(lanes=2, step_us=1_000)
    bench.submit(1, ENDLESS, limit=LONG)
    bench.tick()
    bench.submit(2, [5, 5, 5], limit=LONG)

    assert bench.tick().decode_rounds == 1
    assert bench.replies[2]
    bench.scheduler.sizing.step_us = 1_000
    assert bench.scheduler.plan().decode_rounds > 1


def test_a_slow_machine_still_makes_progress():
    bench = Bench(lanes=2, step_us=3_000_000)
    bench.submit(1, ENDLESS, limit=LONG)
    bench.scheduler.sizing.row_us = 10_000_000
    bench.tick()

    plan = bench.tick()

    assert plan.decode_rounds == 1
    bench.submit(2, [2] * 40)
    assert bench.scheduler.plan().prefill == ((2, MIN_PREFILL_ROWS),)


def test_a_clock_that_stands_still_makes_no_endless_tick():
    scheduler = Scheduler(options=Options(lanes=1))
    for number in range(500):
        scheduler.settle(
            Result(plan_id=number, jobs=(), positions=(), prefill_rows=16, decode_steps=1, decode_rows=1)
        )

    assert scheduler.sizing.step_us == pytest.approx(1.0)
    assert scheduler.sizing.row_us == pytest.approx(1.0)


def test_a_handful_of_rows_says_nothing_of_the_machines_speed():
    scheduler = Scheduler(options=Options(lanes=1))
    before = scheduler.sizing.row_us

    scheduler.settle(Result(plan_id=1, jobs=(), positions=(), prefill_rows=1, prefill_us=90_000))

    assert scheduler.sizing.row_us == before


def test_the_shortest_prompt_goes_first_within_what_streams_can_pause():
    bench = Bench(lanes=4)
    bench.submit(4, ENDLESS, limit=LONG)
    bench.tick()
    bench.scheduler.sizing.row_us = PREFILL_TARGET_US / 50
    for job, length in ((1, 40), (2, 100), (3, 30)):
        bench.submit(job, [job] * length)

    assert bench.scheduler.plan().prefill == ((3, 30), (1, 16))  # of 50 rows, in multiples of eight


def test_prompts_are_computed_in_efficient_chunks_while_nobody_decodes():
    bench = Bench(lanes=1)
    bench.scheduler.sizing.row_us = PREFILL_TARGET_US / 50
    bench.submit(1, [1] * 5000)

    assert bench.scheduler.plan().prefill == ((1, EFFICIENT_ROWS),)


def test_a_prefill_budget_that_was_asked_for_is_kept():
    bench = Bench(lanes=2, prefill_budget=24)
    bench.submit(1, [1] * 100)
    bench.submit(2, [2] * 20)

    assert bench.scheduler.plan().prefill == ((2, 20),)  # what is left is less than kernels take


def test_a_long_prompt_is_not_starved_by_short_ones_that_keep_coming():
    bench = Bench(lanes=3)
    bench.submit(1, [1] * 200, limit=1)
    job, ticks = 1, 0
    while 1 not in bench.ends:
        bench.scheduler.sizing.row_us = 1_000_000  # 16 rows a tick, and each newcomer wants all of them
        while len(bench.scheduler.queues) < 3:
            job += 1
            bench.submit(job, [2 + job % 40] * MIN_PREFILL_ROWS, limit=1)
        bench.tick()
        ticks += 1
        assert ticks <= (STARVATION_TICKS + 1) * (200 // MIN_PREFILL_ROWS + 1)
    assert bench.is_whole(1)


def test_a_chat_does_not_wait_for_agents_that_starve():
    """They starve in turn, and a tick's tokens are seen at its end."""
    bench = Bench(lanes=8)
    for job in range(1, 8):
        bench.submit(job, [job] * 3000, qos=2)
    for _ in range(STARVATION_TICKS + 1):
        bench.tick()
    bench.submit(8, [8] * 20, qos=0)

    prefill = dict(bench.tick().prefill)

    assert prefill.pop(8) == 20
    assert sum(prefill.values()) <= MIN_PREFILL_ROWS
    assert bench.replies[8]


def test_beside_an_urgent_prompt_only_those_that_starve_go_on():
    bench = Bench(lanes=2)
    bench.submit(1, [1] * 3000, qos=2)
    bench.tick()
    bench.submit(2, [2] * 3000, qos=0)
    rows = [dict(bench.tick().prefill).get(1, 0) for _ in range(STARVATION_TICKS + 1)]

    assert rows == [*[0] * STARVATION_TICKS, MIN_PREFILL_ROWS]


def test_what_makes_a_seeded_job_is_counted_by_place():
    bench = Bench(lanes=1, kept=0, host=1 << 20)
    bench.run(1, [7] * 20)
    bench.run(2, [7] * 20)
    bench.run(3, [8] * 20)
    bench.run(4, [7] * 20)

    assert bench.scheduler.counts.cold_admissions == 2
    assert bench.scheduler.counts.resumes == {"pool": 1, "host": 1}


@pytest.mark.parametrize(("qos", "divisor"), [(2, 1), (3, 0)], ids=["above their cap", "paused"])
def test_jobs_that_may_not_run_do_not_hide_those_behind_them(qos, divisor):
    """They have waited so long that all of them rank before the one that comes."""
    bench = Bench(lanes=2, class_lanes=(0, 0, 1, 0))
    bench.scheduler.background_divisor = divisor
    bench.submit(1, ENDLESS, limit=LONG, qos=2)
    for job in range(2, 2 + EXAMINED_JOBS):
        bench.submit(job, [job], qos=qos)
    for _ in range(3 * STARVATION_TICKS):
        bench.tick()
    bench.submit(100, [9] * 3, qos=1)
    bench.tick()

    assert bench.replies[100]


def test_jobs_that_wait_for_a_prefill_do_not_hide_an_urgent_one():
    bench = Bench(lanes=2)
    for job in range(1, 2 + EXAMINED_JOBS):
        bench.submit(job, [*[5] * 4000, job])
    for _ in range(3 * STARVATION_TICKS):
        bench.tick()
    assert list(bench.scheduler.running) == [1]
    bench.submit(100, [9] * 3, qos=0)
    bench.tick()

    assert bench.replies[100]


def test_jobs_that_wait_for_a_prefill_hide_nobody_of_their_class():
    bench = Bench(lanes=2)
    for job in range(1, 2 + EXAMINED_JOBS):
        bench.submit(job, [*[5] * 4000, job])
    bench.tick()
    bench.submit(1000, [9] * 3)
    bench.tick()

    assert bench.replies[1000]
    assert bench.scheduler.counts.coalesced == EXAMINED_JOBS


def test_a_job_that_waits_for_a_prefill_costs_no_search(monkeypatch):
    bench = Bench(lanes=2)
    for job in (1, 2, 3):
        bench.submit(job, [*[5] * 2000, job])
    bench.tick()
    searches = []
    monkeypatch.setattr(Cache, "find", searches.append)
    bench.tick()

    assert searches == []
    assert list(bench.scheduler.running) == [1]
    monkeypatch.undo()
    bench.drain()
    assert [bench.ends[job].warm for job in (1, 2, 3)] == [0, 2000, 2000]


def test_a_full_pool_is_brought_down_to_its_low_mark_before_anything_runs_into_it():
    bench = Bench(lanes=1, kept=3, n_ctx=100, pressure_high=50, pressure_low=25)
    for job in (1, 2, 3):
        bench.run(job, [job] * 60, limit=5)

    assert bench.scheduler.cache.used_cells() <= 200
    assert sum(len(kv.tokens) for kv in bench.engine.contents) == bench.scheduler.cache.used_cells()
