"""Append frames: write, fsync, mark, in that order, and serial.

An append has one of three outcomes, which must never be taken for each other: it returns (durable), it
raises ``LogRefused`` (nothing of it is there, and that is durable too), or it raises ``LogUnknown`` (a
restart tells). After an unknown outcome nothing more is written, not even a close frame: what follows bytes
that may be missing would be lost with them.
"""

from pathlib import Path
from typing import Final

from superfluid.core.errors import LogReadOnly, LogRefused, LogUnknown
from superfluid.core.frame import Kind, Position, build_frame
from superfluid.core.mark import Mark
from superfluid.wal.files import Files, write_all
from superfluid.wal.markfile import MarkFile
from superfluid.wal.recover import Survey
from superfluid.wal.reserve import Reserve
from superfluid.wal.sync import Syncer


class Appender:
    """The writing end of one open log.

    Args:
        files: The system calls.
        syncer: The owner of fsync.
        fd: The log, open for reading and writing, and locked.
        path: Its name, for messages.
        mark: Its mark file.
        found: What recovery found; the first frame goes to ``found.at``.
    """

    def __init__(
        self, files: Files, syncer: Syncer, fd: int, path: Path, mark: MarkFile, found: Survey
    ) -> None:
        self.files: Final = files
        self.syncer: Final = syncer
        self.fd: Final = fd
        self.path: Final = path
        self.epoch: Final = 1 + max(found.at.epoch, mark.latest.epoch if mark.latest is not None else 0)
        self.frozen: str | None = None
        self.refused = 0
        self._mark: Final = mark
        self._log_id: Final = found.head.log_id
        self._key: Final = found.head.key
        self._reserve: Final = Reserve(files, fd)
        self._at = Position(offset=found.at.offset, previous=found.at.previous, epoch=self.epoch)

    @property
    def end(self) -> int:
        """The durable end, in bytes."""
        return self._at.offset

    @property
    def mark_due_at(self) -> float | None:
        """When the mark wants to be synced; None when it is clean or nothing may be written any more."""
        return self._mark.due_at if self.frozen is None else None

    def append(self, kind: Kind, raw: bytes, *, spare: int) -> None:
        """Append one frame, leaving ``spare`` bytes of allocated space behind it.

        Raises:
            LogRefused: Nothing of it is there; a later append may succeed.
            LogUnknown: Whether it is there is unknown.
            LogReadOnly: Nothing is written any more.
        """
        self._check_size()
        frame = build_frame(kind, raw, at=self._at, durable=self._at.offset, key=self._key)
        self._write(frame.data, spare)
        try:
            self.syncer.sync(self.fd)
        except OSError as error:
            raise self._unknown("syncing the log", error) from error
        self._at = frame.after
        try:
            self._mark.write(self._next_mark())
        except OSError as error:
            # Without its witness the frame must not be acknowledged: damage to it would pass for a torn tail.
            raise self._unknown("writing the mark", error) from error

    def own_the_mark(self, *, known: bool) -> None:
        """Have a mark that vouches for this log's end, before the first frame goes behind it.

        Args:
            known: The mark that was found speaks of this log already.

        Raises:
            OSError: The mark cannot be written; neither may the log be.
        """
        if not known:
            self._mark.replace(self._next_mark())

    def sync_mark(self) -> None:
        """Sync the mark if it is dirty.

        Raises:
            LogUnknown: It failed. What was acknowledged is there; the disk is not to be trusted with more.
        """
        try:
            self._mark.sync()
        except OSError as error:
            raise self._unknown("syncing the mark", error) from error

    def freeze(self, reason: str) -> None:
        """Write nothing more. The first reason stands."""
        if self.frozen is None:
            self.frozen = reason

    def _check_size(self) -> None:
        """Refuse when frozen, and freeze when the file has another size than ours.

        Nobody else writes this file. Bytes that were put behind the end, or cut off, are somebody's mistake,
        not to be written over.
        """
        if self.frozen is None:
            size = self.files.fstat(self.fd).size
            if size != self.end:
                self.freeze(f"{self.path} has {size} bytes instead of {self.end}: something else changed it")
        if self.frozen is not None:
            raise LogReadOnly(f"the log is read-only until a restart: {self.frozen}")

    def _write(self, data: bytes, spare: int) -> None:
        try:
            self._reserve.ensure(self.end, len(data), spare=spare)
        except OSError as error:
            raise self._refusal(error) from error
        try:
            write_all(self.files, self.fd, data, self.end)
        except OSError as error:
            self._cut_back()
            raise self._refusal(error) from error

    def _cut_back(self) -> None:
        """Take a failed write back, durably, so that nothing of it is there after a restart either."""
        self._reserve.forget()
        try:
            self.files.ftruncate(self.fd, self.end)
            self.syncer.sync(self.fd)
        except OSError as error:
            raise self._unknown("taking a failed write back", error) from error

    def _next_mark(self) -> Mark:
        latest = self._mark.latest
        return Mark(
            sequence=latest.sequence + 1 if latest is not None else 1,
            log_id=self._log_id,
            end=self._at.offset,
            checksum=self._at.previous,
            epoch=self.epoch,
        )

    def _refusal(self, error: OSError) -> LogRefused:
        self.refused += 1
        return LogRefused(f"the log could not be written ({error.strerror}); nothing of this was stored")

    def _unknown(self, doing: str, error: OSError) -> LogUnknown:
        reason = f"{doing} failed ({error.strerror})"
        self.freeze(reason)
        return LogUnknown(
            f"{reason}: whether this was stored is unknown. The log is read-only until a restart; read"
            " the session after it"
        )
