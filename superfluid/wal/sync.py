"""The one owner of fsync: it times every one, and tells of the slow ones."""

import os
from collections.abc import Callable
from pathlib import Path

from superfluid.core.limits import SLOW_FSYNC_SECONDS
from superfluid.wal.files import Files, write_all

TEMPORARY_SUFFIX = ".new"
"""What a file is called before it is complete. A leftover holds nothing anybody was told about."""


class Syncer:
    """Makes files and directories durable.

    Args:
        files: The system calls.
        monotonic: A clock in seconds; it only measures.
        on_slow: Called with the duration of an fsync of ``SLOW_FSYNC_SECONDS`` or more.
    """

    def __init__(
        self, files: Files, *, monotonic: Callable[[], float], on_slow: Callable[[float], None] | None
    ) -> None:
        self._files = files
        self._monotonic = monotonic
        self._on_slow = on_slow
        self.slow = 0
        self.seconds = 0.0

    def now(self) -> float:
        """Seconds by the clock that measures."""
        return self._monotonic()

    def sync(self, fd: int) -> None:
        """Fsync, timed.

        Raises:
            OSError: The outcome is unknown, for good: a later success does not speak for these bytes.
        """
        begin = self._monotonic()
        self._files.fsync(fd)
        seconds = self._monotonic() - begin
        self.seconds += seconds
        if seconds >= SLOW_FSYNC_SECONDS:
            self.slow += 1
            if self._on_slow is not None:
                self._on_slow(seconds)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = self._files.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(fd)
        finally:
            self._files.close(fd)


def remove_leftovers(files: Files, directory: Path, prefix: str) -> None:
    """Remove what a crash left half made. Under the lock, so nobody is making it now."""
    for name in files.names(directory):
        if name.startswith(prefix) and name.endswith(TEMPORARY_SUFFIX):
            files.unlink(directory / name)


def create_file(files: Files, syncer: Syncer, path: Path, content: bytes, *, lock: bool = False) -> int:
    """Create or replace a file so that it is there whole or not at all; return its descriptor, open for both.

    Temporary name, write, fsync, rename, fsync of the directory.

    Args:
        files: The system calls.
        syncer: The owner of fsync.
        path: The name it gets in the end.
        content: All of it.
        lock: Lock it before anybody can find it by its name.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        files.fchmod(fd, 0o600)
        if lock:
            files.flock(fd, exclusive=True, wait=True)
        write_all(files, fd, content, 0)
        syncer.sync(fd)
        files.rename(temporary, path)
        syncer.sync_directory(path.parent)
    except BaseException:
        files.close(fd)
        raise
    return fd
