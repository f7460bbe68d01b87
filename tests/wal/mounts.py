"""Scenarios that need a small disk or another mount, each run in a process with mounts of its own.

``python -m tests.wal.mounts <scenario> <directory>`` under ``unshare --mount``: whatever becomes of the process,
its mounts are gone with it.
"""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from superfluid.core.errors import AlreadyServed, LogRefused
from tests.wal.builders import begun, encoded, held, open_log

ROOT = Path(__file__).parents[2]


def run(scenario, directory, *arguments):
    """Run a scenario in a process with its own mounts; skip where that is not allowed."""
    unshare = ["unshare", "--mount"]
    try:
        allowed = subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("mounting takes root and unshare")
    command = [*unshare, sys.executable, "-m", "tests.wal.mounts", scenario.__name__, str(directory)]
    subprocess.run([*command, *map(str, arguments)], cwd=ROOT, check=True)


def mount_small(directory):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", directory], check=True)


def fill(path):
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def appends_until_full_and_again(disk):
    mount_small(disk)
    log, _ = begun(disk / "s")
    log.commit([encoded(0)])
    fill(disk / "ballast")
    kept, refusal = 1, None
    while refusal is None:
        try:
            log.commit([encoded(kept, size=3000)])
            kept += 1
        except LogRefused as error:
            refusal = error
    assert "No space left" in str(refusal)
    assert kept > 100, "the reserve was there to be used"
    assert log.read_only is None
    # The closing frame and the next start have room of their own.
    assert log.close()
    log, found = begun(disk / "s")
    assert found == list(range(kept))
    assert log.read_only is None

    (disk / "ballast").unlink()
    for number in (20_001, 20_002, 20_003):
        log.commit([encoded(number)])
    log.close()

    assert held(disk / "s") == [*range(kept), 20_001, 20_002, 20_003]


def torn_tail_without_room_for_its_copy(disk):
    mount_small(disk)
    log, _ = begun(disk / "s")
    log.commit([encoded(0)])
    log.close()
    path = disk / "s" / "wal.log"
    path.write_bytes(path.read_bytes() + b"torn" * 100)
    fill(disk / "ballast")

    log, found = begun(disk / "s")
    assert found == [0]
    assert log.read_only is not None
    log.close()
    assert path.read_bytes().endswith(b"torn" * 100)

    (disk / "ballast").unlink()
    log, found = begun(disk / "s")
    assert (found, log.read_only) == ([0], None)
    log.commit([encoded(1)])
    log.close()
    assert held(disk / "s") == [0, 1]


def bind_mount(directory, mount, pid):
    subprocess.run(["mount", "--bind", directory, mount], check=True)
    with pytest.raises(AlreadyServed) as caught:
        open_log(Path(mount))
    assert caught.value.pid == int(pid)


if __name__ == "__main__":
    name, directory, *rest = sys.argv[1:]
    globals()[name](Path(directory), *rest)
