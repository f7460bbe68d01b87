"""``wal.mark`` on disk: read it, write its slots in turn, sync it now and then.

A server keeps the file locked exclusively for as long as it may write the log; that lock is what an offline
reader tests to learn whether a server is live. It is not the lock that keeps servers apart (``wal.lock``).
"""

import os
from pathlib import Path
from typing import Final, Self

from superfluid.core.limits import MARK_SYNC_SECONDS
from superfluid.core.mark import FILE_BYTES, Mark, encode_slot, latest
from superfluid.wal.files import Files, read_exactly, write_all
from superfluid.wal.sync import Syncer, create_file

MARK_NAME: Final = "wal.mark"


class MarkFile:
    """The mark of a log that this process serves.

    ``latest`` is the mark that counts in the file, or None when there is no file or no intact slot in it.
    """

    def __init__(self, files: Files, syncer: Syncer, path: Path, fd: int | None) -> None:
        self._files: Final = files
        self._syncer: Final = syncer
        self._path: Final = path
        self._fd = fd
        self._dirty = False
        self._synced_at = syncer.now()
        self.exists: Final = fd is not None
        self.latest = latest(read_exactly(files, fd, FILE_BYTES, 0)) if fd is not None else None

    @classmethod
    def open(cls, files: Files, syncer: Syncer, path: Path) -> Self:
        """Open and lock the mark, if there is one.

        A reader that tests the lock holds it for the time of one call, so waiting for it is short. Another
        server cannot hold it: it would hold the directory or the log.
        """
        try:
            fd = files.open(path, os.O_RDWR)
        except FileNotFoundError:
            return cls(files, syncer, path, None)
        try:
            files.flock(fd, exclusive=True, wait=True)
            files.fchmod(fd, 0o600)
            return cls(files, syncer, path, fd)
        except BaseException:
            files.close(fd)
            raise

    def replace(self, mark: Mark) -> None:
        """Put a new, synced file that holds this one mark in place of what may be there."""
        content = bytearray(FILE_BYTES)
        slot = encode_slot(mark)
        content[mark.offset : mark.offset + len(slot)] = slot
        fd = create_file(self._files, self._syncer, self._path, bytes(content), lock=True)
        self.close()
        self._fd = fd
        self.latest = mark
        self._note_synced()

    def write(self, mark: Mark) -> None:
        """Write a mark into the slot that does not hold the latest one. ``sync`` makes it durable."""
        assert self._fd is not None, "there is a mark file before the first frame"
        write_all(self._files, self._fd, encode_slot(mark), mark.offset)
        self.latest = mark
        self._dirty = True

    @property
    def due_at(self) -> float | None:
        """When the mark wants to be synced, in seconds of the syncer's clock; None when it is clean."""
        return self._synced_at + MARK_SYNC_SECONDS if self._dirty else None

    def sync(self) -> None:
        """Sync what was written, if anything was."""
        if self._dirty and self._fd is not None:
            self._syncer.sync(self._fd)
            self._note_synced()

    def _note_synced(self) -> None:
        self._dirty = False
        self._synced_at = self._syncer.now()

    def close(self) -> None:
        """Close the file and give its lock back."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._files.close(fd)


def read_mark(files: Files, path: Path) -> tuple[Mark | None, bool]:
    """The mark, and whether a server is live behind it. Changes nothing and waits for nobody."""
    try:
        fd = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None, False
    try:
        live = not files.flock(fd, exclusive=False, wait=False)
        return latest(read_exactly(files, fd, FILE_BYTES, 0)), live
    finally:
        files.close(fd)
