"""Read a log file: its head, its frames, its commands. Nothing here writes or locks.

``read_log`` is for readers beside the server: ``session inspect`` without one, ``log verify`` on a live one.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Final

from superfluid.core.errors import LogCorrupt, StartError
from superfluid.core.frame import HEAD_BYTES, Frame, HeadReading, Kind, decode_head, unpack
from superfluid.core.limits import LOG_READ_BYTES
from superfluid.core.mark import Mark
from superfluid.core.record import Command, decode_batch
from superfluid.core.walk import CleanEnd, Damage, NeedMore, TornTail, Walker
from superfluid.wal.files import Files, OsFiles, read_exactly
from superfluid.wal.markfile import MARK_NAME, read_mark

LOG_NAME: Final = "wal.log"

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while a log is read."""

_OLDER_MAGIC: Final = b"BRTWAL02"


def corrupt(path: Path, offset: int, reason: str) -> LogCorrupt:
    """The refusal to go on: the file, the offset, and the two ways out."""
    return LogCorrupt(
        f"{path} is damaged at offset {offset}: {reason}. Nothing was changed. Either put an intact copy in"
        f" its place, or move {path.name} aside, to begin with an empty log"
    )


def read_head(files: Files, fd: int, path: Path) -> HeadReading:
    """The head of a log.

    Raises:
        LogCorrupt: There is none.
        StartError: It is a log of an older format.
    """
    data = read_exactly(files, fd, HEAD_BYTES, 0)
    if data.startswith(_OLDER_MAGIC):
        raise StartError(f"{path} is a log of the older format, version 2; this server writes version 3")
    reading = decode_head(data)
    if reading is None:
        raise corrupt(path, 0, "no intact file head")
    return reading


def read_frames(
    files: Files, fd: int, path: Path, walker: Walker, *, limit: int, progress: Progress | None = None
) -> Generator[Frame, None, CleanEnd | TornTail]:
    """Yield the frames up to ``limit`` (bytes of the file); return how they end. Holds one frame at a time.

    Raises:
        LogCorrupt: What was acknowledged is damaged, or the disk cannot read it.
    """
    offset = HEAD_BYTES
    while True:
        item = walker.next_item()
        if isinstance(item, Frame):
            yield item
        elif isinstance(item, NeedMore):
            wanted = min(max(item.count, LOG_READ_BYTES), limit - offset)
            data = _read(files, fd, path, wanted, offset) if wanted > 0 else b""
            if data:
                walker.feed(data)
                offset += len(data)
            else:
                walker.feed_end()
            if progress is not None:
                progress(offset, limit)
        elif isinstance(item, Damage):
            raise corrupt(path, item.offset, item.reason)
        else:
            return item


def _read(files: Files, fd: int, path: Path, count: int, offset: int) -> bytes:
    try:
        return files.pread(fd, count, offset)
    except OSError as error:
        raise corrupt(path, offset, f"it cannot be read ({error.strerror})") from error


def read_commands(path: Path, frames: Iterable[Frame]) -> Iterator[Command]:
    """The commands in the data frames.

    Raises:
        LogCorrupt: A frame's checksum is good and its payload does not decode.
    """
    for frame in frames:
        if frame.kind is Kind.DATA:
            try:
                yield from decode_batch(unpack(frame))
            except LogCorrupt as error:
                raise corrupt(path, frame.offset, str(error)) from error


def log_path(path: Path, files: Files) -> Path:
    """The log file that is meant: of a sessions directory, or the file itself."""
    try:
        files.close(files.open(path, os.O_RDONLY | os.O_DIRECTORY))
    except NotADirectoryError:
        return path
    return path / LOG_NAME


def read_log(path: Path, *, files: Files | None = None) -> Iterator[Command]:
    """The committed commands of a log that a server may be writing now. Takes no lock and changes nothing.

    Args:
        path: The log file, or the sessions directory it is in.
        files: The system calls.

    With a server live, it stops at the mark: what lies beyond may yet be taken back. Without one, it reads
    what the next start would keep.

    Raises:
        StartError: There is no log there, it cannot be opened, or it is of another format.
        LogCorrupt: It is damaged; the commands before the damage have been yielded.
    """
    files = files or OsFiles()
    try:
        file = log_path(path, files)
        fd = files.open(file, os.O_RDONLY)
    except OSError as error:
        raise StartError(f"no session log can be read at {path}: {error.strerror}") from error
    try:
        head = read_head(files, fd, file).head
        # In this order: if no server is live after the size was asked for, nobody writes below that size now.
        limit = files.fstat(fd).size
        mark, live = read_mark(files, file.with_name(MARK_NAME))
        witness = own_mark(mark, head.log_id)
        if live and witness is not None:
            limit = witness.end
        walker = Walker(head, witness)
        yield from read_commands(file, read_frames(files, fd, file, walker, limit=limit))
    finally:
        files.close(fd)


def own_mark(mark: Mark | None, log_id: bytes) -> Mark | None:
    """The mark, when it speaks of this log."""
    return mark if mark is not None and mark.log_id == log_id else None
