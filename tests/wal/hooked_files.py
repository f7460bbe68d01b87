"""The real files, watched, and made to fail or to call back at a chosen system call."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from superfluid.wal import OsFiles

if TYPE_CHECKING:
    from collections.abc import Callable


class HookedFiles(OsFiles):
    """``calls`` is what happened, as (operation, file name); ``before`` runs ahead of each call and may raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] | None = None
        self._names: dict[int, str] = {}

    def fail(self, *failing: tuple[str, str], code: int = errno.EIO) -> None:
        """Let the next call of each of these (operation, file name) fail, once."""
        left = list(failing)

        def hook(op: str, name: str) -> None:
            if (op, name) in left:
                left.remove((op, name))
                raise OSError(code, os.strerror(code))

        self.before = hook

    def _note(self, op: str, name: str) -> None:
        self.calls.append((op, name))
        if self.before is not None:
            self.before(op, name)

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        fd = super().open(path, flags, mode)
        self._names[fd] = path.name
        return fd

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._note("pwrite", self._names[fd])
        return super().pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        self._note("fsync", self._names[fd])
        super().fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self._note("ftruncate", self._names[fd])
        super().ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._note("allocate", self._names[fd])
        super().allocate(fd, offset, length)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", target.name)
        super().rename(source, target)
        for fd, name in self._names.items():
            if name == source.name:
                self._names[fd] = target.name


class ShortWrites(HookedFiles):
    """Takes only so many bytes of the next write to the log, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.take: int | None = None

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.take is None or self._names[fd] != "wal.log":
            return super().pwrite(fd, data, offset)
        if self.take == 0:
            self.take = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(self.take, len(data))
        self.take = 0
        return super().pwrite(fd, bytes(data[:taken]), offset)
