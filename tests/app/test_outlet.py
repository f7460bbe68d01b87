"""The standard streams of a daemon, with a pipe in the place of a reader that reads nothing."""

import json
import os

import pytest
import structlog

from superfluid.observe import logs, outlet
from superfluid.observe.outlet import Outlet


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            assert fd == reading, "a test may close its reader"


def read_all(reading, writer):
    """Everything until *writer* has nothing left."""
    os.set_blocking(reading, False)
    taken = b""
    while True:
        done = writer.drain(0.01)
        try:
            while part := os.read(reading, 1 << 16):
                taken += part
        except BlockingIOError:
            if done:
                return taken.decode()


def test_text_arrives_whole_and_in_order(pipe):
    reading, writing = pipe
    out = Outlet(writing)
    for number in range(1000):
        out.write(f"line {number}\n")

    assert read_all(reading, out).splitlines() == [f"line {number}" for number in range(1000)]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_reads_nothing_holds_nobody_up_and_is_told_what_it_missed(pipe, monkeypatch, blocking):
    reading, writing = pipe
    os.set_blocking(writing, blocking)
    monkeypatch.setattr(outlet, "MAX_OUTPUT_BACKLOG_BYTES", 100_000)
    out = Outlet(writing, tell_dropped=lambda count: f"{count} dropped\n")
    line = "x" * 99 + "\n"
    for _ in range(3000):
        out.write(line)
    assert not out.drain(0)

    lines = read_all(reading, out).splitlines()
    out.write("again\n")
    lines += read_all(reading, out).splitlines()

    told = [int(text.split()[0]) for text in lines if text.endswith(" dropped")]
    assert lines[-1] == "again"
    assert lines.count(line.strip()) + sum(told) == 3000
    assert sum(told) > 1000


def test_a_reader_that_left_takes_nothing_with_it(pipe):
    reading, writing = pipe
    os.close(reading)
    out = Outlet(writing)
    out.write("nobody reads this\n")
    out.write("nor this\n")

    assert out.drain()


def test_dropped_log_lines_are_told_as_a_log_line(pipe, monkeypatch):
    reading, writing = pipe
    monkeypatch.setattr(outlet, "MAX_OUTPUT_BACKLOG_BYTES", 100_000)
    configured = structlog.get_config()
    try:
        with open(writing, "w", closefd=False) as stream:
            out = logs.configure("info", stream=stream)
            for _ in range(3000):
                structlog.get_logger(target="test").info("something", padding="x" * 50)
    finally:
        structlog.configure(**configured)

    told = [json.loads(line) for line in read_all(reading, out).splitlines()]

    dropped = [line for line in told if line["event"].startswith("log lines were dropped")]
    assert {line["level"] for line in dropped} == {"warning"}
    assert len(told) - len(dropped) + sum(line["lines"] for line in dropped) == 3000
