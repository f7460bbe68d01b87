"""The daemon's end of the link with the real worker process on tiny models."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
import trio
import trio.testing

from superfluid.core.errors import InternalError, WorkerLost, WorkerStartFailed
from superfluid.core.plan import JobState, Plan
from superfluid.worker import codec
from superfluid.worker.engine import Engine
from superfluid.worker.link import WORKER_COMMAND, WorkerLink
from superfluid.worker.main import EXIT_CANNOT_START, PROCESS_NAME
from superfluid.worker.messages import Failed
from tests.worker.builders import PROMPT_A, PROMPT_B, admit, clear, ids, line, load, reply

pytestmark = pytest.mark.slow  # every test starts a process that imports the engine


@pytest.fixture
async def link(endless_model):
    link = await WorkerLink.start(load(endless_model, n_ctx=4096))
    yield link
    await link.aclose()


def both(plan_id=1, **changes):
    return Plan(
        id=plan_id,
        admit=(admit(1, 0, PROMPT_A, limit=4000), admit(2, 1, PROMPT_B, limit=4000)),
        prefill=((1, 100), (2, 100)),
        **changes,
    )


LONG = both(decode_rounds=4000)
"""Seconds of work on a tiny model: whatever is done to it meanwhile lands in the middle of it."""


# -- the honest way ---------------------------------------------------------------------------------


async def test_a_worker_answers_as_the_engine_does(link, endless_model):
    result = await link.run(both(decode_rounds=9))

    engine = Engine.open(load(endless_model, n_ctx=4096))
    try:
        assert ids(result, 1) == reply(engine, 1, 0, PROMPT_A, limit=10)
        assert ids(result, 2) == reply(engine, 2, 1, PROMPT_B, limit=10)
        assert link.ready == engine.ready
    finally:
        engine.close()


async def test_a_worker_is_known_by_its_command_line_and_process_group(link):
    arguments = (await trio.Path(f"/proc/{link.pid}/cmdline").read_bytes()).split(b"\0")

    assert PROCESS_NAME.encode() in arguments
    assert os.getpgid(link.pid) == os.getpgid(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_process_group_does_not_end_a_worker(link, number):
    os.kill(link.pid, number)

    assert len(ids(await link.run(both()), 1)) == 1


async def test_a_cancel_ends_its_job_at_the_next_step(link):
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _cancel():
            await trio.testing.wait_all_tasks_blocked()
            link.cancel_nowait(1)

        result = await link.run(LONG)
    rest = await link.run(Plan(id=2, prefill=((2, 100),), decode_rounds=2))

    assert line(result, 1).state is JobState.CANCELLED
    assert [entry.job for entry in rest.jobs] == [2]


async def test_an_interrupt_ends_the_plan_in_flight_and_only_that(link):
    link.interrupt_nowait()  # there is none: nothing is sent
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _interrupt():
            await trio.testing.wait_all_tasks_blocked()
            link.interrupt_nowait()

        result = await link.run(LONG)
    rest = await link.run(Plan(id=2, prefill=((1, 100), (2, 100)), decode_rounds=2))

    assert result.interrupted
    assert {entry.state for entry in result.jobs} == {JobState.RUNNING}
    assert (rest.interrupted, rest.decode_steps) == (False, 2)


async def test_a_plan_larger_than_the_sockets_buffer_arrives(link):
    moves = tuple(clear(index % 6) for index in range(60_000))

    result = await link.run(Plan(id=1, moves=moves))

    assert result.positions == tuple((seq, 0) for seq in range(6))


async def test_one_plan_at_a_time(link):
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _second():
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(InternalError, match="one plan"):
                await link.run(Plan(id=2))
            link.interrupt_nowait()

        await link.run(LONG)


async def test_progress_is_reported_while_the_model_loads(endless_model):
    seen = []
    link = await WorkerLink.start(load(endless_model), on_progress=seen.append)
    await link.aclose()

    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


async def test_closing_ends_the_process_and_later_plans_are_lost(endless_model):
    link = await WorkerLink.start(load(endless_model))
    await link.aclose()
    await link.aclose()

    assert link._child.exit_code == 0
    assert link.lost == await link.wait_lost() == "the worker was closed"
    link.cancel_nowait(1)
    with pytest.raises(WorkerLost, match="closed"):
        await link.run(Plan(id=1))


async def test_closing_in_the_middle_of_a_plan_tells_its_waiter(endless_model):
    link = await WorkerLink.start(load(endless_model, n_ctx=4096))
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _close():
            await trio.testing.wait_all_tasks_blocked()
            await link.aclose()

        with contextlib.suppress(WorkerLost):  # its last words may come before its end is seen
            assert (await link.run(LONG)).interrupted

    assert link._child.ended


async def test_a_cancelled_run_gives_the_worker_up(link):
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _cancel():
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()

            await link.run(LONG)

    assert scope.cancelled_caught
    assert link._child.exit_code == -signal.SIGKILL
    with pytest.raises(WorkerLost, match="given up"):
        await link.run(Plan(id=2))


def test_a_worker_is_not_started_from_a_helper_thread(endless_model):
    """Its parent-death signal would come when that thread ends."""
    raised = []

    def start():
        try:
            trio.run(WorkerLink.start, load(endless_model))
        except InternalError as error:
            raised.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    assert raised == ["a worker must be started from the main thread"]


# -- lost -------------------------------------------------------------------------------------------


async def test_a_worker_killed_while_idle_is_noticed_by_who_waits(link):
    async with trio.open_nursery() as nursery:
        for _ in range(2):

            @nursery.start_soon
            async def _wait():
                assert await link.wait_lost() == "the worker was killed by SIGKILL"

        await trio.testing.wait_all_tasks_blocked()
        os.kill(link.pid, signal.SIGKILL)

    with pytest.raises(WorkerLost, match="SIGKILL"):
        await link.run(Plan(id=1))


async def test_a_worker_killed_while_idle_is_noticed_by_the_next_plan(link):
    os.kill(link.pid, signal.SIGKILL)

    with pytest.raises(WorkerLost, match="SIGKILL"):
        await link.run(Plan(id=1))


async def test_a_worker_killed_in_the_middle_of_a_plan_is_lost_at_once(link):
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _kill():
            await trio.testing.wait_all_tasks_blocked()
            os.kill(link.pid, signal.SIGKILL)

        with trio.fail_after(2), pytest.raises(WorkerLost, match="SIGKILL"):
            await link.run(LONG)

    assert link._child.ended


async def test_a_stopped_worker_is_lost_and_killed(link):
    os.kill(link.pid, signal.SIGSTOP)

    with trio.fail_after(5), pytest.raises(WorkerLost, match="stopped"):
        await link.run(LONG)

    assert link._child.exit_code == -signal.SIGKILL


async def test_a_stopped_worker_does_not_hold_up_a_large_plan(link):
    os.kill(link.pid, signal.SIGSTOP)
    moves = tuple(clear(index % 6) for index in range(60_000))

    with trio.fail_after(5), pytest.raises(WorkerLost, match="stopped"):
        await link.run(Plan(id=1, moves=moves))


async def test_a_plan_that_contradicts_itself_costs_the_worker_and_says_why(link):
    with pytest.raises(WorkerLost, match="PlanError: a move names a sequence"):
        await link.run(Plan(id=1, moves=(clear(6),)))


async def test_a_worker_ends_when_the_link_does(endless_model):
    """Also without the parent-death signal: the daemon lives on here."""
    link = await WorkerLink.start(load(endless_model, n_ctx=4096))
    link._send(LONG)
    link._child.sock.shutdown(socket.SHUT_WR)

    with trio.fail_after(5):
        await link._child.wait_ended()
    assert link._child.exit_code == 0
    await link.aclose()


DAEMON = """
import sys, trio, trio.testing
from superfluid.worker.link import WorkerLink
from tests.worker.builders import load
from tests.worker.test_link import LONG

async def main():
    link = await WorkerLink.start(load(sys.argv[1], n_ctx=4096))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, LONG)
        await trio.testing.wait_all_tasks_blocked()
        print(link.pid, flush=True)

trio.run(main)
"""


async def test_a_killed_daemon_leaves_no_worker_behind(endless_model):
    daemon = subprocess.Popen(  # noqa: ASYNC220 - as the daemon starts its workers, and for the same reason
        [sys.executable, "-c", DAEMON, endless_model], stdout=subprocess.PIPE, text=True
    )
    with daemon:
        assert daemon.stdout is not None
        pidfd = os.pidfd_open(int(await trio.to_thread.run_sync(daemon.stdout.readline)))
        daemon.kill()
        try:
            with trio.fail_after(5):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


# -- cannot start -----------------------------------------------------------------------------------


def cut_in_half(path, model):
    path.write_bytes(model.read_bytes()[: model.stat().st_size // 2])


def cut_in_the_head(path, model):
    path.write_bytes(model.read_bytes()[:3000])


BAD_FILES = {
    "missing": ("missing", lambda _path, _model: None),
    "a directory": ("not-a-file", lambda path, _model: path.mkdir()),
    "a fifo": ("not-a-file", lambda path, _model: os.mkfifo(path)),
    "0 bytes": ("empty", lambda path, _model: path.touch()),
    "half a file": ("truncated", cut_in_half),
    "half a head": ("truncated", cut_in_the_head),
    "no GGUF": ("not-gguf", lambda path, _model: path.write_text("<html>not found</html>")),
    "a git-lfs pointer": (
        "pointer",
        lambda path, _model: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
async def test_a_file_that_is_no_model_is_named_with_its_cause(tmp_path, endless_model, case):
    kind, make = BAD_FILES[case]
    path = tmp_path / "model.gguf"
    make(path, endless_model)

    with trio.fail_after(5), pytest.raises(WorkerStartFailed, match=r"model\.gguf") as failed:
        await WorkerLink.start(load(path))
    assert failed.value.kind == kind


async def test_a_context_that_does_not_fit_is_refused(endless_model):
    with pytest.raises(WorkerStartFailed, match="too little memory") as failed:
        await WorkerLink.start(load(endless_model, n_ctx=1 << 30))
    assert failed.value.kind == "memory"


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
os.execv(sys.argv[1], sys.argv[1:])
"""


async def test_a_resource_limit_counts_as_little_memory(endless_model):
    command = (sys.executable, "-c", LIMITED, *WORKER_COMMAND)

    # 6 sequences of 2**21 positions of 256 bytes: 3 GiB.
    with pytest.raises(WorkerStartFailed, match="too little memory") as failed:
        await WorkerLink.start(load(endless_model, n_ctx=1 << 21), command=command)
    assert failed.value.kind == "memory"


def test_a_start_failure_has_its_own_exit_code(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = subprocess.Popen(
            [*WORKER_COMMAND, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())],
            pass_fds=[theirs.fileno()],
        )
        with worker, ours.makefile("rb") as stream:
            ours.sendall(codec.encode(load(tmp_path / "none.gguf")))
            length = codec.decode_length(stream.read(codec.HEADER.size))
            message = codec.decode_from_worker(stream.read(length))
            assert worker.wait() == EXIT_CANNOT_START

    assert message == Failed(kind="missing", reason=f"model file {tmp_path / 'none.gguf'} does not exist")
