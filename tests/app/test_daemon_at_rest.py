"""A daemon that nobody asks anything, and what it says of what it is asked."""

import stat
import threading

import pytest

from superfluid_protocol import request, response
from tests.daemon import cpu_ticks, frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

CANARY = "canary-7f3a9"


def pass_seconds(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_without_load_neither_daemon_nor_worker_uses_the_cpu(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        client.generate(session, 20)
        # Once after a write, within a second, the log's mark is synced.
        pass_seconds(1.5)
        worker = daemon.worker()
        before = cpu_ticks(daemon.pid), cpu_ticks(worker)

        pass_seconds(2)

        assert cpu_ticks(daemon.pid) - before[0] <= 1
        assert cpu_ticks(worker) - before[1] <= 1


def test_no_line_of_the_log_carries_content(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, "-v").start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, CANARY)
        client.call(request.Append(session=session, text=CANARY, span=()))
        client.call(request.Append(session=session, text=CANARY, span=(10**6,)))
        client.call(request.SetMeta(session=session, expected_version=0, title=CANARY, archived=None))
        client.call(request.SetMeta(session=session, expected_version=0, title=CANARY, archived=None))
        client.call(request.SetMeta(session=session, expected_version=1, title=CANARY * 1000, archived=None))
        client.call(request.AppendMessage(session=session, role=9, text=CANARY))
        client.call(request.AppendToolResult(session=session, call_id=1, content=CANARY))
        client.send_bytes(frame(CANARY.encode()))
        assert isinstance(client.receive(), response.Err)
        reply = client.generate(session, 20)
        metrics = client.call(request.Metrics())
    text = "".join(getattr(message.body, "text", "") for message in reply.deltas)
    ids = ", ".join(str(token) for message in reply.deltas for token in getattr(message.body, "span", ()))
    daemon.kill()

    assert len(daemon.lines) > 3
    assert CANARY not in daemon.errors
    assert text not in daemon.errors
    assert ids not in daemon.errors
    assert isinstance(metrics, response.Text)
    assert CANARY not in metrics.text


def test_files_are_for_their_owner_alone(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        client.user(client.create(), "hello")

        assert stat.S_IMODE(daemon.sessions.stat().st_mode) == 0o700
        for file in daemon.sessions.rglob("*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_log_lines_name_request_session_and_counts(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        client.generate(session, 20)

        line = daemon.wait_for("generation ended")

    assert line["session"] == session
    assert line["generated"] == 20
    assert line["prompt"] > 20
    assert line["finish"] == 2
    assert line["error"] is None
