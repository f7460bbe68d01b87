"""Plans for given books, and what results make of them, case by case; random traffic is in ``test_schedule_model``."""

from array import array

import pytest

from superfluid.core import schedule
from superfluid.core.entry import Place
from superfluid.core.errors import ContextFull, TooManyInFlight
from superfluid.core.options import STARVATION_TICKS
from superfluid.core.plan import JobResult, JobState, Result
from superfluid.core.schedule import Job, Options, Scheduler
from tests.core.bench import ENDLESS, LONG, Bench, endless
from tests.core.builders import OTHER_PARAMS, PARAMS
from tests.core.fake_engine import FakeEngine, Trouble, expected_reply


def update_of(bench, job):
    end = bench.ends[job]
    return end.state, end.warm


# -- the queue --------------------------------------------------------------------------------------


def test_there_is_no_plan_without_work():
    assert Scheduler(options=Options(lanes=2)).plan() is None


def test_nothing_runs_without_a_lane():
    with pytest.raises(AssertionError, match="without a lane"):
        Scheduler(options=Options(lanes=0, kept=4))


def test_a_full_queue_refuses_and_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_QUEUED_GENERATIONS", 2)
    bench = Bench(lanes=1)
    bench.submit(1, [1])
    bench.submit(2, [2])

    with pytest.raises(TooManyInFlight, match=r"^2 generations are waiting already; try again later"):
        bench.submit(3, [3])
    assert bench.waiting() == [1, 2]


def test_one_tick_admits_what_fits_a_message_and_a_prompt_beyond_that_is_refused(monkeypatch):
    monkeypatch.setattr(schedule, "MAX_ADMITTED_BYTES", 4 * 100)
    bench = Bench(lanes=4)
    for job, length in ((1, 60), (2, 50), (3, 40)):
        bench.submit(job, [job] * length)
    with pytest.raises(ContextFull, match="101 tokens"):
        bench.submit(4, [4] * 101)

    assert [[admit.job for admit in bench.tick().admit] for _ in range(2)] == [[1, 3], [2]]


def test_classes_queue_apart_and_the_higher_one_goes_first():
    bench = Bench(lanes=1)
    bench.submit(9, ENDLESS, limit=40, qos=0)
    bench.tick()
    for job, qos in ((1, 3), (2, 2), (3, 1), (4, 2)):
        bench.submit(job, [job], qos=qos)

    assert bench.waiting() == [3, 2, 4, 1]
    assert [bench.scheduler.queues.depth(qos) for qos in range(4)] == [0, 1, 2, 1]
    bench.scheduler.tick += STARVATION_TICKS
    assert bench.waiting() == [3, 2, 4, 1], "each rose by one"
    bench.scheduler.tick += 2 * STARVATION_TICKS
    assert bench.waiting() == [1, 2, 3, 4], "all are as urgent as can be"
    bench.scheduler.reclass(2, 3)
    bench.scheduler.reclass(9, 1)
    bench.scheduler.reclass(77, 1)
    assert bench.scheduler.queues.depth(3) == 2
    assert bench.scheduler.running[9].qos == 1


def test_jobs_come_to_lanes_in_the_order_they_came():
    bench = Bench(lanes=2)
    for job in range(1, 9):
        bench.submit(job, [job, job], limit=3)

    admitted = [admit.job for plan in bench.drain() for admit in plan.admit]

    assert admitted == list(range(1, 9))
    assert all(bench.is_whole(job) for job in admitted)


def test_an_admit_carries_the_sessions_params_and_the_rows_that_are_not_there():
    scheduler = Scheduler(options=Options(lanes=1))
    scheduler.submit(Job(id=7, prompt=array("I", [4, 5, 6]), params=OTHER_PARAMS, limit=9))

    plan = scheduler.plan()

    (admit,) = plan.admit
    assert (admit.job, admit.seq, admit.start, admit.limit) == (7, 0, 0, 9)
    assert admit.tokens == array("I", [4, 5, 6]).tobytes()
    sampling = (admit.temperature, admit.top_p, admit.min_p, admit.top_k, admit.seed)
    p = OTHER_PARAMS
    assert sampling == (p.temperature, p.top_p, p.min_p, p.top_k, p.seed)


# -- warmth -----------------------------------------------------------------------------------------


def test_a_next_turn_prefills_only_what_is_new():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=5)
    bench.drain()
    bench.submit(2, [*bench.stream(1), 8, 9])
    bench.drain()

    # All but the last token of the first reply, which was never computed.
    assert update_of(bench, 2) == (JobState.LIMIT, len(ENDLESS) + 4)
    assert bench.is_whole(2)


def test_a_continuation_and_a_fork_start_warm_too():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=5)
    bench.drain()
    whole = bench.stream(1)
    bench.submit(2, whole, limit=3)
    bench.drain()
    bench.submit(3, [*whole[:6], 9], limit=3)
    bench.drain()
    bench.submit(4, bench.stream(2), limit=3)
    bench.drain()

    assert [bench.ends[job].warm for job in (1, 2, 3, 4)] == [0, 7, 6, 10]


def test_sessions_that_take_turns_stay_warm_beside_each_other():
    bench = Bench(lanes=1, kept=3)
    system = [1, 2, 3, 4]
    streams = {name: [*system, name, name] for name in (5, 6, 7)}
    job = 0
    for round_ in range(3):
        for name, stream in streams.items():
            job += 1
            before = len(stream)
            bench.submit(job, [*stream, 8], limit=4)
            bench.drain()
            streams[name] = bench.stream(job)
            if round_:
                assert bench.ends[job].warm == before - 1


def test_the_session_that_was_not_used_for_longest_gives_way():
    bench = Bench(lanes=1, kept=2)
    streams = {}

    def turn(job, name):
        bench.submit(job, [*streams.get(name, [name] * 4), 8], limit=2)
        bench.drain()
        streams[name] = bench.stream(job)
        return bench.ends[job].warm > 0

    for job, name in enumerate((11, 12, 13), 1):
        assert not turn(job, name)
    assert turn(4, 11)
    assert not turn(5, 14)  # takes the place of 12
    assert turn(6, 13)
    assert turn(7, 11)
    assert not turn(8, 12)


# -- cancel -----------------------------------------------------------------------------------------


def test_cancelling_a_queued_job_touches_nobody_and_the_next_one_starts_right_after():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=40)
    bench.tick()
    bench.submit(2, [2, 2])
    bench.submit(3, [3, 3])

    assert bench.scheduler.cancel(2).id == 2
    admitted = [admit.job for plan in bench.drain() for admit in plan.admit]

    assert admitted == [3]
    assert bench.is_whole(1)
    assert bench.is_whole(3)
    assert bench.replies[2] == []


def test_cancelling_a_job_that_is_not_there_does_nothing():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=3)
    bench.drain()

    assert bench.scheduler.cancel(1) is None
    assert bench.scheduler.cancel(99) is None
    assert bench.scheduler.cancelled == set()


@pytest.mark.parametrize(
    ("ticks", "heard_at"),
    [(0, 1), (0, 5), (1, 3), (0, None)],
    ids=["at once", "in prefill", "in decode", "too late"],
)
def test_a_running_job_ends_with_its_tick_and_frees_its_lane(ticks, heard_at):
    bench = Bench(lanes=2, kept=1)
    bench.submit(1, ENDLESS, limit=60)
    bench.tick()
    bench.submit(2, [*ENDLESS, *[7] * 25], limit=LONG)
    bench.scheduler.sizing.row_us = 1.0
    for _ in range(ticks):
        bench.tick()
    plan = bench.scheduler.plan()
    assert not bench.scheduler.cancel(2)

    bench.settle(bench.engine.run(plan, Trouble(cancel={} if heard_at is None else {2: heard_at})))

    assert bench.ends[2].state is JobState.CANCELLED
    assert bench.replies[2] == expected_reply(bench.prompts[2], LONG)[: len(bench.replies[2])]
    assert list(bench.scheduler.running) == [1]
    bench.submit(3, [3, 3, 3])
    after = bench.tick()
    assert [admit.job for admit in after.admit] == [3]
    assert after.retire == ((2,) if heard_at is None else ())
    assert bench.tick().retire == ()
    bench.drain()
    assert bench.is_whole(1)
    assert bench.is_whole(3)


def test_a_cancel_between_result_and_plan_ends_the_job_with_the_next_result():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=LONG)
    bench.tick()
    bench.scheduler.cancel(1)

    bench.tick(cancel={1: 1})

    assert bench.ends[1].state is JobState.CANCELLED


def test_a_job_that_ended_by_itself_first_says_so():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=1)
    plan = bench.scheduler.plan()
    bench.scheduler.cancel(1)

    bench.settle(bench.engine.run(plan))

    assert bench.ends[1].state is JobState.LIMIT
    assert bench.scheduler.cancelled == set()


def test_the_kv_of_a_cancelled_job_is_kept():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=LONG)
    plan = bench.scheduler.plan()
    bench.scheduler.cancel(1)
    bench.settle(bench.engine.run(plan))
    bench.submit(2, bench.stream(1))
    bench.drain()

    assert bench.ends[2].warm == len(bench.stream(1)) - 1
    assert bench.is_whole(2)


# -- cold, failed, lost -----------------------------------------------------------------------------


def cold_pair():
    """Two jobs on lanes whose kept KV, in host memory, turns out to be of no use, and a third that waits."""
    bench = Bench(lanes=2, kept=0, host=1 << 20)
    bench.run(1, [7] * 20, limit=5)
    fork = bench.stream(1)[:20]
    bench.submit(8, [8] * 20)
    bench.submit(9, [9] * 20)
    bench.drain()
    bench.submit(2, [*fork, 9], limit=2)
    bench.submit(3, [*fork, 8], limit=2)
    bench.submit(4, [4, 4], limit=2)
    return bench


def test_cold_jobs_go_back_to_the_head_of_the_queue_in_their_order():
    bench = cold_pair()

    first = bench.tick(loads_fail=True)
    assert [(admit.job, admit.start) for admit in first.admit] == [(2, 20), (3, 20)]
    assert bench.waiting() == [2, 3, 4]
    assert bench.ends.keys() == {1, 8, 9}

    second = bench.tick()
    assert [(admit.job, admit.start) for admit in second.admit] == [(2, 0), (3, 0)]
    bench.drain()
    assert all(bench.is_whole(job) for job in (2, 3, 4))
    assert bench.ends[2].warm == 0, "nothing was spared after all"


def test_the_entry_that_turned_out_to_be_of_no_use_is_given_up():
    bench = cold_pair()
    found = bench.scheduler.cache.find(array("I", [7] * 21)).entry
    bench.tick(loads_fail=True)
    bench.drain()

    assert found.place is Place.HOST
    assert found.key not in bench.scheduler.cache.entries
    assert found.key not in bench.engine.host
    assert bench.scheduler.cache.evictions[Place.HOST] == 0, "it did not go for room"


def test_what_a_cold_job_computed_itself_is_good_for_it_when_it_loses_its_lane():
    bench = Bench(lanes=1, kept=1, host=1 << 20)
    bench.run(1, endless(20), limit=5)
    bench.run(2, [8] * 20)
    bench.run(3, [9] * 20)
    bench.submit(4, [*endless(20), 9], limit=40)
    bench.tick(loads_fail=True)
    while not bench.replies[4]:
        bench.tick()
    stored = len(bench.stream(4)) - 1
    bench.submit(5, [5], limit=3, qos=0)

    again = next(admit for plan in bench.drain() for admit in plan.admit if admit.job == 4)

    assert again.start == stored
    assert bench.is_whole(4)
    assert bench.ends[4].warm == 0, "all of its prompt was computed"


def test_a_cold_sequence_holds_nothing_whatever_is_reported_of_it():
    bench = cold_pair()
    bench.scheduler.plan()
    slot = bench.scheduler.cache.slots[bench.scheduler.running[2].seq]
    assert slot.held == 20
    line = JobResult(job=2, prefilled=0, tokens=b"", state=JobState.COLD)

    bench.scheduler.settle(Result(plan_id=1, jobs=(line,), positions=()))

    assert slot.held == 0


def test_the_last_token_of_a_reply_is_not_stored_yet():
    job = Job(id=1, prompt=array("I", [1, 2, 3]), params=PARAMS, limit=9, to_prefill=2)
    assert job.stored == 1
    job.to_prefill, job.made = 0, array("I", [8])
    assert job.stored == 3
    job.made = array("I", [8, 8, 8, 8])
    assert job.stored == 6
    job.to_prefill = 7  # it lost its lane, and all of its KV
    assert job.stored == 0


def test_a_cancelled_job_that_turns_out_cold_is_cancelled():
    bench = cold_pair()
    plan = bench.scheduler.plan()
    bench.scheduler.cancel(2)

    bench.settle(bench.engine.run(plan, Trouble(loads_fail=True)))

    assert bench.ends[2].state is JobState.CANCELLED
    assert bench.waiting() == [3, 4]


def test_a_job_that_waits_again_can_be_cancelled():
    bench = cold_pair()
    bench.tick(loads_fail=True)

    assert bench.scheduler.cancel(2)
    bench.drain()
    assert bench.replies[2] == []
    assert bench.is_whole(3)


def test_cold_twice_is_an_error():
    bench = cold_pair()
    bench.tick(loads_fail=True)
    plan = bench.scheduler.plan()
    line = JobResult(job=2, prefilled=0, tokens=b"", state=JobState.COLD, detail="why")

    updates = bench.scheduler.settle(Result(plan_id=plan.id, jobs=(line,), positions=((0, 0),)))

    assert [(u.job, u.state, u.detail) for u in updates] == [(2, JobState.ERROR, "why")]
    assert list(bench.scheduler.running) == [3]


@pytest.mark.parametrize("state", [JobState.ERROR, JobState.CONTEXT_FULL])
def test_what_a_refused_job_left_in_its_sequence_is_not_taken_for_its_own(state):
    """The engine refuses at the door and touches nothing: the sequence still holds the earlier session's ids."""
    bench = Bench(lanes=1, kept=0)
    bench.run(1, ENDLESS, limit=5)
    held = bench.engine.contents[0].tokens.tolist()
    bench.submit(2, [*held[:2], *[9] * 20])
    plan = bench.scheduler.plan()
    line = JobResult(job=2, prefilled=0, tokens=b"", state=state, detail="no")

    (update,) = bench.scheduler.settle(Result(plan_id=plan.id, jobs=(line,), positions=((0, len(held)),)))

    assert update.state is state
    slot = bench.scheduler.cache.slots[0]
    assert slot.stream[: slot.held].tolist() == held[:2]


def test_a_failed_job_ends_alone():
    bench = Bench(lanes=2)
    bench.submit(1, ENDLESS, limit=40)
    bench.submit(2, [2, 2], limit=40)

    bench.tick(fail=frozenset({2}))
    bench.drain()

    assert (bench.ends[2].state, bench.ends[2].detail) == (JobState.ERROR, "as told")
    assert bench.is_whole(1)


def test_a_line_for_a_job_that_is_over_changes_nothing():
    bench = Bench(lanes=1)
    line = JobResult(job=5, prefilled=3, tokens=b"\x01\x00\x00\x00", state=JobState.RUNNING)

    assert bench.scheduler.settle(Result(plan_id=1, jobs=(line,), positions=())) == []


def test_a_lost_worker_takes_its_lanes_with_it_and_leaves_the_queue():
    bench = Bench(lanes=2, kept=1)
    bench.submit(1, ENDLESS, limit=LONG)
    bench.submit(2, [2, 2], limit=LONG)
    bench.submit(3, ENDLESS, limit=4)
    bench.scheduler.plan()
    bench.scheduler.cancel(2)

    assert bench.scheduler.reset() == [1, 2]

    assert bench.scheduler.cancelled == set()
    assert [(slot.held, slot.job) for slot in bench.scheduler.cache.slots] == [(0, None)] * 3
    bench.engine = FakeEngine(3, bench.prompts)
    bench.drain()
    assert bench.is_whole(3)
    assert bench.ends[3].warm == 0


def test_a_lost_worker_needs_no_word_of_a_cancel_that_it_never_heard():
    bench = Bench(lanes=1)
    bench.submit(1, ENDLESS, limit=LONG)
    plan = bench.scheduler.plan()
    bench.scheduler.cancel(1)
    bench.settle(bench.engine.run(plan))
    bench.scheduler.reset()
    bench.submit(2, [2, 2])

    assert bench.scheduler.plan().retire == ()
