"""Park files over the link, with the real worker process: sealed, fetched, and answered at any time."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from superfluid.core.errors import InternalError, WorkerLost
from superfluid.core.plan import Plan
from superfluid.worker.link import WorkerLink
from superfluid.worker.messages import Fetch, Filed, Seal
from tests.worker.builders import PROMPT_A, PROMPT_B, admit, clear, drop, fresh, ids, load, restore, save

pytestmark = pytest.mark.slow  # every test starts a process that imports the engine

FAKE = str(Path(__file__).with_name("fake_worker.py"))
NAMES = {"identity": "tiny", "digest": b"d" * 32, "positions": len(PROMPT_A)}
RUN_A = Plan(id=1, admit=(admit(1, 0, PROMPT_A, limit=1),), prefill=((1, 100),))


class Answers:
    """What came to ``on_filed``, and a way to wait for it."""

    def __init__(self):
        self.all: list[Filed] = []
        self._came = trio.lowlevel.ParkingLot()

    def __call__(self, filed):
        self.all.append(filed)
        self._came.unpark_all()

    async def wait(self, count):
        with trio.fail_after(20):
            while len(self.all) < count:
                await self._came.park()
        return self.all


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
async def link(endless_model, answers, nursery):
    link = await WorkerLink.start(load(endless_model, n_ctx=4096), on_filed=answers)
    yield link
    await link.aclose()


def seal(ticket, entry, path, **changes):
    return Seal(ticket=ticket, entry=entry, path=str(path), **NAMES | changes)


def fetch(ticket, entry, path, **changes):
    return Fetch(ticket=ticket, entry=entry, path=str(path), **NAMES | changes)


async def test_a_session_goes_on_in_another_worker(link, answers, nursery, endless_model, tmp_path):
    """An idle link delivers, and what was dropped right behind the seal is in the file."""
    path = tmp_path / "park" / "s.park"
    await link.run(RUN_A)
    saved = await link.run(Plan(id=2, moves=(save(0, 7, 60),)))
    link.seal_nowait(seal(11, 7, path))
    await link.run(Plan(id=3, moves=(drop(7), clear(0))))
    nursery.start_soon(link.wait_lost)
    await answers.wait(1)

    later = Answers()
    successor = await WorkerLink.start(load(endless_model, n_ctx=4096), on_filed=later)
    nursery.start_soon(successor.wait_lost)
    successor.fetch_nowait(fetch(12, 8, path))
    await later.wait(1)
    go_on = admit(1, 3, [9, 8, 7], start=60, limit=10)
    result = await successor.run(
        Plan(id=1, moves=(restore(8, 3, 60),), admit=(go_on,), prefill=((1, 3),), decode_rounds=9)
    )
    await successor.aclose()

    assert answers.all == [Filed(ticket=11, ok=True, size=path.stat().st_size)]
    assert later.all == [Filed(ticket=12, ok=True, size=saved.saved[0][2])]
    assert result.prefill_rows == 3
    assert ids(result, 1) == fresh(endless_model, [*PROMPT_A, 9, 8, 7], limit=10)


async def test_answers_come_while_a_plan_runs(link, answers, tmp_path):
    await link.run(RUN_A)
    await link.run(Plan(id=2, moves=(save(0, 7, 60),)))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _file():
            await trio.testing.wait_all_tasks_blocked()
            link.seal_nowait(seal(1, 7, tmp_path / "s.park"))
            await answers.wait(1)
            link.fetch_nowait(fetch(2, 9, tmp_path / "none.park"))
            await answers.wait(2)
            link.interrupt_nowait()

        long = admit(2, 1, PROMPT_B, limit=4000)
        result = await link.run(Plan(id=3, admit=(long,), prefill=((2, 99),), decode_rounds=4000))

    assert result.interrupted
    assert [(filed.ticket, filed.ok) for filed in answers.all] == [(1, True), (2, False)]
    assert "No such file" in answers.all[1].detail


async def test_a_plan_runs_while_another_task_reads_the_link(link, answers, nursery, tmp_path):
    for _ in range(3):
        nursery.start_soon(link.wait_lost)
    await trio.testing.wait_all_tasks_blocked()

    first = await link.run(RUN_A)
    await link.run(Plan(id=2, moves=(save(0, 7, 60),)))
    link.seal_nowait(seal(1, 7, tmp_path / "s.park"))
    await answers.wait(1)

    assert len(ids(first, 1)) == 1
    assert answers.all[0].ok


async def test_a_reader_that_is_cancelled_leaves_its_place_to_another(link, answers, nursery, tmp_path):
    await link.run(RUN_A)
    await link.run(Plan(id=2, moves=(save(0, 7, 60),)))
    async with trio.open_nursery() as first:
        first.start_soon(link.wait_lost)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(link.wait_lost)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel_scope.cancel()

    link.seal_nowait(seal(1, 7, tmp_path / "s.park"))
    await answers.wait(1)

    assert answers.all[0].ok


async def test_a_request_that_cannot_be_served_does_not_cost_the_worker(link, answers, nursery, tmp_path):
    nursery.start_soon(link.wait_lost)
    (tmp_path / "bad.park").write_bytes(b"garbage" * 1000)

    link.seal_nowait(seal(1, 99, tmp_path / "s.park"))
    link.fetch_nowait(fetch(2, 5, tmp_path / "bad.park"))
    link.fetch_nowait(fetch(3, 6, tmp_path))
    await answers.wait(3)
    result = await link.run(Plan(id=1, moves=(restore(5, 0, 60), restore(6, 1, 60))))

    assert {filed.ticket: filed.ok for filed in answers.all} == {1: False, 2: False, 3: False}
    assert result.positions == ((0, 0), (1, 0))


async def test_a_ticket_is_out_once(link, tmp_path):
    link.fetch_nowait(fetch(1, 5, tmp_path / "a"))

    with pytest.raises(InternalError, match="ticket 1"):
        link.fetch_nowait(fetch(1, 6, tmp_path / "b"))


async def test_a_lost_worker_takes_requests_and_answers_none(link, answers, tmp_path):
    os.kill(link.pid, signal.SIGKILL)
    assert "SIGKILL" in await link.wait_lost()

    link.seal_nowait(seal(1, 7, tmp_path / "s.park"))
    link.fetch_nowait(fetch(1, 7, tmp_path / "s.park"))

    assert answers.all == []


async def test_a_worker_stopped_while_it_owes_a_file_is_lost(link, tmp_path):
    os.kill(link.pid, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _ask():
            await trio.testing.wait_all_tasks_blocked()
            link.fetch_nowait(fetch(1, 7, tmp_path / "s.park"))

        with trio.fail_after(5):
            assert "is stopped" in await link.wait_lost()


@pytest.mark.parametrize(
    "mode", ["filed-unasked", "filed-absurd", "filed-failed-with-bytes", "result-unasked"]
)
async def test_an_answer_that_nobody_asked_for_is_garbage(mode):
    link = await WorkerLink.start(load("/none"), command=(sys.executable, FAKE, mode))
    try:
        link.fetch_nowait(fetch(1, 7, "/none"))
        with trio.fail_after(10):
            assert "garbage" in await link.wait_lost()
        assert link._child.exit_code == -signal.SIGKILL
        with pytest.raises(WorkerLost, match="garbage"):
            await link.run(Plan(id=1))
    finally:
        await link.aclose()
