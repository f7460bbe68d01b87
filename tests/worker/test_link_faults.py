"""Whatever a worker does wrong ends as one of two errors, with its process gone."""

import signal
import sys
from pathlib import Path

import pytest
import trio

from superfluid.core.errors import WorkerLost, WorkerStartFailed
from superfluid.core.liveness import Watch
from superfluid.core.plan import Plan, Result
from superfluid.worker.link import WorkerLink
from tests.worker.builders import load

pytestmark = pytest.mark.slow  # every test starts a process

FAKE = str(Path(__file__).with_name("fake_worker.py"))


async def start(mode, **options):
    return await WorkerLink.start(load("/none"), command=(sys.executable, FAKE, mode), **options)


@pytest.mark.parametrize(
    "mode", ["noise", "giant", "zero-length", "wrong-kind", "other-plan", "impossible-cell"]
)
async def test_garbage_for_a_result_is_a_lost_worker(mode):
    link = await start(mode)
    try:
        with trio.fail_after(5), pytest.raises(WorkerLost, match="garbage"):
            await link.run(Plan(id=1))
        assert link._child.exit_code == -signal.SIGKILL
        with pytest.raises(WorkerLost, match="garbage"):
            await link.run(Plan(id=2))
    finally:
        await link.aclose()


async def test_a_worker_that_exits_is_lost_with_its_last_words():
    link = await start("exits")
    try:
        with pytest.raises(WorkerLost, match=r"exit code 7 \(the reason of it\)"):
            await link.run(Plan(id=1))
    finally:
        await link.aclose()


async def test_a_worker_that_says_more_than_the_pipe_holds_goes_on():
    link = await start("chatty")
    try:
        assert (await link.run(Plan(id=1))).plan_id == 1
    finally:
        await link.aclose()


@pytest.mark.parametrize("mode", ["nothing", "half-a-frame"])
async def test_a_worker_that_never_answers_is_lost_when_it_is_silent(mode, monkeypatch):
    # The decision itself is tested on samples; here the real time would be half a minute.
    monkeypatch.setattr("superfluid.core.liveness.WORKER_SILENT_SECONDS", 0.5)
    link = await start(mode)
    try:
        with trio.fail_after(10), pytest.raises(WorkerLost, match="no CPU time"):
            await link.run(Plan(id=1))
    finally:
        await link.aclose()


async def test_a_worker_deaf_to_everything_is_killed_by_close(monkeypatch):
    monkeypatch.setattr("superfluid.worker.link.WORKER_CLOSE_SECONDS", 0.3)
    link = await start("deaf")

    await link.aclose()

    assert link._child.exit_code == -signal.SIGKILL


async def test_a_failure_to_load_comes_through():
    with pytest.raises(WorkerStartFailed, match="too little of it") as failed:
        await start("fails")
    assert failed.value.kind == "memory"


async def test_a_crash_while_loading_is_a_failure_to_start():
    with pytest.raises(WorkerStartFailed, match=r"SIGABRT.*assertion failed") as failed:
        await start("aborts-loading")
    assert failed.value.kind == "engine"


async def test_a_program_that_is_no_worker_is_a_failure_to_start():
    with pytest.raises(WorkerStartFailed, match="exit code 3"):
        await WorkerLink.start(load("/none"), command=(sys.executable, "-c", "raise SystemExit(3)"))


async def test_a_program_that_is_not_there_is_a_lost_worker():
    with pytest.raises(WorkerLost, match="could not be started"):
        await WorkerLink.start(load("/none"), command=("/none/at/all",))


async def test_a_kill_while_loading_is_a_lost_worker():
    seen = []
    with pytest.raises(WorkerLost, match="SIGKILL"):
        await start("killed-loading", on_progress=seen.append)
    assert seen == [0.5]


async def test_a_worker_stopped_while_loading_is_lost():
    with trio.fail_after(5), pytest.raises(WorkerLost, match="stopped"):
        await start("stopped-loading")


async def test_a_worker_that_makes_no_progress_is_given_up():
    with pytest.raises(WorkerStartFailed, match="no progress") as failed:
        await start("slow", ready_timeout=0.3)
    assert failed.value.kind == "timeout"


@pytest.mark.parametrize("mode", ["noise-for-ready", "result-for-ready"])
async def test_garbage_for_the_handshake_is_a_lost_worker(mode):
    with pytest.raises(WorkerLost, match="garbage"):
        await start(mode)


async def test_a_probe_gives_its_record_and_is_gone():
    seen = []
    command = (sys.executable, FAKE, "probes")

    assert (
        await WorkerLink.probe(load("/none", probe="exact"), command=command, on_progress=seen.append) == "{}"
    )
    assert seen == [0.5]


@pytest.mark.parametrize(("mode", "start"), [("nothing", WorkerLink.probe), ("probes", WorkerLink.start)])
async def test_a_probe_that_serves_and_a_server_that_probes_are_lost(mode, start):
    with pytest.raises(WorkerLost, match="garbage"):
        await start(load("/none"), command=(sys.executable, FAKE, mode))


async def test_a_cancelled_start_leaves_no_process(monkeypatch):
    started = []
    send = WorkerLink._send

    def note(self, message):
        started.append(self)
        send(self, message)

    monkeypatch.setattr(WorkerLink, "_send", note)
    with trio.move_on_after(0.2) as scope:
        await start("slow")

    assert scope.cancelled_caught
    assert started[0]._child.exit_code == -signal.SIGKILL


async def test_a_result_that_a_worker_left_before_it_ended_is_not_lost():
    """On a busy machine it may be looked at after its end and before its last bytes are read."""
    link = await start("last-words")
    try:
        link._send(Plan(id=1))
        await link._child.wait_ended()

        await link._look(Watch(), trio.current_time())
        assert await link._receive() == Result(plan_id=1, jobs=(), positions=())
        assert await link.wait_lost() == "the worker ended with exit code 0"
    finally:
        await link.aclose()
