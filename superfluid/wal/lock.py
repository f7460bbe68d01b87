"""The sessions directory, and the lock that keeps a second server off it.

The kernel's flock on ``<directory>/lock`` is the lock; the file is never unlinked (whoever held the unlinked
one would lock nothing), and its text, the holder's pid, is a courtesy. A crashed holder's lock is gone with
its process. The log's own inode is locked as well (``lock_log``), so that hard links, symbolic links and bind
mounts are no second way in.
"""

import contextlib
import os
from pathlib import Path
from typing import Final, Self

from superfluid.core.errors import AlreadyServed, StartError
from superfluid.wal.files import Files, OsFiles
from superfluid.wal.sync import Syncer

LOCK_NAME: Final = "lock"
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_PID_TEXT_BYTES: Final = 32
_REMOTE: Final = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "smb3")
)


class DirectoryLock:
    """A held lock. ``release``, or the end of the process, gives it back."""

    def __init__(self, directory: Path, files: Files, fd: int) -> None:
        self.directory = directory
        self._files = files
        self._fd: int | None = fd

    @classmethod
    def acquire(cls, directory: Path, *, files: Files | None = None) -> Self:
        """Lock the directory, which exists.

        Raises:
            AlreadyServed: Somebody holds it; ``pid`` says who, when that can be told.
            StartError: The lock file cannot be opened.
        """
        files = files or OsFiles()
        path = directory / LOCK_NAME
        try:
            fd = files.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise StartError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            _lock_or_refuse(files, fd, directory)
            # The text is a courtesy: a full disk without room for it must not keep the log from being read.
            with contextlib.suppress(OSError):
                files.fchmod(fd, FILE_MODE)
                files.ftruncate(fd, 0)
                files.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            files.close(fd)
            raise
        return cls(directory, files, fd)

    def release(self) -> None:
        """Give the lock back; the file stays. Doing it twice is harmless."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._files.close(fd)


def lock_log(files: Files, fd: int, path: Path) -> None:
    """Lock the log's own inode, for as long as ``fd`` is open.

    Raises:
        AlreadyServed: It is served under another name.
    """
    _lock_or_refuse(files, fd, path)


def _lock_or_refuse(files: Files, fd: int, what: Path) -> None:
    if files.flock(fd, exclusive=True, wait=False):
        return
    pid = files.lock_holder(fd) or _written_pid(files, fd)
    holder = f"process {pid}" if pid else "another process"
    raise AlreadyServed(f"{what} is served by {holder}; stop it or name another directory", pid=pid)


def _written_pid(files: Files, fd: int) -> int | None:
    """The pid a holder wrote; no log begins with digits and a newline."""
    text = files.pread(fd, _PID_TEXT_BYTES, 0).strip()
    return int(text) if text.isdigit() else None


def prepare_directory(files: Files, syncer: Syncer, directory: Path) -> list[str]:
    """Make the directory, and the missing ones above it, for the owner alone; return warnings.

    An existing empty directory is closed to others too: it was made for us. One that holds something may be
    shared on purpose (think of ``/tmp``), so it is left as it is, with a warning; our files are 0600 anyway.

    Raises:
        OSError: It cannot be made or opened.
    """
    missing: list[Path] = []
    level = directory
    while (fd := _open_directory(files, level)) is None:
        missing.append(level)
        level = level.parent
    files.close(fd)
    for level in reversed(missing):
        files.mkdir(level, DIRECTORY_MODE)
        syncer.sync_directory(level.parent)
    return _close_to_others(files, directory)


def _open_directory(files: Files, path: Path) -> int | None:
    try:
        return files.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None


def _restrict(files: Files, fd: int, mode: int) -> bool:
    """Take others' permissions away; False when the file is not ours to do so."""
    try:
        files.fchmod(fd, mode)
    except PermissionError:
        return False
    return True


def _close_to_others(files: Files, directory: Path) -> list[str]:
    fd = files.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        warnings = []
        open_to_others = files.fstat(fd).permissions & 0o077
        if open_to_others and (files.names(directory) or not _restrict(files, fd, DIRECTORY_MODE)):
            warnings.append(
                f"{directory} is open to other users; its files are not, but chmod 700 hides their names"
            )
        kind = files.file_system(fd)
        if kind is not None and (kind in _REMOTE or (kind.startswith("fuse") and kind != "fusectl")):
            warnings.append(
                f"{directory} is on a {kind} file system, where locks and fsync may fail; use a local disk"
            )
    finally:
        files.close(fd)
    return warnings
