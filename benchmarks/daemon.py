"""A daemon of the benchmark's own: temporary directory, real model, ended by its process id."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A daemon that serves."""

    socket: Path
    home: Path
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of the daemon's own process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: str, *options: str) -> Iterator[Running]:
    """Serve *model* until the block ends."""
    with tempfile.TemporaryDirectory(prefix="superfluid-bench-") as folder:
        home = Path(folder)
        environ = os.environ | {"SUPERFLUID_HOME": folder}
        command = [sys.executable, "-m", "superfluid.cli", "serve", model, "--log-filter", "warn", *options]
        child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        try:
            _wait_ready(child)
            yield Running(socket=home / "superfluid.sock", home=home, pid=child.pid)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


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
