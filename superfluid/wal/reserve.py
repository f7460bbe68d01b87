"""Disk space kept allocated ahead of the log's end, so that a full disk is found out before a write.

The space is allocated beyond the end of the file without moving that end: the size of the file stays what was
written, so that a size other than the writer's own is proof of a second writer, and recovery never meets a
preallocated region.
"""

import errno
from typing import Final

from superfluid.core.limits import LOG_RESERVE_BYTES
from superfluid.wal.files import Files

_UNSUPPORTED: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))


class Reserve:
    """The allocated space behind one open log."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self._until = 0
        self._supported = True

    def ensure(self, begin: int, length: int, *, spare: int) -> None:
        """Have space for ``length`` bytes at ``begin`` and for ``spare`` more behind them.

        A file system that cannot allocate ahead is served without: a write that fails is cut back then.

        Raises:
            OSError: There is no room. Nothing was written.
        """
        needed = length + spare
        if begin + needed <= self._until or not self._supported:
            return
        try:
            self._allocate(begin, needed + LOG_RESERVE_BYTES)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                self._supported = False
            elif error.errno in _FULL:
                # Less than the whole reserve is left: take only what this write needs.
                self._allocate(begin, needed)
            else:
                raise

    def forget(self) -> None:
        """The file was cut: what had been allocated beyond its end is gone."""
        self._until = 0

    def _allocate(self, begin: int, length: int) -> None:
        self._files.allocate(self._fd, begin, length)
        self._until = begin + length
