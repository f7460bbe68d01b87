"""A child process with one end of a socketpair, and what the daemon knows of it from outside.

The process is started with ``subprocess`` from the daemon's main thread and not with trio: trio starts children from a
helper thread, and the child's parent-death signal would come when that thread ends. It is watched through a pidfd, which
costs nothing while nothing happens and cannot mean another process that got the same number.
"""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import trio

from superfluid.core.errors import InternalError, WorkerLost
from superfluid.core.limits import MAX_WORKER_STDERR_BYTES

_EXIT_SECONDS = 0.5
"""Between the end of its link and its exit a process has nothing left to do."""
_REAP_SECONDS = 10.0
"""A killed process ends at once, unless the kernel holds it in a disk wait: then it is left to the kernel."""
_STAT_BYTES = 4096
"""More than any ``/proc/<pid>/stat`` holds: 52 numbers and a name."""


class Child:
    """A started child; ``sock`` is our end of the link, not blocking. Ended by ``aclose`` or ``kill_and_reap``.

    Everything that watching it takes is opened here, so that a daemon that later has no descriptor left still sees how
    its worker is and ends.

    Args:
        command: what to start; the number of its end's descriptor and our process id are appended, as
            ``--fd N --parent PID``.

    Raises:
        WorkerLost: the process could not be started, or not be watched; nothing is left of it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InternalError("a worker must be started from the main thread")
        self._watched = False
        self._watchers = trio.lowlevel.ParkingLot()
        with ExitStack() as undo:
            try:
                self._start(command, undo)
            except OSError as error:
                raise WorkerLost(f"the worker could not be started: {error}") from error
            undo.pop_all()

    def _start(self, command: Sequence[str], undo: ExitStack) -> None:
        """Open everything; *undo* closes what was opened."""
        with ExitStack() as theirs:
            self.sock, sock = socket.socketpair()
            undo.callback(self.sock.close)
            theirs.callback(sock.close)
            self.sock.settimeout(0)
            self._stderr, stderr = os.pipe()
            undo.callback(os.close, self._stderr)
            theirs.callback(os.close, stderr)
            # Neither end ever waits: a worker that writes more than the pipe holds loses the rest.
            os.set_blocking(self._stderr, False)
            os.set_blocking(stderr, False)
            self._process = subprocess.Popen(
                [*command, "--fd", str(sock.fileno()), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[sock.fileno()],
            )
        # It has hardly begun: that it is waited for takes no time.
        undo.callback(self._process.wait)
        undo.callback(self._process.kill)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        undo.callback(os.close, self._pidfd)
        self._stat = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def ended(self) -> bool:
        """Whether it has ended (and is reaped)."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    def describe_end(self) -> str:
        """How it ended, with the last words it wrote: an abort inside C says why only there."""
        code = self._process.returncode
        if code is None:
            how = "does not end"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        words = self.last_words()
        return f"{how} ({words})" if words else how

    def last_words(self) -> str:
        """The last line it wrote to its standard error; asked for once it has ended."""
        try:
            text = os.read(self._stderr, MAX_WORKER_STDERR_BYTES).decode(errors="replace")
        except BlockingIOError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:500] if lines else ""

    def stat(self) -> str:
        """The text of its ``/proc/<pid>/stat``, or one like it of a dead process when it is gone."""
        try:
            return os.pread(self._stat, _STAT_BYTES, 0).decode(errors="replace")
        except ProcessLookupError:
            return f"{self.pid} () X" + " 0" * 49

    async def wait_ended(self) -> None:
        """Wait until it has ended. Several tasks may wait at once."""
        while not self.ended:
            # trio allows one task a descriptor; the others wait for that one, and take its place if it gives up.
            if self._watched:
                await self._watchers.park()
                continue
            self._watched = True
            try:
                await trio.lowlevel.wait_readable(self._pidfd)
            finally:
                self._watched = False
                self._watchers.unpark_all()

    def kill(self) -> None:
        """Kill it; it may be stopped, deaf or gone already."""
        self._process.kill()

    async def reap(self) -> None:
        """Wait until a process that closed its link is gone, so that its own exit code is seen; kill it if it stays."""
        with trio.CancelScope(shield=True), trio.move_on_after(_EXIT_SECONDS):
            await self.wait_ended()
        await self.kill_and_reap()

    async def kill_and_reap(self) -> None:
        """Kill it and wait until it is gone, whatever is cancelled meanwhile."""
        if self.ended:
            return
        self.kill()
        with trio.CancelScope(shield=True), trio.move_on_after(_REAP_SECONDS):
            await self.wait_ended()

    def close(self) -> None:
        """Close what we hold of it. Tasks that wait for the link get ``trio.ClosedResourceError``."""
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            trio.lowlevel.notify_closing(self._pidfd)
            self.sock.close()
            for fd in (self._stderr, self._pidfd, self._stat):
                os.close(fd)
