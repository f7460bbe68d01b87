"""The orderly end: within the stated time, clients told, log closed, socket and worker gone."""

import os
import signal
import socket
import threading
from contextlib import suppress

import pytest

from superfluid.core.record import Command, Record, encode_command
from superfluid.wal.log import Log
from superfluid_protocol import event, numbers, request, response
from tests.daemon import GREEDY, PATIENCE, Client, Daemon, Reply, cpu_ticks, wait_gone, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

CONTEXT = 16_384

LONG = 15_000
"""Tokens of a reply that outlasts every drain of these tests."""


def begin(client: Client) -> int:
    session = client.create()
    client.user(session, "hello")
    return session


def check_gone(daemon: Daemon, worker: int) -> None:
    """Everything that an orderly end leaves: nothing, and a closed log."""
    assert daemon.wait() == 0
    assert daemon.wait_for("log closed")["clean"]
    assert not daemon.socket.exists()
    wait_gone([worker], 0)
    assert daemon.start().wait_for("log replayed")["clean"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_runs_waits_or_idles_and_tells_each(tmp_path, endless_model, make_daemon, number):
    daemon = (
        make_daemon(tmp_path, endless_model, "--max-batch", "1", "--drain-timeout", "0.3", context=CONTEXT)
        .start()
        .ready()
    )
    worker = daemon.worker()
    with daemon.client() as running, daemon.client() as queued, daemon.client() as idle:
        first, second = begin(running), begin(queued)
        reply = running.first_delta(first, LONG)
        queued.send(request.Generate(session=second, max_tokens=LONG))
        opening = Reply([queued.receive().event, queued.receive().event])
        assert isinstance(opening.deltas[-1].body, event.GenerationPrompt)

        daemon.send_signal(number)

        assert "the daemon is ending" in running.finish(reply).error
        assert "the daemon is ending" in queued.finish(opening).error
        assert idle.ended()
        assert running.ended()
    check_gone(daemon, worker)
    with daemon.client() as client:
        for session, shown in ((first, reply), (second, opening)):
            events = client.events(session)
            assert events[2 : 2 + len(shown.deltas)] == shown.deltas
            assert events[-1].body.finish == numbers.Finish.CANCELLED


def test_a_reply_that_ends_while_draining_is_delivered_whole(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, "--drain-timeout", "30", context=CONTEXT).start().ready()
    worker = daemon.worker()
    with daemon.client() as client, daemon.client() as other:
        session, late = begin(client), begin(other)
        reply = client.first_delta(session, 2000)
        daemon.send_signal(signal.SIGTERM)
        while isinstance((last := other.generate(late, 1)).end, response.Generated):
            pass  # until the signal has come through

        assert "is ending" in last.error
        assert client.finish(reply).generated.tokens_generated == 2000
    check_gone(daemon, worker)


def test_a_second_signal_ends_the_draining(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, "--drain-timeout", "600", context=CONTEXT).start().ready()
    worker = daemon.worker()
    with daemon.client() as client:
        session = begin(client)
        reply = client.first_delta(session, LONG)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait_for("ending")
        assert isinstance(client.receive(), response.Delta)
        daemon.send_signal(signal.SIGTERM)

        assert "is ending" in client.finish(reply).error
    check_gone(daemon, worker)


def test_a_signal_while_the_model_loads_does_not_wait_for_it(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().serving()
    with daemon.client() as client:
        session = client.create()
        client.send(request.AppendMessage(session=session, role=1, text="hello"))
        client.send(request.Generate(session=session, max_tokens=5))
        while not (workers := workers_of(daemon.pid)):
            pass
        os.kill(workers[0], signal.SIGSTOP)  # it will not be ready by itself
        assert isinstance(client.receive(), response.Committed)
        daemon.send_signal(signal.SIGTERM)

        assert "is ending" in client.finish(Reply()).error
        assert client.ended()
    check_gone(daemon, workers[0])
    assert not any(line.get("event") == "ready" for line in daemon.lines)


def test_a_client_that_reads_nothing_does_not_hold_up_the_end(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, "--drain-timeout", "0.1").start().ready()
    worker = daemon.worker()
    with daemon.client() as client:
        session = begin(client)
        client.call(request.Append(session=session, text="x" * 100_000, span=()))
        # More than the socket takes.
        client.send(*[request.Read(session=session, cursor=0)] * 20)
        daemon.send_signal(signal.SIGTERM)
        check_gone(daemon, worker)


def test_a_signal_during_the_replay_leaves_the_log_as_it_was(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model)
    write_large_log(daemon)
    log = daemon.sessions / "wal.log"
    before = log.read_bytes()

    daemon.start()
    wait_until_bound(daemon)
    daemon.send_signal(signal.SIGTERM)

    assert daemon.wait() == 0
    assert not any(line.get("event") == "log replayed" for line in daemon.lines), "the replay was too short"
    assert log.read_bytes() == before
    assert not daemon.socket.exists()
    assert daemon.start().wait_for("log replayed")["sessions"] == 1


def write_large_log(daemon: Daemon) -> None:
    """A log whose replay takes a good second."""
    opened = Log.open(daemon.sessions, now_ms=0)
    opened.log.begin()

    def command(number: int, body: object) -> bytes:
        record = Record(session=1, event_id=number, epoch=1, ts_unix_ms=0, body=body)
        return encode_command(Command(op_id=None, digest=None, request_id=None, records=(record,)))

    opened.log.commit([command(0, event.Created(parent=None, params=GREEDY))])
    for batch in range(40):
        first = 1 + 1000 * batch
        opened.log.commit(
            [command(n, event.Appended(text="text", span=(1, 2, 3))) for n in range(first, first + 1000)]
        )
    opened.log.close()


def wait_until_bound(daemon: Daemon) -> None:
    """Connect; it answers nothing yet."""
    deadline = threading.Event()
    timer = threading.Timer(PATIENCE, deadline.set)
    timer.start()
    try:
        while not deadline.is_set():
            with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(daemon.socket))
                return
    finally:
        timer.cancel()
    pytest.fail(f"the socket was not bound: {daemon.errors}")


def test_no_worker_outlives_a_killed_daemon_from_inside_a_long_prefill(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, context=CONTEXT).start().ready()
    worker = daemon.worker()
    with daemon.client() as client:
        session = client.create()
        client.call(request.Append(session=session, text=None, span=tuple(range(250)) * 60))
        client.send(request.Generate(session=session, max_tokens=5))
        before = cpu_ticks(worker)
        while cpu_ticks(worker) == before:
            pass  # it begins to compute within milliseconds

        assert worker in daemon.kill()
    wait_gone([worker], 5)


def test_no_worker_outlives_a_killed_daemon_though_it_cannot_run(tmp_path, endless_model, make_daemon):
    """A stopped worker stands for one inside a call that lets no other thread of it run."""
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    worker = daemon.worker()
    os.kill(worker, signal.SIGSTOP)

    daemon.kill()

    wait_gone([worker], 5)
    assert workers_of(daemon.pid) == []


def test_a_worker_that_is_loading_ends_with_its_killed_daemon(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().serving()

    workers = daemon.kill()

    wait_gone(workers, 5)
