"""A daemon of the benchmark's own: temporary directory, real model, ended by its process id."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from benchmarks.load import GREEDY, Caller
from superfluid.worker.main import PROCESS_NAME
from superfluid_protocol import request, response

READY_SECONDS = 60.0
WARM_SECONDS = 600.0
"""A model may have to be measured before the first reply."""
END_SECONDS = 30.0

WARM_UP = (1, 2, 3)
"""Ids of the first session of a daemon that was warmed up."""


class Running:
    """A daemon that serves, and can be ended and started again over the same directory.

    Args:
        home: Holds the socket and the sessions.
    """

    def __init__(self, home: Path, model: str, options: tuple[str, ...]) -> None:
        self.home = home
        self.socket = home / "superfluid.sock"
        self.command = [
            sys.executable,
            "-m",
            "superfluid.cli",
            "serve",
            model,
            "--log-filter",
            "warn",
            *options,
        ]
        self._child: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the daemon's own process."""
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start it; returns once it serves."""
        environ = os.environ | {"SUPERFLUID_HOME": str(self.home)}
        self._child = subprocess.Popen(self.command, env=environ, stdout=subprocess.PIPE, text=True)
        _wait_ready(self._child)

    def warm_up(self) -> None:
        """Return once the worker has its model and has computed with it."""
        caller = Caller(self.socket, timeout=WARM_SECONDS)
        session = caller.create(GREEDY)
        caller.call(request.Append(session=session, text=None, span=WARM_UP))
        caller.send(request.Generate(session=session, max_tokens=1))
        while isinstance(reply := caller.receive(), response.Delta):
            pass
        caller.close()
        if not isinstance(reply, response.Generated):
            raise RuntimeError(f"the daemon does not generate: {reply}")  # noqa: TRY004 - a refusal, no type error

    def stop(self) -> None:
        """End it in order; kill it when it does not."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9; returns when its workers are gone too."""
        workers = self.workers()
        self._end(signal.SIGKILL)
        for worker in workers:
            _wait_gone(worker)

    def kill_worker(self) -> None:
        """kill -9 of the worker alone."""
        for worker in self.workers():
            os.kill(worker, signal.SIGKILL)

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        mark, parent = PROCESS_NAME.encode(), b"%d" % self.pid
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if mark in words and words[words.index(b"--parent") + 1] == parent:
                        found.append(int(entry.name))
        return found

    def cpu_seconds(self) -> float:
        """User and system time of the daemon's own process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _end(self, number: signal.Signals) -> None:
        child = self._child
        if child is None:
            return
        child.send_signal(number)
        try:
            child.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()
        self._child = None


def end_in_order() -> None:
    """Let SIGTERM end this process as Ctrl-C does, with all that it started."""

    def end(_number: int, _frame: object) -> None:
        sys.exit("ended by SIGTERM")

    signal.signal(signal.SIGTERM, end)


@contextmanager
def serving(model: str, *options: str) -> Iterator[Running]:
    """Serve *model* until the block ends."""
    with tempfile.TemporaryDirectory(prefix="superfluid-bench-") as folder:
        daemon = Running(Path(folder), model, options)
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.stop()


Serve = Callable[..., AbstractContextManager[Running]]
"""`serving` with a model and what all daemons of a run have in common; takes the options of one of them."""


def _wait_ready(child: subprocess.Popen[str]) -> None:
    """The daemon greets on standard output once everything is served."""
    assert child.stdout is not None
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        line = child.stdout.readline()
        if line.startswith("superfluid serves"):
            return
        if not line:
            break
    raise RuntimeError("the daemon did not come up")


def _wait_gone(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([fd], [], [], END_SECONDS)
    finally:
        os.close(fd)
    if not ended:
        raise RuntimeError(f"the worker {pid} outlived its daemon")
