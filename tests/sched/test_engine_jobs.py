"""Jobs that are given up, and what room there is for them, over simulated workers."""

import trio

from superfluid.core.plan import JobState
from superfluid.core.schedule import Options
from superfluid.sched.engine import Engine
from superfluid.worker.messages import Load
from tests.sched.asking import Asked, running
from tests.sched.simulated_worker import N_CTX, TICK_SECONDS


async def test_a_queued_job_is_cancelled_at_once_and_disturbs_nobody(engine, workers, autojump_clock):
    async with running(engine):
        lanes = [Asked(engine, number, limit=200) for number in (1, 2)]
        queued = Asked(engine, 3)
        for job in lanes:
            await job.wait_first()

        engine.cancel(3)

        assert queued.state is JobState.CANCELLED
        assert queued.tokens == []
        for job in lanes:
            await job.wait()
            assert job.tokens == list(range(10, 210))
    assert 3 not in {admit.job for plan in workers.now.plans for admit in plan.admit}


async def test_a_job_that_lost_its_lane_and_is_cancelled_says_how_warm_it_was(workers, autojump_clock):
    engine = Engine(Load(model_path="/model", n_ctx=N_CTX, n_seq=2), Options(lanes=1, kept=1))
    async with running(engine):
        await Asked(engine, 1, prompt=10, limit=1).wait()
        agent = Asked(engine, 2, prompt=20, limit=400)
        await agent.wait_first()
        chat = Asked(engine, 3, limit=200, qos=0)
        await chat.wait_first()
        engine.cancel(2)
        await chat.wait()

    assert (agent.state, agent.updates[-1].warm) == (JobState.CANCELLED, 10)
    assert engine.statistics.warm_prefix_tokens == 10 + chat.updates[-1].warm


async def test_the_room_of_exact_jobs_is_less_by_what_their_rows_are_filled_up_with(workers, autojump_clock):
    engine = Engine(Load(model_path="/model", n_ctx=N_CTX, n_seq=4, exact_rows=8), Options(lanes=4))
    everything = Engine(
        Load(model_path="/model", n_ctx=N_CTX, n_seq=4, exact_rows=8), Options(lanes=4), exact=True
    )
    async with running(engine), running(everything):
        await engine.context_size()
        await everything.context_size()

        assert [engine.room(exact=exact) for exact in (False, True)] == [N_CTX, N_CTX - 7]
        assert [everything.room(exact=exact) for exact in (False, True)] == [N_CTX - 7, N_CTX - 7]


async def test_a_running_job_is_cancelled_with_what_it_made(engine, workers, autojump_clock):
    async with running(engine):
        cancelled, other = Asked(engine, 1, limit=3000), Asked(engine, 2, limit=100)
        await cancelled.wait_first()
        engine.cancel(1)
        engine.cancel(1)
        await cancelled.wait()
        await other.wait()

    assert cancelled.state is JobState.CANCELLED
    assert cancelled.tokens == list(range(10, 10 + len(cancelled.tokens)))
    assert other.tokens == list(range(10, 110))


async def test_a_cancelled_lane_goes_to_the_next_in_the_queue(engine, autojump_clock):
    async with running(engine):
        lanes = [Asked(engine, number, limit=3000) for number in (1, 2)]
        next_one, last = Asked(engine, 3, limit=5), Asked(engine, 4, limit=5)
        await lanes[0].wait_first()
        engine.cancel(4)
        engine.cancel(1)
        await next_one.wait()
        engine.cancel(2)

    assert next_one.state is JobState.LIMIT
    assert last.state is JobState.CANCELLED


async def test_a_job_that_finds_a_lane_free_does_not_wait_for_the_ticks_end(engine, workers, autojump_clock):
    async with running(engine):
        first = Asked(engine, 1, limit=3000)
        await first.wait_first()
        await trio.testing.wait_all_tasks_blocked()
        asked_at = trio.current_time()
        second = Asked(engine, 2, limit=3000)
        assert workers.now.interrupts == 1
        await second.wait_first()
        waited = trio.current_time() - asked_at
        third = Asked(engine, 3)
        assert workers.now.interrupts == 1, "no lane is free for it"
        for number in (1, 2, 3):
            engine.cancel(number)
        await third.wait()

    assert waited <= TICK_SECONDS  # its own tick, and nothing of the one that ran


async def test_cancelling_what_is_not_there_is_nothing(engine, autojump_clock):
    async with running(engine):
        job = await Asked(engine, 1, limit=5).wait()
        engine.cancel(1)
        engine.cancel(99)
        assert job.state is JobState.LIMIT
