"""Recovery: find out where the log ends and whether that is well, then make the disk agree.

``survey`` only reads, so a refused start leaves everything as it was. ``Repair`` writes: it copies the torn
tail aside and syncs that; then it cuts the tail off and writes what was last proven anew, and syncs that.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from superfluid.core.frame import FileHead, Frame, HeadReading, Kind, Position
from superfluid.core.limits import LOG_BLOCK_BYTES, LOG_READ_BYTES
from superfluid.core.mark import Mark
from superfluid.core.walk import CleanEnd, TornTail, Walker
from superfluid.wal.files import Files, read_exactly, write_all
from superfluid.wal.lock import FILE_MODE
from superfluid.wal.reader import Progress, own_mark, read_frames
from superfluid.wal.sync import TEMPORARY_SUFFIX, Syncer


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a log was found to be.

    Args:
        head: Who it is.
        head_damaged: One of the head's two copies is to be written anew.
        at: The logical end, behind the last good frame.
        tail: What lies beyond the end, or None.
        last_frame: Offset of the last good frame, or None when there is none yet.
        witness: The mark that speaks of this log, or None.
        clean: The last run ended with a close frame and the mark knows it: nothing can be amiss.
    """

    head: FileHead
    head_damaged: bool
    at: Position
    tail: TornTail | None
    last_frame: int | None
    witness: Mark | None
    clean: bool


def survey(
    files: Files, fd: int, path: Path, reading: HeadReading, mark: Mark | None, progress: Progress | None
) -> Survey:
    """Checksum the whole log and give the verdict.

    Raises:
        LogCorrupt: What was acknowledged is damaged.
    """
    witness = own_mark(mark, reading.head.log_id)
    walker = Walker(reading.head, witness)
    frames = read_frames(files, fd, path, walker, limit=files.fstat(fd).size, progress=progress)
    last: Frame | None = None
    end: CleanEnd | TornTail | None = None
    while end is None:
        try:
            last = next(frames)
        except StopIteration as stop:
            end = stop.value
    tail = end if isinstance(end, TornTail) else None
    closed = last is not None and last.kind is Kind.CLOSE
    return Survey(
        head=reading.head,
        head_damaged=reading.damaged,
        at=end.at,
        tail=tail,
        last_frame=last.offset if last is not None else None,
        witness=witness,
        clean=closed and tail is None and witness is not None and witness.end == end.at.offset,
    )


class Repair:
    """Makes the disk agree with a survey."""

    def __init__(self, files: Files, syncer: Syncer, fd: int, path: Path) -> None:
        self._files = files
        self._syncer = syncer
        self._fd = fd
        self._path = path

    def run(self, found: Survey, now_ms: int) -> None:
        """Copy and cut the tail, write anew what was last proven, sync.

        Raises:
            OSError: Something of it could not be done; the log must not be written then.
        """
        if found.clean and not found.head_damaged:
            return
        end = found.at.offset
        if found.tail is not None:
            if found.tail.zeros_from > end:
                self._copy_aside(end, found.tail.zeros_from, now_ms)
            self._files.ftruncate(self._fd, end)
        if found.head_damaged:
            write_all(self._files, self._fd, found.head.encode(), 0)
        self._write_anew(found.last_frame or 0, end)
        self._syncer.sync(self._fd)

    def _copy_aside(self, begin: int, end: int, now_ms: int) -> None:
        """Keep the tail's bytes, all but the zeros it ends in: somebody may miss what they were."""
        target = self._free_name(f"{self._path.name}.torn-{begin}-{now_ms}")
        temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
        copy = self._files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            for offset in range(begin, end, LOG_READ_BYTES):
                data = read_exactly(self._files, self._fd, min(LOG_READ_BYTES, end - offset), offset)
                write_all(self._files, copy, data, offset - begin)
            self._syncer.sync(copy)
        except OSError:
            # Half a copy takes room on a disk that has none.
            self._files.unlink(temporary)
            raise
        finally:
            self._files.close(copy)
        self._files.rename(temporary, target)
        self._syncer.sync_directory(target.parent)

    def _free_name(self, name: str) -> Path:
        """A name nothing has yet: the clock may have jumped back to an earlier copy's."""
        taken = self._files.names(self._path.parent)
        number = 0
        candidate = name
        while candidate in taken:
            number += 1
            candidate = f"{name}-{number}"
        return self._path.with_name(candidate)

    def _write_anew(self, begin: int, end: int) -> None:
        """Write the last frame, from the start of its block, over itself.

        After a failed fsync the kernel takes the pages for clean: they read well and may never have reached
        the disk. Only the last frame can be in that state, since nothing is written after a failed fsync.
        """
        begin -= begin % LOG_BLOCK_BYTES
        for offset in range(begin, end, LOG_READ_BYTES):
            data = read_exactly(self._files, self._fd, min(LOG_READ_BYTES, end - offset), offset)
            write_all(self._files, self._fd, data, offset)
