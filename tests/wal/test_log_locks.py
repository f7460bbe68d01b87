"""Who may serve a directory: one process, by whatever name it comes, and the next one at once when it dies."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from superfluid.core.errors import AlreadyServed
from superfluid.wal import DirectoryLock, OsFiles
from tests.wal import mounts
from tests.wal.builders import begun, encoded, held, open_log

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys
from pathlib import Path
from tests.wal.builders import begun
log, _ = begun(Path(sys.argv[1]))
print("READY", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(directory):
    """Another process that serves the directory, until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout.readline() == "READY\n"
        try:
            yield process
        finally:
            process.kill()


def itself(directory):
    return directory


def a_symbolic_link(directory):
    link = directory.with_name("link")
    link.symlink_to(directory)
    return link


def a_path_with_dots(directory):
    return directory / ".." / directory.name


def a_hard_link_to_the_log(directory):
    other = directory.with_name("other")
    other.mkdir(0o700)
    (other / "wal.log").hardlink_to(directory / "wal.log")
    return other


def a_symbolic_link_to_the_log(directory):
    other = directory.with_name("other")
    other.mkdir(0o700)
    (other / "wal.log").symlink_to(directory / "wal.log")
    return other


WAYS = [itself, a_symbolic_link, a_path_with_dots, a_hard_link_to_the_log, a_symbolic_link_to_the_log]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_second_server_is_refused_with_the_holders_pid(tmp_path, way):
    directory = tmp_path / "s"
    with holder(directory) as process:
        path = way(directory)
        before = (directory / "wal.log").read_bytes()

        with pytest.raises(AlreadyServed) as caught:
            open_log(path)

        assert caught.value.pid == process.pid
        assert str(process.pid) in str(caught.value)
        assert (directory / "wal.log").read_bytes() == before


@pytest.mark.slow
def test_a_bind_mount_is_no_second_way(tmp_path):
    directory, mount = tmp_path / "s", tmp_path / "mount"
    with holder(directory) as process:
        mount.mkdir()
        mounts.run(mounts.bind_mount, directory, mount, process.pid)


@pytest.mark.slow
def test_after_kill_9_the_next_server_opens_at_once(tmp_path):
    directory = tmp_path / "s"
    with holder(directory) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL
        inode = (directory / "lock").stat().st_ino

        log, _ = begun(directory)
        log.commit([encoded(1)])
        log.close()

    assert (directory / "lock").stat().st_ino == inode, "the lock file is never replaced"
    assert held(directory) == [1]


def test_within_one_process_too(tmp_path):
    log, _ = begun(tmp_path / "s")

    with pytest.raises(AlreadyServed) as caught:
        open_log(tmp_path / "s")

    assert caught.value.pid == os.getpid()
    log.close()
    open_log(tmp_path / "s").log.close()


def test_the_pid_is_written_where_the_kernels_list_says_nothing(tmp_path):
    class Elsewhere(OsFiles):
        def lock_holder(self, fd):
            return None

    lock = DirectoryLock.acquire(tmp_path)

    with pytest.raises(AlreadyServed) as caught:
        DirectoryLock.acquire(tmp_path, files=Elsewhere())

    assert caught.value.pid == os.getpid()
    (tmp_path / "lock").write_bytes(b"")
    with pytest.raises(AlreadyServed, match="another process") as caught:
        DirectoryLock.acquire(tmp_path, files=Elsewhere())
    assert caught.value.pid is None
    lock.release()
    lock.release()
    DirectoryLock.acquire(tmp_path).release()


@pytest.mark.slow
def test_a_child_process_does_not_keep_the_lock(tmp_path):
    log, _ = begun(tmp_path / "s")
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        try:
            log.close()
            open_log(tmp_path / "s").log.close()
        finally:
            child.kill()


def test_a_refused_server_leaves_the_holder_its_pid(tmp_path):
    (tmp_path / "lock").write_text("99999999999999\n")
    lock = DirectoryLock.acquire(tmp_path)
    with pytest.raises(AlreadyServed):
        DirectoryLock.acquire(tmp_path)

    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_mounts_is_no_reason_not_to_lock(tmp_path):
    class Full(OsFiles):
        def pwrite(self, fd, data, offset):
            raise OSError(28, "No space left on device")

    lock = DirectoryLock.acquire(tmp_path, files=Full())
    with pytest.raises(AlreadyServed):
        DirectoryLock.acquire(tmp_path)
    lock.release()


@pytest.mark.slow
def test_a_directory_that_is_not_writable_is_named(tmp_path):
    """As an unprivileged user: root may write anywhere."""
    directory = tmp_path / "s"
    directory.mkdir()
    directory.chmod(0o555)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from superfluid.core.errors import StartError\n"
        "from tests.wal.builders import open_log\n"
        "if os.getuid() == 0: os.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "try: open_log(Path('.'))\n"
        "except StartError as error: print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(directory)], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert "Permission denied" in ran.stdout
