"""A real daemon in a directory of its own, and a client that speaks bare frames: for tests from outside.

Nothing here uses the client library, so a fault in that cannot hide one in the daemon, or make one up.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from superfluid.worker.main import PROCESS_NAME
from superfluid_protocol import EventMsg, GenParams, Request, Response, decode, encode, request, response
from superfluid_protocol.framing import FrameDecoder, encode_frame

COMMAND = (sys.executable, "-m", "superfluid.cli", "serve")

CONTEXT = 512
"""Positions of a session, where a test asks for no other number: a small pool is made fast."""

USER = 1

GREEDY = GenParams(temperature=0.0, top_p=1.0, min_p=0.0, top_k=0, seed=1)

PATIENCE = 15.0
"""Seconds after which a wait is a failure, on a machine that others use too. No test passes because of it."""


class HungUp(Exception):
    """The daemon closed the connection, or died."""


@dataclass(slots=True)
class Reply:
    """What one `Generate` gave: the events as they came, and what closed it."""

    deltas: list[EventMsg] = field(default_factory=list)
    end: Response | None = None

    @property
    def generated(self) -> response.Generated:
        assert isinstance(self.end, response.Generated), self.end
        return self.end

    @property
    def error(self) -> str:
        assert isinstance(self.end, response.Err), self.end
        return self.end.message


class Client:
    """One connection. Every wait ends after *timeout* seconds with ``TimeoutError``."""

    def __init__(self, path: Path, *, timeout: float = PATIENCE) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout)
        try:
            self.sock.connect(str(path))
        except BaseException:
            self.sock.close()
            raise
        self._decoder = FrameDecoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, *requests: Request) -> None:
        """Send requests as frames, in one piece."""
        self.send_bytes(b"".join(encode_frame(encode(req)) for req in requests))

    def send_bytes(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise HungUp from gone

    def receive(self) -> Response:
        """The next reply. Raises `HungUp` when there is none to come."""
        while (payload := self._decoder.next_frame()) is None:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError as gone:
                raise HungUp from gone
            if not data:
                raise HungUp
            self._decoder.feed(data)
        reply, consumed = decode(Response, payload)
        assert consumed == len(payload)
        return reply

    def call(self, req: Request) -> Response:
        self.send(req)
        return self.receive()

    def ended(self) -> bool:
        """Whether the daemon closes the connection without another reply."""
        try:
            self.receive()
        except HungUp:
            return True
        return False

    # -- the usual requests, refusals being failures --------------------------------------------------

    def create(self, params: GenParams = GREEDY) -> int:
        reply = self.call(request.Create(parent=None, params=params))
        assert isinstance(reply, response.Created), reply
        return reply.session

    def user(self, session: int, text: str) -> EventMsg:
        reply = self.call(request.AppendMessage(session=session, role=USER, text=text))
        assert isinstance(reply, response.Committed), reply
        return reply.event

    def generate(self, session: int, max_tokens: int) -> Reply:
        self.send(request.Generate(session=session, max_tokens=max_tokens))
        return self.finish(Reply())

    def finish(self, reply: Reply) -> Reply:
        """Read the rest of a reply."""
        while isinstance(received := self.receive(), response.Delta):
            reply.deltas.append(received.event)
        reply.end = received
        return reply

    def first_delta(self, session: int, max_tokens: int) -> Reply:
        """Ask for a reply and wait until its first tokens are here."""
        self.send(request.Generate(session=session, max_tokens=max_tokens))
        reply = Reply()
        while not any(getattr(event.body, "finish", None) is not None for event in reply.deltas):
            received = self.receive()
            assert isinstance(received, response.Delta), received
            reply.deltas.append(received.event)
        return reply

    def metric(self, name: str, **labels: str) -> float:
        """A metric of the daemon, without the common prefix; summed up over the labels that are not given."""
        reply = self.call(request.Metrics())
        assert isinstance(reply, response.Text), reply
        found = [
            sample.value
            for family in text_string_to_metric_families(reply.text)
            for sample in family.samples
            if sample.name == f"superfluid_{name}" and labels.items() <= sample.labels.items()
        ]
        assert found, f"there is no metric {name} with {labels}"
        return sum(found)

    def events(self, session: int) -> list[EventMsg]:
        """The whole session."""
        reply = self.call(request.Read(session=session, cursor=0))
        assert isinstance(reply, response.Events), reply
        return list(reply.events)


class Daemon:
    """A daemon process. Start it with `start`; `close` ends it whatever state it is in.

    Args:
        home: Holds the sessions directory and the socket; a restart finds both again.
        options: More of the command line.
        user: Run it as this user id.
        prefix: A command to run it under, such as a tracer.
        program: What serves, when it is not the command line of this project.
    """

    def __init__(
        self,
        home: Path,
        model: Path,
        *options: str,
        context: int = CONTEXT,
        user: int | None = None,
        prefix: Sequence[str] = (),
        program: Sequence[str] = COMMAND,
        environ: Mapping[str, str] | None = None,
        socket_path: Path | None = None,
    ) -> None:
        self.sessions = home / "sessions"
        self.socket = socket_path or home / "s.sock"
        self.command = [
            *prefix,
            *program,
            str(model),
            *("--sessions", str(self.sessions), "--socket", str(self.socket)),
            *("--max-context", str(context), "--threads", "1"),
            *("--flash-attn", "off"),  # what is not measured does not delay the test
            *options,
        ]
        self._user = user
        self._environ = environ or {}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        self._ended = False
        self.lines: list[dict[str, Any]] = []

    def start(self) -> "Daemon":
        """Start it, for the first time or again."""
        assert self._process is None or self._process.returncode is not None
        self.lines, self._ended = [], False
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            user=self._user,
            env=self.environment(),
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        return self

    def environment(self) -> dict[str, str]:
        """What it is started with."""
        return _environment(self._environ)

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        """Everything it wrote to its standard error, as text."""
        with self._changed:
            return "\n".join(json.dumps(line) if "event" in line else line["text"] for line in self.lines)

    def wait_for(self, event: str, *, count: int = 1, timeout: float = PATIENCE) -> dict[str, Any]:
        """The *count*-th log line of this run that says *event*."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines if line.get("event") == event]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._ended, timeout)
            lines = found()
        assert len(lines) >= count, f"the daemon did not say {event!r} {count} times; it said:\n{self.errors}"
        return lines[count - 1]

    def serving(self) -> "Daemon":
        """Wait until it answers requests."""
        self.wait_for("log replayed")
        return self

    def ready(self) -> "Daemon":
        """Wait until it has a worker with its model."""
        self.wait_for("ready")
        return self

    def client(self, *, timeout: float = PATIENCE) -> Client:
        return Client(self.socket, timeout=timeout)

    def worker(self) -> int:
        """The worker's process id."""
        (pid,) = workers_of(self.pid)
        return pid

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, once it has ended and all it wrote is in `lines`."""
        code = self.process.wait(timeout)
        assert self._reader is not None
        self._reader.join(timeout)
        return code

    def kill(self) -> list[int]:
        """kill -9; returns the workers that it had a moment before or after, which end by themselves."""
        workers = set(workers_of(self.pid))
        self.process.kill()
        self.wait()
        return sorted(workers | set(workers_of(self.pid)))

    def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            wait_gone(self.kill(), PATIENCE)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as stderr:
            for text in stderr:
                try:
                    line = json.loads(text)
                except ValueError:
                    line = {"text": text.rstrip("\n")}
                with self._changed:
                    self.lines.append(line if isinstance(line, dict) else {"text": text})
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, with compiled modules kept where all daemons of this test run find them: a start is half as long."""
    environ = {**os.environ, **more}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ["PYTHONPYCACHEPREFIX"] = _compiled()
    environ["SUPERFLUID_TRACEBACK"] = "1"
    environ.setdefault("SUPERFLUID_CACHE", str(Path(_compiled()) / "measured"))
    return environ


_compiled_directory: list[tempfile.TemporaryDirectory[str]] = []


def _compiled() -> str:
    if not _compiled_directory:
        _compiled_directory.append(tempfile.TemporaryDirectory(prefix="superfluid-tests-"))
        Path(_compiled_directory[0].name).chmod(0o1777)
    return _compiled_directory[0].name


@contextmanager
def daemons() -> Iterator[Any]:
    """`make(home, model, ...)` gives daemons that end with the block."""
    with ExitStack() as stack:

        def make(home: Path, model: Path, *options: str, **keywords: Any) -> Daemon:
            daemon = Daemon(home, model, *options, **keywords)
            stack.callback(daemon.close)
            return daemon

        yield make


# -- processes --------------------------------------------------------------------------------------


def workers_of(daemon: int) -> list[int]:
    """Workers that were started by the process *daemon*, whether or not it still lives."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if PROCESS_NAME.encode() in words and words[words.index(b"--parent") + 1] == b"%d" % daemon:
                    found.append(int(entry.name))
    return found


def wait_gone(pids: Sequence[int], seconds: float) -> None:
    """Wait until the processes have ended; a failure if one has not within *seconds*."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([fd], [], [], seconds)
        finally:
            os.close(fd)
        assert ended, f"process {pid} is still there after {seconds} s"


def cpu_ticks(pid: int) -> int:
    """User and system time of a process, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident_kib(pid: int) -> int:
    """Resident memory of a process that is its own, not a file's: ``RssAnon`` of ``proc(5)``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon in the process's status")


def frame(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload
