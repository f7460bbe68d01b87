"""A child process for a daemon that is short of descriptors: no start, watch or end may raise a bare error."""

import errno
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core.errors import WorkerLost
from superfluid.core.liveness import parse_stat
from superfluid.worker.child import Child

pytestmark = pytest.mark.slow  # every test starts a process

WAITS = (sys.executable, "-c", "import time; time.sleep(1000)")


def open_descriptors():
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@contextmanager
def descriptors_left(count):
    """All descriptors below the limit are taken but *count*."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, open_descriptors())) + 64, hard))
    taken = []
    try:
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            for fd in taken[len(taken) - count :]:
                os.close(fd)
            del taken[len(taken) - count :]
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.parametrize("left", range(7))
async def test_a_start_without_descriptors_is_a_lost_worker_and_leaves_nothing(left):
    before, family = open_descriptors(), children()
    with descriptors_left(left), pytest.raises(WorkerLost, match="Too many open files"):
        Child(WAITS)

    assert open_descriptors() == before
    assert children() == family


@pytest.mark.parametrize("call", ["pidfd_open", "open"])
async def test_a_process_that_cannot_be_watched_is_ended(monkeypatch, call):
    before, family = open_descriptors(), children()

    def fail(*_arguments):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        # With neither /dev/null nor another file to open for the start itself.
        patched.setattr(subprocess, "DEVNULL", None)
        with pytest.raises(WorkerLost, match="Too many open files"):
            Child(WAITS)

    assert open_descriptors() == before
    assert children() == family


async def test_a_program_that_is_not_there_is_a_lost_worker_and_leaves_nothing():
    before = open_descriptors()
    with pytest.raises(WorkerLost, match="could not be started"):
        Child(["/nowhere/program"])
    assert open_descriptors() == before


async def test_a_child_is_watched_to_its_end_without_another_descriptor():
    child = Child(WAITS)
    with descriptors_left(0):
        assert parse_stat(child.stat(), at=0.0).state in "RSD"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.wait_ended)
            nursery.start_soon(child.wait_ended)
            await wait_all_tasks_blocked()
            child.kill()
        assert child.exit_code == -signal.SIGKILL
        assert parse_stat(child.stat(), at=0.0).state == "X"
    child.close()


async def test_one_that_gives_up_waiting_leaves_the_watch_to_the_others():
    child = Child(WAITS)
    try:
        async with trio.open_nursery() as nursery:
            given_up = trio.CancelScope()

            async def wait_for_a_while():
                with given_up:
                    await child.wait_ended()

            nursery.start_soon(wait_for_a_while)
            await wait_all_tasks_blocked()
            nursery.start_soon(child.wait_ended)
            await wait_all_tasks_blocked()
            given_up.cancel()
            await wait_all_tasks_blocked()
            child.kill()
    finally:
        await child.kill_and_reap()
        child.close()
