"""The real system calls, with an fsync that can be held, counted and made to fail.

A full disk and a held process are made with the real thing; a disk that loses writes cannot be.
"""

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from superfluid.wal.files import OsFiles

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0


class FaultyFiles(OsFiles):
    """`hold` lets no fsync pass until `release`; `fail_next` makes one fail as a broken disk does."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.on_sync: Callable[[str], None] | None = None
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()
        self._fail = False

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def fail_next(self) -> None:
        self._fail = True

    def fsync(self, fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        self.entered.release()
        assert self._open.wait(PATIENCE)
        if self._fail:
            self._fail = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fsync(fd)
        self.synced.append(name)
        if self.on_sync is not None:
            self.on_sync(name)
