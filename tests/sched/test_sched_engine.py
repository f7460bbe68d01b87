"""The engine's loop over simulated workers: jobs, losses, respawns, on a clock that jumps."""

from array import array

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core.errors import ShuttingDown, TooManyInFlight, WorkerLost, WorkerStartFailed
from superfluid.core.plan import JobState
from superfluid.sched.engine import Phase
from superfluid.sched.starts import (
    HEALTHY_SECONDS,
    RESPAWN_FIRST_SECONDS,
    RESPAWN_MOST_SECONDS,
    UNSTARTABLE_MOST_SECONDS,
)
from tests.sched.asking import Asked, running
from tests.sched.simulated_worker import N_CTX

LOST = WorkerLost("the worker was killed by SIGKILL")
CANNOT = WorkerStartFailed("missing", "model file /nowhere does not exist")


async def test_jobs_share_ticks_and_end_at_their_limits(engine, workers, autojump_clock):
    async with running(engine):
        asked = [Asked(engine, number, limit=20 * number) for number in (1, 2, 3)]
        for job in asked:
            await job.wait()

    for number, job in enumerate(asked, 1):
        assert job.state is JobState.LIMIT
        assert job.tokens == list(range(10, 10 + 20 * number))
    assert max(len(plan.admit) for plan in workers.now.plans) == 2, "two lanes"
    assert engine.statistics.worker_losses == 0
    assert workers.now.closed


async def test_an_idle_engine_sends_no_plan_and_wakes_for_a_job(engine, workers, autojump_clock):
    async with running(engine):
        await trio.sleep(1000)
        assert workers.now.plans == []
        assert (await Asked(engine, 1).wait()).state is JobState.LIMIT


# -- losses -----------------------------------------------------------------------------------------


async def test_a_loss_fails_the_lanes_and_keeps_the_queue(engine, workers, autojump_clock):
    async with running(engine):
        lanes = [Asked(engine, number, limit=3000) for number in (1, 2)]
        waiting = Asked(engine, 3, limit=50)
        for job in lanes:
            await job.wait_first()
        workers.now.die()

        for job in lanes:
            await job.wait()
            assert job.state is JobState.ERROR
            assert "was killed by SIGKILL" in job.updates[-1].detail
            assert "generate again to continue" in job.updates[-1].detail
        await waiting.wait()

    assert waiting.state is JobState.LIMIT
    assert waiting.tokens == list(range(10, 60))
    assert len(workers.links) == 2
    assert engine.statistics.worker_losses == 1
    assert engine.statistics.respawns == 1


async def test_nothing_of_the_lost_workers_memory_is_believed(engine, workers, autojump_clock):
    async with running(engine):
        stream = array("I", range(10))
        await Asked(engine, 1, limit=20).wait()
        assert engine.gauges()["pool_tokens"] > 0
        workers.now.die()
        await wait_all_tasks_blocked()
        assert engine.where(1, stream) == ("cold", 0, 0)
        assert engine.gauges()["pool_tokens"] == 0
        await Asked(engine, 2, limit=5).wait()

    (admit,) = (admit for plan in workers.now.plans for admit in plan.admit)
    assert admit.start == 0


async def test_a_worker_that_dies_idle_is_replaced_before_anybody_asks(engine, workers, autojump_clock):
    async with running(engine):
        await wait_all_tasks_blocked()
        workers.now.die()
        await trio.sleep(1)

        assert len(workers.links) == 2
        assert engine.status.phase is Phase.READY
        assert engine.status.worker_pid == workers.now.pid


async def test_respawns_back_off_while_workers_die_at_the_start(engine, workers, autojump_clock):
    workers.fail_starts = [LOST] * 12
    async with running(engine):
        assert (await Asked(engine, 1).wait()).state is JobState.LIMIT, "a job waits for the first that lives"

    pauses = [b - a for a, b in zip(workers.started_at, workers.started_at[1:], strict=False)]
    expected = [min(RESPAWN_FIRST_SECONDS * 2**n, RESPAWN_MOST_SECONDS) for n in range(12)]
    assert pauses == pytest.approx(expected)


async def test_a_worker_that_did_its_work_is_replaced_at_once(engine, workers, autojump_clock):
    workers.fail_starts = [LOST] * 5
    async with running(engine):
        for number in range(1, 6):
            await Asked(engine, number).wait()
            workers.now.die()
            died_at = trio.current_time()
            await Asked(engine, 100 + number).wait()
            assert workers.started_at[-1] - died_at == pytest.approx(RESPAWN_FIRST_SECONDS)


async def test_a_job_that_kills_every_worker_is_backed_off(engine, workers, autojump_clock):
    workers.die_at_plans = 7
    async with running(engine):
        for number in range(1, 8):
            assert (await Asked(engine, number).wait()).state is JobState.ERROR
        await Asked(engine, 8).wait()

    pauses = [b - a for a, b in zip(workers.started_at, workers.started_at[1:], strict=False)]
    assert pauses == pytest.approx([RESPAWN_FIRST_SECONDS * 2**n for n in range(7)])


async def test_a_worker_that_lived_long_starts_the_back_off_anew(engine, workers, autojump_clock):
    workers.fail_starts = [LOST] * 5
    async with running(engine):
        await trio.sleep(HEALTHY_SECONDS + 60)
        workers.now.die()
        died_at = trio.current_time()
        await trio.sleep(1)

        assert workers.started_at[-1] - died_at == pytest.approx(RESPAWN_FIRST_SECONDS)


# -- a model that cannot be loaded ------------------------------------------------------------------


async def test_a_start_that_cannot_work_ends_the_engine_and_what_waits(engine, workers, autojump_clock):
    workers.fail_starts = [CANNOT]
    job = Asked(engine, 1)

    with pytest.raises(WorkerStartFailed, match="does not exist"):
        await engine.run()

    assert job.state is JobState.ERROR
    assert "does not exist" in job.updates[-1].detail
    assert len(workers.started_at) == 1, "no respawn loop"
    with pytest.raises(WorkerStartFailed, match="does not exist") as refused:
        Asked(engine, 2)
    assert refused.value.kind == "missing"
    assert refused.value.__cause__ is CANNOT
    with pytest.raises(WorkerStartFailed, match="does not exist"):
        await engine.context_size()
    assert engine.status.phase is Phase.FAILED


TOO_LITTLE = WorkerStartFailed("memory", "too little memory to load model file /model")


@pytest.fixture
def log_lines():
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.mark.parametrize("failures", [[CANNOT], [TOO_LITTLE] * 5, [CANNOT, LOST, TOO_LITTLE]])
async def test_a_respawn_that_fails_for_a_while_costs_a_while(engine, workers, autojump_clock, failures):
    async with running(engine):
        lane = Asked(engine, 1, limit=3000)
        await lane.wait_first()
        workers.fail_starts = list(failures)
        workers.now.die()
        await lane.wait()
        await trio.sleep(60)

        assert (await Asked(engine, 2).wait()).state is JobState.LIMIT
        assert await engine.context_size() == N_CTX
    assert len(workers.started_at) == 2 + len(failures)


async def test_jobs_are_refused_at_once_while_no_worker_can_be_started(engine, workers, autojump_clock):
    async with running(engine):
        lanes = [Asked(engine, number, limit=3000) for number in (1, 2)]
        queued = Asked(engine, 3)
        for lane in lanes:
            await lane.wait_first()
        workers.fail_starts = [TOO_LITTLE] * 3
        workers.load_seconds = 5
        workers.now.die()
        await queued.wait()
        assert queued.state is JobState.ERROR
        assert "too little memory" in queued.updates[-1].detail
        assert engine.status.phase is Phase.UNSTARTABLE
        for _ in range(10):
            with pytest.raises(
                WorkerStartFailed, match=r"too little memory.*tried again by itself"
            ) as refused:
                Asked(engine, 4)
            assert refused.value.kind == "memory"
            assert refused.value.__cause__ is TOO_LITTLE
            await trio.sleep(1)  # in the pauses and inside the attempts


async def test_a_failing_respawn_is_told_once_and_so_is_its_end(engine, workers, autojump_clock, log_lines):
    async with running(engine):
        await wait_all_tasks_blocked()
        workers.fail_starts = [TOO_LITTLE] * 4 + [CANNOT] * 2
        workers.now.die()
        await trio.sleep(300)
        assert engine.status.phase is Phase.READY

    told = [line for line in log_lines if line["event"] == "no worker can be started"]
    assert [line["reason"] for line in told] == [str(TOO_LITTLE), str(CANNOT)]
    assert [line["event"] for line in log_lines].count("a worker could be started again") == 1


async def test_respawns_that_fail_back_off_further(engine, workers, autojump_clock):
    async with running(engine):
        await wait_all_tasks_blocked()
        workers.fail_starts = [CANNOT] * 100
        workers.now.die()
        await trio.sleep(1000)

    pauses = [b - a for a, b in zip(workers.started_at[1:], workers.started_at[2:], strict=False)]
    expected = [
        min(RESPAWN_FIRST_SECONDS * 2**n, UNSTARTABLE_MOST_SECONDS) for n in range(1, len(pauses) + 1)
    ]
    assert pauses == pytest.approx(expected)


async def test_who_asks_shortens_the_back_off_to_that_of_losses(engine, workers, autojump_clock):
    async with running(engine):
        await wait_all_tasks_blocked()
        workers.fail_starts = [CANNOT] * 100
        workers.now.die()
        await trio.sleep(500)
        asked_from = trio.current_time()
        for _ in range(1000):
            with pytest.raises(WorkerStartFailed):
                Asked(engine, 1)
            await trio.sleep(0.1)

    attempts = [at for at in workers.started_at if at > asked_from]
    assert 8 <= len(attempts) <= 100 / RESPAWN_MOST_SECONDS + 1


async def test_a_loss_after_failing_starts_is_not_backed_off_like_them(engine, workers, autojump_clock):
    async with running(engine):
        await wait_all_tasks_blocked()
        workers.fail_starts = [CANNOT] * 12
        workers.now.die()
        for phase in (Phase.UNSTARTABLE, Phase.READY):
            while engine.status.phase is not phase:
                await engine.status.changed.wait()
        workers.now.die()
        died_at = trio.current_time()
        await Asked(engine, 1, limit=1).wait()

        assert workers.started_at[-1] - died_at == pytest.approx(RESPAWN_MOST_SECONDS)


async def test_closing_does_not_wait_for_the_back_off_of_failing_starts(engine, workers, autojump_clock):
    async with running(engine):
        await wait_all_tasks_blocked()
        workers.fail_starts = [CANNOT] * 100
        workers.now.die()
        await trio.sleep(500)
        closing_at = trio.current_time()
    assert trio.current_time() == closing_at


async def test_the_time_to_the_first_token_is_counted_once_a_job(engine, workers, autojump_clock):
    workers.load_seconds = 2
    async with running(engine):
        jobs = [Asked(engine, number, limit=100) for number in range(1, 4)]
        engine.cancel(3)
        for job in jobs:
            await job.wait()

    ttft = engine.statistics.ttft
    assert dict(ttft.cumulative())["1.0"] == 0
    assert dict(ttft.cumulative())["2.5"] == dict(ttft.cumulative())["+Inf"] == 2
    assert 4 < ttft.total < 5


async def test_debug_lines_tell_of_admissions_and_starts(engine, workers, autojump_clock, log_lines):
    async with running(engine):
        await Asked(engine, 1, prompt=30, limit=20).wait()
        await Asked(engine, 2, prompt=30, limit=20).wait()

    admitted = [line for line in log_lines if line["event"] == "admitted"]
    assert [(line["job"], line["warm"], line["cold"]) for line in admitted] == [(1, 0, 30), (2, 29, 1)]
    assert {line["log_level"] for line in admitted} == {"debug"}
    assert "starting a worker" in [line["event"] for line in log_lines]


async def test_whoever_waits_for_the_first_worker_is_told_of_progress_and_end(
    engine, workers, autojump_clock
):
    workers.load_seconds = 5
    assert engine.status.phase is Phase.LOADING
    async with running(engine):
        with trio.fail_after(6):
            assert await engine.context_size() == N_CTX
        assert engine.status.phase is Phase.READY


# -- the end ----------------------------------------------------------------------------------------


async def test_closing_lets_the_jobs_end_first(engine, autojump_clock):
    async with running(engine):
        job = Asked(engine, 1, limit=500)
        await job.wait_first()
        engine.close()
        with pytest.raises(ShuttingDown):
            Asked(engine, 2)
        await job.wait()

    assert job.state is JobState.LIMIT
    assert engine.status.phase is Phase.CLOSED


async def test_closing_does_not_wait_for_the_back_off(engine, workers, autojump_clock):
    workers.fail_starts = [LOST] * 12
    async with running(engine):
        await trio.sleep(20)
        closing_at = trio.current_time()
    assert trio.current_time() == closing_at
    assert engine.status.phase is Phase.CLOSED


async def test_closing_tells_who_waits_for_the_first_worker(engine, workers, autojump_clock):
    workers.load_seconds = 1000
    told_at = []

    async def wait() -> None:
        with pytest.raises(ShuttingDown):
            await engine.context_size()
        told_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        nursery.start_soon(wait)
        await trio.sleep(5)
        closed_at = trio.current_time()
        engine.close()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert told_at == [closed_at]


async def test_the_queue_has_its_bound(engine, monkeypatch, autojump_clock):
    monkeypatch.setattr("superfluid.core.schedule.MAX_QUEUED_GENERATIONS", 3)
    async with running(engine):
        asked = [Asked(engine, number) for number in range(1, 4)]
        with pytest.raises(TooManyInFlight):
            Asked(engine, 4)
        for job in asked:
            assert (await job.wait()).state is JobState.LIMIT
