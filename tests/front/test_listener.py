"""The socket's file: private from its first instant, replaced only when stale, never stolen."""

import os
import socket
import stat
import tempfile
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trio

from superfluid.core.errors import AlreadyServed, StartError
from superfluid.front.listener import Listener, peer_allowed
from superfluid_protocol.address import SUN_PATH_BYTES, socket_path
from tests.unprivileged import UNPRIVILEGED, run_as_nobody

LONG_NAME = "ü" * 60 + ".sock"
"""Under 108 characters, and over 108 bytes: the limit is in bytes."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sock"


@pytest.fixture
def listener(path):
    listener = Listener.bind(path)
    yield listener
    listener.close()


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


def stale_socket(path: Path) -> None:
    """What a killed daemon leaves behind."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


# -- permissions ------------------------------------------------------------------------------------


def test_the_socket_is_private_from_its_first_instant(tmp_path, path):
    """Looked at in a loop, under a umask that hides nothing, while it is made again and again."""
    modes: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for entry in [path, *tmp_path.glob(".s.sock-*")]:
                try:
                    info = entry.lstat()
                except FileNotFoundError:
                    continue
                modes.add(stat.S_IFMT(info.st_mode) | stat.S_IMODE(info.st_mode))

    mask = os.umask(0)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            Listener.bind(path).close()
        with_listener = Listener.bind(path)
        while stat.S_IFSOCK | 0o600 not in modes:
            pass
        with_listener.close()
    finally:
        os.umask(mask)
        done.set()
        watcher.join()

    assert modes <= {stat.S_IFSOCK | 0o600, stat.S_IFDIR | 0o700}


def test_a_directory_that_is_missing_is_made_private(tmp_path):
    listener = Listener.bind(tmp_path / "new" / "deep" / "s.sock")
    listener.close()

    assert stat.S_IMODE((tmp_path / "new" / "deep").stat().st_mode) == 0o700


def test_only_the_socket_and_its_lock_are_left(tmp_path, listener):
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.sock", "s.sock.lock"]


@pytest.mark.skipif(os.getuid() != 0, reason="another user can be played by root only")
def test_a_peer_of_another_user_is_told_from_ours():
    """Behind the file's mode, which keeps it from connecting at all; here that is opened wide."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        Path(directory).chmod(0o711)
        listener = stack.enter_context(closing(Listener.bind(Path(directory) / "s.sock")))
        listener.path.chmod(0o666)

        def connect() -> None:
            socket.socket(socket.AF_UNIX).connect(str(listener.path))

        run_as_nobody(connect)
        theirs, _ = listener.sock.accept()
        stack.enter_context(theirs)
        connect_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
        connect_socket.connect(str(listener.path))
        ours, _ = listener.sock.accept()
        stack.enter_context(ours)

        assert not peer_allowed(theirs)
        assert peer_allowed(ours)


# -- what has the name already ----------------------------------------------------------------------


def test_a_stale_socket_is_replaced(path):
    stale_socket(path)

    listener = Listener.bind(path)

    assert connects(path)
    listener.close()


def test_what_a_killed_start_left_half_made_is_removed(tmp_path, path):
    for name in (".s.sock-abc", ".s.sock-def", ".other.sock-abc"):
        (tmp_path / name).mkdir()
    stale_socket(tmp_path / ".s.sock-abc" / "s")

    Listener.bind(path).close()

    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.sock-abc", "s.sock.lock"]


@pytest.mark.parametrize("kind", ["file", "directory", "link to a file", "dangling link"])
def test_what_is_no_socket_is_left_alone(tmp_path, path, kind):
    other = tmp_path / "other"
    match kind:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "link to a file":
            other.write_text("precious")
            path.symlink_to(other)
        case "dangling link":
            path.symlink_to(other)
    before = path.lstat()

    with pytest.raises(StartError, match="is no socket"):
        Listener.bind(path)

    assert path.lstat() == before
    path.rmdir() if kind == "directory" else path.unlink()
    Listener.bind(path).close()  # the lock was given back


def test_a_live_socket_is_not_stolen_and_its_holder_is_named(path, listener):
    with pytest.raises(AlreadyServed, match=f"pid {os.getpid()}") as refusal:
        Listener.bind(path)

    assert refusal.value.pid == os.getpid()
    assert connects(path)


def test_a_live_socket_is_not_stolen_though_its_backlog_is_full(path, listener):
    listener.sock.listen(0)
    crowd = []
    try:
        while len(crowd) < 10:
            sock = socket.socket(socket.AF_UNIX)
            crowd.append(sock)
            sock.setblocking(False)
            try:
                sock.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(AlreadyServed):
            Listener.bind(path)
    finally:
        for sock in crowd:
            sock.close()
    assert path.exists()


def test_the_lock_survives_its_holder_as_a_file_and_not_as_a_lock(path):
    Listener.bind(path).close()

    assert path.with_name("s.sock.lock").exists()
    Listener.bind(path).close()


def test_closing_removes_the_socket_and_not_its_successor(path):
    first = Listener.bind(path)
    path.unlink()
    stale_socket(path)

    first.close()
    first.close()

    assert path.exists()


# -- long paths -------------------------------------------------------------------------------------


def test_a_path_that_is_too_long_in_bytes_falls_back_by_the_clients_rule(tmp_path):
    long = tmp_path / LONG_NAME
    assert len(str(long)) < len(bytes(long))
    assert len(bytes(long)) >= SUN_PATH_BYTES

    listener = Listener.bind(long)
    try:
        assert listener.path == socket_path(long, os.getuid())
        assert len(bytes(listener.path)) < SUN_PATH_BYTES
        assert connects(socket_path(long, os.getuid()))
        assert stat.S_IMODE(listener.path.parent.stat().st_mode) == 0o700
        with pytest.raises(AlreadyServed):
            Listener.bind(long)
    finally:
        listener.close()
        listener.path.with_name(f"{listener.path.name}.lock").unlink()


def test_the_shared_place_of_short_paths_must_be_ours_alone(tmp_path, monkeypatch):
    open_to_all = tmp_path / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr("superfluid.front.listener.socket_path", lambda path, uid: open_to_all / "s.sock")

    with pytest.raises(StartError, match="mode 0700"):
        Listener.bind(tmp_path / LONG_NAME)


def test_the_longest_path_that_fits_is_used_itself(tmp_path):
    room = SUN_PATH_BYTES - 1 - len(bytes(tmp_path)) - 1
    path = tmp_path / ("s" * room)

    listener = Listener.bind(path)

    assert listener.path == path
    assert connects(path)
    listener.close()


# -- directories that cannot be used ----------------------------------------------------------------


@pytest.mark.slow
def test_a_directory_that_may_not_be_written_is_named(tmp_path):
    directory = tmp_path / "closed"
    directory.mkdir()
    directory.chmod(0o500)

    said = UNPRIVILEGED.python(
        "from pathlib import Path; from superfluid.front.listener import Listener; "
        f"Listener.bind(Path({str(directory / 's.sock')!r}))"
    )

    assert said.returncode == 1
    assert f"StartError: the socket {directory}/s.sock cannot be made: Permission denied" in said.stderr


async def test_a_full_backlog_of_connections_is_served_once_accepted(listener):
    """Connections made before anybody accepts wait in the kernel."""
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    try:
        for sock in crowd:
            sock.connect(str(listener.path))
        accepted = 0
        while accepted < len(crowd):
            await trio.lowlevel.wait_readable(listener.sock)
            listener.sock.accept()[0].close()
            accepted += 1
    finally:
        for sock in crowd:
            sock.close()
