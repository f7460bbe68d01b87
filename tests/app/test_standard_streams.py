"""Whoever reads the daemon's output may leave: a log nobody reads is no reason to end."""

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from tests.daemon import CONTEXT, Client, wait_gone, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.mark.parametrize("stream", ["stdout", "stderr", "both"])
def test_a_reader_of_its_output_that_leaves_does_not_end_it(tmp_path, endless_model, make_daemon, stream):
    daemon = make_daemon(tmp_path, endless_model, context=CONTEXT)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = subprocess.Popen(
            daemon.command,
            stdin=subprocess.DEVNULL,
            stdout=writing if stream != "stderr" else subprocess.DEVNULL,
            stderr=writing if stream != "stdout" else subprocess.DEVNULL,
            env=daemon.environment(),
        )
    finally:
        os.close(writing)
    try:
        with connected(daemon, process) as client:
            session = client.create()
            client.user(session, "hello")
            for _ in range(3):
                assert client.generate(session, 5).generated.tokens_generated == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        wait_gone(workers_of(process.pid), 5)


def connected(daemon, process) -> Client:
    while process.poll() is None:
        try:
            return daemon.client()
        except OSError:
            continue  # it is not bound yet
    pytest.fail(f"the daemon ended with {process.returncode}")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_of_its_output_that_reads_nothing_does_not_hold_it_up(
    tmp_path, endless_model, make_daemon, stream
):
    daemon = make_daemon(tmp_path, endless_model, "-v", context=CONTEXT)
    reading, writing = os.pipe()
    fill(writing)
    process = subprocess.Popen(
        daemon.command,
        stdin=subprocess.DEVNULL,
        stdout=writing if stream == "stdout" else subprocess.DEVNULL,
        stderr=writing if stream == "stderr" else subprocess.DEVNULL,
        env=daemon.environment(),
    )
    try:
        with connected(daemon, process) as client:
            session = client.create()
            client.user(session, "hello")
            for _ in range(3):
                assert client.generate(session, 5).generated.tokens_generated == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        wait_gone(workers_of(process.pid), 5)
        os.close(reading)
        os.close(writing)


def fill(writing: int) -> None:
    """Write until the pipe takes no more, and leave it as one that waits."""
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
