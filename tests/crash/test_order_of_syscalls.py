"""Write, fsync, mark, then send: watched from outside, for every kind of reply that acknowledges a write.

kill -9 spares the page cache, so no kill can show a missing fsync. The kernel's own account can.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from superfluid_protocol import Request, Response, encode, request, response
from superfluid_protocol.framing import encode_frame
from tests.crash.syscalls import Call, read_calls, records_written, tracer
from tests.daemon import GREEDY, USER, Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

Place = tuple[int, int]
"""A session and the id of an event in it."""


@dataclass(slots=True)
class Witness:
    """Asks a daemon, and remembers each reply with the request it answers."""

    client: Client
    heard: list[tuple[Response, Request]]

    def ask(self, req: Request) -> Response:
        self.client.send(req)
        while isinstance(reply := self.client.receive(), response.Delta):
            self.heard.append((reply, req))
        self.heard.append((reply, req))
        return reply


def every_acknowledgement(witness: Witness) -> int:
    """One request of each kind that writes; returns the session."""
    created = witness.ask(request.Create(parent=None, params=GREEDY))
    assert isinstance(created, response.Created)
    session = created.session
    assert isinstance(
        witness.ask(request.Append(session=session, text=None, span=(60, 61, 62))), response.Committed
    )
    assert isinstance(
        witness.ask(request.AppendMessage(session=session, role=USER, text="hello")), response.Committed
    )
    assert isinstance(
        witness.ask(request.SetMeta(session=session, expected_version=0, title="a title", archived=None)),
        response.Meta,
    )
    for _ in range(2):  # the second continues the turn that the limit cut
        assert isinstance(witness.ask(request.Generate(session=session, max_tokens=60)), response.Generated)
    assert isinstance(witness.ask(request.Fork(session=session, at_event=2, params=None)), response.Created)
    assert isinstance(witness.ask(request.Trim(session=session, to_event=3)), response.Created)
    return session


def watch(output: Path, means: str) -> dict[str, tuple[str, ...]]:
    """How to start a daemon that is watched by *means*."""
    if means == "file layer":
        script = str(Path(__file__).with_name("traced_daemon.py"))
        return {"program": (sys.executable, script, str(output), "serve")}
    require_ptrace(output.with_name("probe.out"))
    return {"prefix": tracer(output)}


@pytest.mark.parametrize("means", ["file layer", "strace"])
def test_no_acknowledgement_leaves_before_its_record_is_synced(tmp_path, endless_model, make_daemon, means):
    output = tmp_path / "trace.out"
    daemon = make_daemon(tmp_path, endless_model, **watch(output, means)).start().ready()
    with daemon.client() as one, daemon.client() as other:
        witnesses = [Witness(one, []), Witness(other, [])]
        # At once, so that both share fsyncs, and a reply of the one is sent while the other's batch is on its way.
        beside = threading.Thread(target=every_acknowledgement, args=(witnesses[1],))
        beside.start()
        every_acknowledgement(witnesses[0])
        beside.join()
    daemon.send_signal(
        signal.SIGTERM
    )  # a kill could come between the last send and the line that says it ended
    assert daemon.wait() == 0

    calls = read_calls(output)
    durable = durable_at(calls, str(daemon.sessions))
    checked = {type(reply) for witness in witnesses for reply, _ in witness.heard}
    assert checked == {
        response.Created, response.Committed, response.Meta, response.Delta, response.Generated
    }  # fmt: skip
    for witness in witnesses:
        sends = sends_of(calls, witness)
        for reply, req, sent in zip(*zip(*witness.heard, strict=True), sends, strict=True):
            for place in places(reply, req):
                assert durable[place] < sent, f"{type(reply).__name__} of event {place} left too early"


def require_ptrace(probe: Path) -> None:
    """Without strace the same is watched one layer higher. In CI, which has to have it, that would be a gate that shut
    unnoticed."""
    unwatched = pytest.fail if os.environ.get("CI") else pytest.skip
    if shutil.which("strace") is None:
        unwatched("strace is not installed; the file layer was watched instead")
    done = subprocess.run([*tracer(probe), "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not probe.exists():
        unwatched(f"strace may not trace here; the file layer was watched instead: {done.stderr}")


def durable_at(calls: list[Call], sessions: str) -> dict[Place, int]:
    """For each record, when its write, the next fsync of the log and the mark behind that had ended."""
    log = [call for call in calls if call.target.startswith(sessions)]
    when: dict[Place, int] = {}
    for written in log:
        if written.name != "pwrite64" or not written.target.endswith("/wal.log"):
            continue
        records = records_written(written)
        if not records:
            continue
        assert written.result == len(written.data)
        synced = first(log, "fsync", "/wal.log", after=written.ended)
        marked = first(log, "pwrite64", "/wal.mark", after=synced.ended)
        assert synced.result == 0
        when |= {(record.session, record.event_id): marked.ended for record in records}
    return when


def first(calls: list[Call], name: str, target: str, *, after: int) -> Call:
    return next(
        call for call in calls if call.begun > after and call.name == name and call.target.endswith(target)
    )


def sends_of(calls: list[Call], witness: Witness) -> list[int]:
    """When the send began that carried each reply this witness heard: its connection is known by its bytes."""
    frames = [encode_frame(encode(reply)) for reply, _req in witness.heard]
    streams: dict[str, list[Call]] = {}
    for call in calls:
        if call.name == "sendto" and call.result > 0:
            streams.setdefault(call.target, []).append(call)
    (sends,) = (
        sends
        for sends in streams.values()
        if b"".join(call.data[: call.result] for call in sends) == b"".join(frames)
    )
    begun: list[int] = []
    for call in sends:
        begun.extend([call.begun] * call.result)
    starts = [sum(map(len, frames[:index])) for index in range(len(frames))]
    return [begun[start] for start in starts]


def places(reply: Response, req: Request) -> list[Place]:
    """The events that a reply acknowledges; never none."""
    session = getattr(req, "session", 0)
    match reply:
        case response.Created(session=made):
            match req:  # a copy begins with an event of its own, behind those it shares
                case request.Fork(at_event=first) | request.Trim(to_event=first):
                    return [(made, first)]
                case request.Create():
                    return [(made, 0)]
        case response.Committed(event=message) | response.Delta(event=message):
            return [(session, message.event_id)]
        case response.Generated(events=[_, *_] as events):
            return [(session, message.event_id) for message in events]
        case response.Meta():
            # The third event: after Created, an Append and a Message.
            return [(session, 3)]
    raise AssertionError(f"{reply} acknowledges nothing")
