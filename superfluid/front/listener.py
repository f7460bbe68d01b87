"""The native socket's file: created private, replaced only when stale, removed at the end.

The socket is bound inside a fresh 0700 directory beside its final path, made 0600 there and renamed into place, so that
there is no instant at which another user could connect to it, and no umask is touched in a process with threads. A
lock on ``<socket>.lock`` (never unlinked) is held while the socket is: only its holder may replace a stale file.
"""

import contextlib
import fcntl
import os
import secrets
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from superfluid.core.errors import AlreadyServed, StartError
from superfluid_protocol.address import socket_path

BACKLOG: Final = 1024
"""Connections the kernel holds while the daemon is busy: a client's connect must not fail in a burst."""

_UCRED: Final = struct.Struct("iII")


class Listener:
    """The bound, listening socket and the lock that protects its path. Close it with `close`."""

    def __init__(self, path: Path, sock: socket.socket, lock: int) -> None:
        self.path = path
        self.sock = sock
        self._lock = lock
        self._inode = path.stat().st_ino

    @classmethod
    def bind(cls, configured: Path) -> "Listener":
        """Bind the socket that *configured* names (see ``superfluid_protocol.address`` for long paths).

        Raises:
            AlreadyServed: Another daemon holds the socket; its pid is in the text.
            StartError: The path is taken by something that is no socket, or its directory cannot be used.
        """
        path = socket_path(configured, os.getuid())
        try:
            _prepare_directory(path.parent, short=path != configured.absolute())
            lock = _lock(path)
        except OSError as failure:
            raise StartError(
                f"the socket {path} cannot be made: {failure.strerror}; choose another --socket"
            ) from failure
        try:
            _check_replaceable(path)
            return cls(path, _bind(path), lock)
        except OSError as failure:
            os.close(lock)
            raise StartError(
                f"the socket {path} cannot be made: {failure.strerror}; choose another --socket"
            ) from failure
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Stop listening and remove the socket's file, if it is still ours. Safe to call twice."""
        if self.sock.fileno() == -1:
            return
        self.sock.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock)


def peer_allowed(sock: socket.socket) -> bool:
    """Whether the connected peer is our own user (or root, who could read everything anyway)."""
    _pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid in (os.getuid(), 0)


def _prepare_directory(directory: Path, *, short: bool) -> None:
    """Make the socket's directory if it is missing; a shared place must be ours alone."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if short:
        info = directory.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise StartError(
                f"{directory} must be a directory of this user with mode 0700; remove it, or use a shorter --socket path"
            )


def _lock(path: Path) -> int:
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        pid = int(holder) if holder.isdigit() else None
        raise AlreadyServed(
            f"another superfluid{f' (pid {pid})' if pid else ''} serves the socket {path}; "
            "stop it, or choose another --socket",
            pid=pid,
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _check_replaceable(path: Path) -> None:
    """Only a socket may be replaced: whatever else has that name is somebody's file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path} exists and is no socket; move it away, or choose another --socket")


def _bind(path: Path) -> socket.socket:
    _remove_leftovers(path)
    private = path.parent / f"{_private_prefix(path)}{secrets.token_hex(6)}"
    private.mkdir(mode=0o700)
    directory = os.open(private, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Through the descriptor the path stays short, however long the directory's own is.
        sock.bind(f"/proc/self/fd/{directory}/s")
        (private / "s").chmod(0o600)
        sock.listen(BACKLOG)
        (private / "s").rename(path)
    except BaseException:
        sock.close()
        with contextlib.suppress(FileNotFoundError):
            (private / "s").unlink()
        raise
    finally:
        os.close(directory)
        private.rmdir()
    return sock


def _private_prefix(path: Path) -> str:
    return f".{path.name}-"


def _remove_leftovers(path: Path) -> None:
    """Remove what a start that was killed in the middle of `_bind` left. Under the lock, so nobody is making it now."""
    prefix = _private_prefix(path)
    for entry in path.parent.iterdir():
        if entry.name.startswith(prefix) and entry.is_dir() and not entry.is_symlink():
            with contextlib.suppress(OSError):
                (entry / "s").unlink(missing_ok=True)
                entry.rmdir()
