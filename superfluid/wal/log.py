"""The session log of one directory: open, replay, begin, commit, close.

Legal order of calls, by one thread at a time; everything blocks::

    opened = Log.open(directory, now_ms=...)  # locks and surveys; makes what is missing, changes nothing
    for command in opened.commands: ...  # replay; raises LogCorrupt for what does not decode
    opened.log.begin()  # repairs, then writes the synced start frame; service may begin
    opened.log.commit([...])  # one frame, one fsync; any number of times
    opened.log.close()  # the close frame

A start that is refused has changed nothing: until ``begin``, files are only read.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cbor2

from superfluid.core.errors import LogReadOnly, LogRefused, LogUnknown, StartError
from superfluid.core.frame import HEAD_BYTES, FileHead, Kind
from superfluid.core.limits import LOG_CONTROL_BYTES
from superfluid.core.record import Command, encode_batch
from superfluid.core.walk import Walker
from superfluid.wal.append import Appender
from superfluid.wal.files import Files, OsFiles
from superfluid.wal.lock import FILE_MODE, DirectoryLock, lock_log, prepare_directory
from superfluid.wal.markfile import MARK_NAME, MarkFile
from superfluid.wal.reader import LOG_NAME, Progress, read_commands, read_frames, read_head
from superfluid.wal.recover import Repair, Survey, survey
from superfluid.wal.sync import Syncer, create_file, remove_leftovers

_PREFIX: Final = "wal."
"""What all files of the log are called by: the log, its mark, its copied tails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An opened log.

    Args:
        log: The log; ``begin`` it before it is committed to.
        commands: All committed commands in order, read as they are asked for.
        warnings: What a person should know: one sentence each, without content.
        clean: The last run closed the log, or there was none.
    """

    log: "Log"
    commands: Iterator[Command]
    warnings: tuple[str, ...]
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """Counts since the log was opened; sizes in bytes, durations in seconds."""

    end: int
    refused: int
    slow_fsyncs: int
    fsync_seconds: float


class Log:
    """An open session log, and the locks that make it ours. Made by ``open``, ended by ``close``."""

    def __init__(self, appender: Appender, found: Survey, resources: ExitStack, *, now_ms: int) -> None:
        self.path: Final = appender.path
        self.log_id: Final = found.head.log_id
        self.store_id: Final = found.head.store_id
        self.epoch: Final = appender.epoch
        self._appender: Final = appender
        self._found: Final = found
        self._resources: Final = resources
        self._now_ms: Final = now_ms
        self._begun = False
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        now_ms: int,
        files: Files | None = None,
        progress: Progress | None = None,
        on_slow_fsync: Callable[[float], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Opened:
        """Lock a sessions directory and survey its log, made if there is none.

        Args:
            directory: Where ``wal.log`` and ``wal.mark`` are; made with mode 0700 if it is missing.
            now_ms: Milliseconds since 1970; it is written down and decides nothing.
            files: The system calls.
            progress: Called with (bytes done, bytes in all) during the survey.
            on_slow_fsync: Called with the seconds of a slow fsync, from within the call that waited for it.
            monotonic: A clock in seconds to measure fsync and the mark's age by.

        Raises:
            AlreadyServed: Another process has the directory or the log.
            LogCorrupt: What was acknowledged is damaged. Nothing was changed.
            StartError: A file cannot be made, opened or read.
        """
        files = files or OsFiles()
        syncer = Syncer(files, monotonic=monotonic, on_slow=on_slow_fsync)
        path = directory / LOG_NAME
        with ExitStack() as resources:
            try:
                warnings = prepare_directory(files, syncer, directory)
                resources.callback(DirectoryLock.acquire(directory, files=files).release)
                fd = _open_or_create(files, syncer, path, now_ms)
                resources.callback(files.close, fd)
                lock_log(files, fd, path)
                files.fchmod(fd, FILE_MODE)
                mark = MarkFile.open(files, syncer, path.with_name(MARK_NAME))
                resources.callback(mark.close)
                found = survey(files, fd, path, read_head(files, fd, path), mark.latest, progress)
            except OSError as error:
                raise StartError(f"the session log in {directory} cannot be opened: {error}") from error
            appender = Appender(files, syncer, fd, path, mark, found)
            log = cls(appender, found, resources.pop_all(), now_ms=now_ms)
        frames = read_frames(
            files, fd, path, Walker(found.head, found.witness), limit=found.at.offset, progress=None
        )
        return Opened(
            log=log,
            commands=read_commands(path, frames),
            warnings=(*warnings, *_remarks(path, mark, found)),
            clean=found.clean or found.last_frame is None,
        )

    @property
    def read_only(self) -> str | None:
        """Why nothing more can be written until a restart, or None."""
        return self._appender.frozen

    @property
    def end(self) -> int:
        """The durable end of the log, in bytes."""
        return self._appender.end

    @property
    def mark_due_at(self) -> float | None:
        """When ``sync_mark_if_due`` has something to do, by the monotonic clock; None while it has not."""
        return self._appender.mark_due_at

    def statistics(self) -> LogStatistics:
        """Counts since the log was opened."""
        appender, syncer = self._appender, self._appender.syncer
        return LogStatistics(
            end=appender.end,
            refused=appender.refused,
            slow_fsyncs=syncer.slow,
            fsync_seconds=syncer.seconds,
        )

    def begin(self) -> None:
        """Make the disk agree with what was read, and write the synced start frame of this run.

        It does not raise for what the disk refuses: ``read_only`` then says why, and reading goes on.
        """
        assert not self._begun, "a run begins once"
        assert not self._closed, "the log is closed"
        self._begun = True
        appender = self._appender
        try:
            remove_leftovers(appender.files, self.path.parent, _PREFIX)
            Repair(appender.files, appender.syncer, appender.fd, self.path).run(self._found, self._now_ms)
            appender.own_the_mark(known=self._found.witness is not None)
            appender.append(Kind.START, cbor2.dumps({"ts_unix_ms": self._now_ms}), spare=0)
            appender.sync_mark()
        except OSError as error:
            appender.freeze(f"the log could not be repaired ({error.strerror}); free space or mend the disk")
        except (LogRefused, LogUnknown, LogReadOnly) as error:
            appender.freeze(f"the start could not be written: {error}")

    def commit(self, encoded: Sequence[bytes]) -> None:
        """Make commands durable, all of them or none: one frame, one write, one fsync, the mark.

        Args:
            encoded: One or more from ``encode_command``: ``MAX_BATCH_BYTES`` together, or one larger one.

        Raises:
            LogRefused: The disk did not take it, and nothing of it is there. A later commit may succeed.
            LogUnknown: Whether it is there will be known after a restart; until then the log is read-only.
            LogReadOnly: The log takes no writes; the text says why. Nothing was written.
        """
        assert self._begun, "begin() comes before the first commit"
        assert not self._closed, "the log is closed"
        assert encoded, "an empty batch would cost an fsync and say nothing"
        self._appender.append(Kind.DATA, encode_batch(encoded), spare=LOG_CONTROL_BYTES)

    def sync_mark_if_due(self, now: float) -> None:
        """Sync the mark when it is dirty and its last sync is a second ago: between commits, and when idle.

        Args:
            now: Seconds by the monotonic clock.

        It does not raise: a disk that fails here turns the log read-only.
        """
        due = self.mark_due_at
        if due is not None and now >= due:
            # The failure is kept as the reason in ``read_only``.
            with suppress(LogUnknown):
                self._appender.sync_mark()

    def close(self) -> bool:
        """Write the close frame, sync log and mark, release the locks; return whether the log ended well.

        It never raises for the disk: the next start repairs. A log that has become read-only, or was never
        begun, is only released. Doing it twice is harmless.
        """
        appender = self._appender
        if not self._closed:
            self._closed = True
            with self._resources:
                if self._begun and appender.frozen is None:
                    try:
                        appender.append(Kind.CLOSE, b"", spare=0)
                        appender.sync_mark()
                    except (LogRefused, LogUnknown, LogReadOnly) as error:
                        appender.freeze(f"the close could not be written: {error}")
        return self._begun and appender.frozen is None


def _open_or_create(files: Files, syncer: Syncer, path: Path, now_ms: int) -> int:
    try:
        fd = files.open(path, os.O_RDWR)
    except FileNotFoundError:
        if files.is_link(path):
            raise StartError(f"{path} is a symbolic link to nothing; is its disk mounted?") from None
        head = FileHead(
            log_id=secrets.token_bytes(16),
            store_id=secrets.token_bytes(16),
            key=int.from_bytes(secrets.token_bytes(8), "little"),
            created_ms=now_ms,
        )
        return create_file(files, syncer, path, head.encode())
    if not files.fstat(fd).is_regular:
        files.close(fd)
        raise StartError(f"{path} is not a regular file")
    return fd


def _remarks(path: Path, mark: MarkFile, found: Survey) -> Iterator[str]:
    """What a person should know about the log as it was found."""
    end = found.at.offset
    if found.witness is None and (mark.exists or end > HEAD_BYTES):
        fault = "does not speak of this log" if mark.exists else "is missing"
        yield f"{path.with_name(MARK_NAME)} {fault}: what was acknowledged cannot be checked"
    if found.head_damaged:
        yield f"one of the two copies of the head of {path} is damaged; it is written anew"
    if found.tail is not None:
        size, kept = found.tail.file_end - end, found.tail.zeros_from - end
        what = f"after {kept} were copied aside" if kept else "all of them zero"
        yield f"{path} ends in an unfinished write: {size} bytes from offset {end} on are cut off, {what}"
