"""The command line run as people run it: as a process, on a pipe or on a terminal."""

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

COMMAND = [sys.executable, "-W", "error", "-m", "superfluid.cli"]

PATIENCE = 30.0
"""Seconds after which a wait is a failure, on a machine that others use too. No test passes because of it."""


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "SUPERFLUID_HOME": str(home), "TERM": "dumb", "COLUMNS": "100", **(more or {})}


def superfluid(
    *args: str, home: Path, stdin: str | bytes = "", environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, on pipes."""
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run(
        [*COMMAND, *args],
        env=environment(home, environ),
        input=data,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A command on a terminal of its own; what it shows collects in ``shown``.

    Args:
        kind: What its program takes it for; one that is not ``dumb`` obeys control sequences.
    """

    def __init__(self, *args: str, home: Path, kind: str = "dumb") -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self.shown = ""
        try:
            self.process = subprocess.Popen(
                [*COMMAND, *args],
                env=environment(home, {"TERM": kind}),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                preexec_fn=_control_terminal,
            )
        finally:
            os.close(theirs)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C at a prompt, once the program sleeps there.

        The prompt is shown a moment before anybody waits for a key: a signal that comes in between is only looked at
        with the next key, as readline does it.
        """
        deadline = time.monotonic() + PATIENCE
        while _state(self.process.pid) != "S":
            assert time.monotonic() < deadline, "it does not wait for a key"
            select.select([], [], [], 0.01)
        self.type("\x03")

    def wait_for(self, text: str) -> str:
        """Wait until *text* is shown; returns what came up to it, and forgets that."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert self._read(deadline), f"{text!r} was not shown, but {self.shown!r}"
        before, _, self.shown = self.shown.partition(text)
        return before

    def wait_end(self) -> int:
        """Its exit code, once it has ended and everything it showed is in ``shown``."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._fd)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return False
        data = b""
        with contextlib.suppress(OSError):  # how a terminal says that its last user is gone
            data = os.read(self._fd, 65536)
        self.shown += data.decode(errors="replace")
        return bool(data)


def _state(pid: int) -> str:
    """The state letter of the process's main thread, see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _control_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
