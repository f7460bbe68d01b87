"""The engine with park files, over the simulated worker: when they are sealed and read, and what a failure costs."""

from array import array
from contextlib import asynccontextmanager

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core.plan import JobState
from superfluid.core.schedule import Job, Options
from superfluid.sched import engine as engine_module
from superfluid.sched.engine import Engine, Phase
from superfluid.sched.parkfiles import ParkFiles
from superfluid.worker.messages import Fetch, Load, Seal
from tests.daemon import GREEDY
from tests.sched.asking import Asked as _Asked
from tests.sched.simulated_worker import N_CTX, SimulatedWorkers

SESSION = 7
PROMPT = list(range(200))
WHOLE = list(range(220))
"""The session after its first reply: tokens of the simulated worker are their own positions."""


@pytest.fixture
def workers(monkeypatch):
    workers = SimulatedWorkers()
    monkeypatch.setattr(engine_module, "WorkerLink", workers)
    return workers


class Daemon:
    """An engine with a directory of park files, and the sessions that it can ask for."""

    def __init__(self, directory, workers, **changes):
        self.workers = workers
        self.files = ParkFiles(directory, lossy=False)
        options = Options(lanes=2, kept=2, host_bytes=1 << 20, park=True, **changes)
        self.engine = Engine(Load(model_path="/model", n_ctx=N_CTX, n_seq=4), options, park=self.files)
        self.sessions = {}

    @asynccontextmanager
    async def running(self, *, model="digest"):
        """The engine runs inside, and is closed behind."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.run)
            self.engine.identify(model, self.sessions.get)
            try:
                yield self
            except BaseException:
                nursery.cancel_scope.cancel()
                raise
            self.engine.close()

    def ask(self, number, prompt=PROMPT, limit=20, session=SESSION):
        return Asked(self.engine, number, prompt, limit, session)

    @property
    def worker(self):
        return self.workers.now

    async def ready(self):
        """The files of earlier daemons have been looked at."""
        while self.engine.status.phase is not Phase.READY:
            await self.engine.status.changed.wait()

    async def replaced(self):
        """The worker dies, and its successor is ready."""
        self.worker.die()
        while self.engine.status.phase is Phase.READY:
            await self.engine.status.changed.wait()
        await self.ready()

    async def filing(self):
        """The request for a file that the worker has got."""
        with trio.fail_after(60):
            while not (self.workers.links and self.worker.filings):
                await self.workers.changed.wait()
        return self.worker.filings[0]

    def started(self, job):
        """Where each admission of a job began, over all workers."""
        plans = [plan for link in self.workers.links for plan in link.plans]
        return [admit.start for plan in plans for admit in plan.admit if admit.job == job]


class Asked(_Asked):
    def __init__(self, engine, number, prompt, limit, session):
        self.updates = []
        self.begun, self.ended = trio.Event(), trio.Event()
        job = Job(id=number, prompt=array("I", prompt), params=GREEDY, limit=limit, session=session)
        engine.submit(job, self.take)


@pytest.fixture
def log_lines():
    with structlog.testing.capture_logs() as lines:
        yield lines


async def park_one(directory, workers):
    """A daemon that sealed a session and ended."""
    daemon = Daemon(directory, workers)
    async with daemon.running():
        await daemon.ask(1).wait()
        assert isinstance(await daemon.filing(), Seal)
        daemon.worker.file()
    assert daemon.files.path(SESSION).exists()


@pytest.fixture
async def parked(tmp_path, workers, autojump_clock):
    """A new daemon beside the file of an earlier one."""
    await park_one(tmp_path, workers)
    workers.links.clear()
    daemon = Daemon(tmp_path, workers)
    daemon.sessions[SESSION] = array("I", WHOLE)
    return daemon


# -- sealing ----------------------------------------------------------------------------------------


async def test_a_session_is_sealed_behind_its_reply(tmp_path, workers, autojump_clock):
    daemon = Daemon(tmp_path, workers)
    async with daemon.running():
        asked = await daemon.ask(1).wait()
        assert asked.state is JobState.LIMIT, "the reply does not wait for the file"
        seal = await daemon.filing()
        assert daemon.engine.where(SESSION, array("I", WHOLE))[0] == "pool"
        daemon.worker.file()
        assert daemon.engine.statistics.parks == 1
        assert daemon.engine.gauges()["park_bytes"] == 219
        await wait_all_tasks_blocked()
        assert daemon.engine.gauges()["host_bytes"] == 0

    assert (seal.positions, seal.path) == (219, str(daemon.files.path(SESSION)))
    assert daemon.worker.host == {}


async def test_a_file_that_could_not_be_written_costs_a_line_in_the_log(
    tmp_path, workers, autojump_clock, log_lines
):
    daemon = Daemon(tmp_path, workers)
    async with daemon.running():
        await daemon.ask(1).wait()
        await daemon.filing()
        daemon.worker.file(ok=False)
        assert (await daemon.ask(2, [*WHOLE, 220]).wait()).state is JobState.LIMIT
        await daemon.filing()
        daemon.worker.file()

    assert daemon.engine.statistics.parks == 1
    (line,) = [line for line in log_lines if line["log_level"] == "warning"]
    assert line["reason"] == "as told"


async def test_the_engine_closes_behind_the_files_that_are_being_written(tmp_path, workers, autojump_clock):
    daemon = Daemon(tmp_path, workers)
    async with daemon.running():
        await daemon.ask(1).wait()
        await daemon.filing()
        daemon.engine.close()
        await wait_all_tasks_blocked()
        assert not daemon.worker.closed
        daemon.worker.file()

    assert daemon.worker.closed
    assert daemon.files.path(SESSION).exists()


async def test_a_worker_that_is_lost_while_it_writes_is_not_waited_for(tmp_path, workers, autojump_clock):
    daemon = Daemon(tmp_path, workers)
    async with daemon.running():
        await daemon.ask(1).wait()
        await daemon.filing()
        daemon.worker.die()
        assert (await daemon.ask(2, session=0).wait()).state is JobState.LIMIT

    assert len(workers.links) == 2
    assert daemon.engine.gauges()["park_bytes"] == 0


# -- reading ----------------------------------------------------------------------------------------


async def test_a_session_of_an_earlier_daemon_is_read_before_its_job_is_admitted(parked):
    async with parked.running():
        asked = parked.ask(2, [*WHOLE, 220])
        assert isinstance(await parked.filing(), Fetch)
        assert parked.engine.where(SESSION, array("I", WHOLE)) == ("park", 219, 0)
        assert parked.started(2) == []
        parked.worker.file()
        await asked.wait()
        parked_again = await parked.filing()
        parked.worker.file()

    assert parked.started(2) == [219]
    assert asked.tokens == list(range(221, 241))
    assert asked.updates[-1].warm == 219
    assert parked.engine.statistics.resumes == {"pool": 0, "host": 0, "park": 1}
    assert isinstance(parked_again, Seal)


async def test_a_file_that_turns_out_to_be_of_no_use_costs_its_prefill(parked, log_lines):
    async with parked.running():
        asked = parked.ask(2, [*WHOLE, 220], session=0)
        await parked.filing()
        parked.worker.file(ok=False)
        await asked.wait()

    assert parked.started(2) == [0]
    assert asked.state is JobState.LIMIT
    assert asked.tokens == list(range(221, 241))
    assert "a park file was not written or not used" in [line["event"] for line in log_lines]


async def test_a_worker_that_is_lost_while_it_reads_costs_nothing_but_time(parked):
    async with parked.running():
        asked = parked.ask(2, [*WHOLE, 220], session=0)
        await parked.filing()
        parked.worker.die()
        while len(parked.workers.links) < 2:
            await parked.workers.changed.wait()
        assert isinstance(await parked.filing(), Fetch)
        parked.worker.file()
        await asked.wait()

    assert asked.state is JobState.LIMIT
    assert parked.started(2) == [219]


async def test_a_job_that_leaves_while_its_file_is_read_is_never_computed(parked):
    async with parked.running():
        asked = parked.ask(2, [*WHOLE, 220])
        await parked.filing()
        parked.engine.cancel(2)
        assert asked.state is JobState.CANCELLED
        parked.worker.file()
        await wait_all_tasks_blocked()

    assert parked.started(2) == []


async def test_closing_waits_for_a_job_whose_file_is_read(parked):
    async with parked.running():
        asked = parked.ask(2, [*WHOLE, 220], session=0)
        await parked.filing()
        parked.engine.close()
        await wait_all_tasks_blocked()
        parked.worker.file()

    assert asked.state is JobState.LIMIT


async def test_closing_ends_when_the_last_job_that_waits_is_cancelled(parked):
    async with parked.running():
        parked.ask(2, [*WHOLE, 220])
        await parked.filing()
        parked.engine.close()
        await wait_all_tasks_blocked()
        parked.engine.cancel(2)

    assert parked.worker.closed


@pytest.mark.parametrize(
    ("model", "stream"),
    [("other", WHOLE), ("digest", [9, *WHOLE[1:]]), ("digest", WHOLE[:50])],
    ids=["another model", "a rewritten history", "a shorter session"],
)
async def test_a_file_that_does_not_fit_is_a_clean_miss(parked, model, stream):
    """Field case F22: state that was written under one model was offered to another. The file counts all the same: it
    takes room."""
    parked.sessions[SESSION] = array("I", stream)
    size = parked.files.path(SESSION).stat().st_size
    async with parked.running(model=model):
        await parked.ask(2, [*WHOLE, 220], session=0).wait()
        assert parked.engine.gauges()["park_bytes"] == size

    assert parked.started(2) == [0]
    assert parked.worker.filings == []
    assert parked.files.path(SESSION).exists()


async def test_the_file_of_a_session_that_is_gone_is_removed(parked):
    parked.sessions.clear()
    async with parked.running():
        await parked.ready()
        await wait_all_tasks_blocked()

    assert not parked.files.path(SESSION).exists()
    assert parked.engine.gauges()["park_bytes"] == 0


async def test_a_file_that_is_longer_than_the_context_is_not_read(parked, monkeypatch):
    """The context's size follows the memory that is free at the start: it may fit another time."""
    monkeypatch.setattr("tests.sched.simulated_worker.N_CTX", 218)
    async with parked.running():
        await parked.ask(2, [*WHOLE[:210], 9], session=0).wait()

    assert parked.started(2) == [0]
    assert parked.files.path(SESSION).exists()


async def test_a_file_of_a_context_of_another_size_and_padding_is_read(parked):
    load = Load(model_path="/model", n_ctx=N_CTX * 2, n_seq=4, exact_rows=8)
    parked.engine.configure(load, exact=False, invariant=False)
    async with parked.running():
        asked = parked.ask(2, [*WHOLE, 220], session=0)
        await parked.filing()
        parked.worker.file()
        await asked.wait()

    assert parked.started(2) == [219]


async def test_files_that_cannot_be_used_go_first(tmp_path, workers, autojump_clock):
    await park_one(tmp_path, workers)
    workers.links.clear()
    daemon = Daemon(tmp_path, workers, park_bytes=600)
    daemon.sessions[SESSION] = array("I", WHOLE)
    async with daemon.running(model="other"):
        await daemon.ready()
        for session in (8, 9):
            await daemon.ask(session, session=session).wait()
            await daemon.filing()
            daemon.worker.file()

    left = [session for session in (SESSION, 8, 9) if daemon.files.path(session).exists()]
    assert left == [8, 9]


# -- the next worker --------------------------------------------------------------------------------


async def test_what_a_lost_worker_left_unfinished_is_swept(parked):
    leftover = parked.files.directory / f"{SESSION}.park.99-1.tmp"
    async with parked.running():
        await parked.ready()
        leftover.write_text("x")
        await parked.replaced()

    assert not leftover.exists()


async def test_a_worker_of_another_build_reads_none_of_the_files_before_it(parked):
    async with parked.running():
        await parked.ready()
        parked.workers.settings = "a newer library"
        await parked.replaced()
        await parked.ask(2, [*WHOLE, 220], session=SESSION).wait()
        seal = await parked.filing()
        parked.worker.file()
        assert parked.engine.gauges()["park_bytes"] == seal.positions

    assert parked.started(2) == [0]
    assert "a newer library" in seal.identity


async def test_nor_does_it_miss_those_of_its_own(parked):
    """The library was replaced, and put back while the daemon ran."""
    async with parked.running():
        await parked.ready()
        parked.workers.settings = "a newer library"
        await parked.replaced()
        parked.workers.settings = "none"
        await parked.replaced()
        asked = parked.ask(2, [*WHOLE, 220], session=0)
        assert isinstance(await parked.filing(), Fetch)
        parked.worker.file()
        await asked.wait()

    assert parked.started(2) == [219]


async def test_what_has_to_go_is_gone_before_the_next_worker_looks(parked):
    async with parked.running():
        await parked.ready()
        parked.engine._scheduler.parking.remove(SESSION)
        parked.workers.settings = "a newer library"
        await parked.replaced()
        assert parked.engine.gauges()["park_bytes"] == 0

    assert not parked.files.path(SESSION).exists()


async def test_a_directory_that_cannot_be_used_is_no_reason_not_to_serve(
    tmp_path, workers, autojump_clock, log_lines
):
    (tmp_path / "park").write_text("in the way")
    daemon = Daemon(tmp_path / "park", workers)
    async with daemon.running():
        assert (await daemon.ask(1, session=0).wait()).state is JobState.LIMIT

    assert "park files cannot be used" in [line["event"] for line in log_lines]


async def test_an_engine_that_never_learns_its_model_closes(tmp_path, workers, autojump_clock):
    daemon = Daemon(tmp_path, workers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(daemon.engine.run)
        await trio.sleep(1)
        daemon.engine.close()

    assert list(tmp_path.iterdir()) == []


# -- files that go ----------------------------------------------------------------------------------


async def test_a_job_that_comes_while_a_file_is_removed_is_not_forgotten(parked, monkeypatch):
    """Removing takes a thread and a while, in which nobody waits for work."""
    removing = trio.Event()

    async def slowly(function):
        removing.set()
        await trio.sleep(1)
        function()

    async with parked.running():
        await parked.ready()
        monkeypatch.setattr(trio.to_thread, "run_sync", slowly)
        parked.engine._scheduler.parking.remove(SESSION)
        parked.engine.set_background_rate(1)  # wakes it
        await removing.wait()
        asked = parked.ask(2, session=0)
        with trio.fail_after(30):
            await asked.wait()

    assert not parked.files.path(SESSION).exists()


async def test_a_file_that_cannot_be_removed_costs_a_line_in_the_log(parked, monkeypatch, log_lines):
    def refuse(_order):
        raise PermissionError(1, "Operation not permitted")

    async with parked.running():
        await parked.ready()
        monkeypatch.setattr(parked.files, "remove", refuse)
        parked.engine._scheduler.parking.remove(SESSION)
        await parked.ask(2, session=0).wait()

    (line,) = [line for line in log_lines if line["event"] == "a park file stays"]
    assert line["reason"] == "Operation not permitted"
