"""The one place where the log meets the operating system, small enough to be replaced by one that fails.

Every method is one system call (or reads one file of ``/proc``) and raises ``OSError`` as the call does.
"""

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_FALLOC_FL_KEEP_SIZE: Final = 0x01


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """What the log asks about a file: its size in bytes, its permission bits, and what it is."""

    size: int
    permissions: int
    is_regular: bool


class Files(Protocol):
    """The system calls of the log."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open a file; the descriptor is not inherited by child processes."""

    def close(self, fd: int) -> None:
        """Close a descriptor, which releases its lock."""

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """Read at most ``count`` bytes; fewer only at the end of the file."""

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write at ``offset``; return how many bytes were taken."""

    def fsync(self, fd: int) -> None:
        """Make a file, or a directory opened for reading, durable."""

    def ftruncate(self, fd: int, length: int) -> None:
        """Cut (or extend) a file."""

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Give the range disk space without changing the file's size."""

    def fstat(self, fd: int) -> FileStat:
        """Describe an open file."""

    def fchmod(self, fd: int, mode: int) -> None:
        """Set permission bits."""

    def flock(self, fd: int, *, exclusive: bool, wait: bool) -> bool:
        """Lock the open file; False when somebody else holds it and ``wait`` is off."""

    def lock_holder(self, fd: int) -> int | None:
        """The process that holds an exclusive lock on the file, when that can be told."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its name, replacing what had it."""

    def unlink(self, path: Path) -> None:
        """Remove a name."""

    def mkdir(self, path: Path, mode: int) -> None:
        """Make one directory."""

    def names(self, path: Path) -> list[str]:
        """What a directory holds."""

    def is_link(self, path: Path) -> bool:
        """Whether the name is a symbolic link."""

    def file_system(self, fd: int) -> str | None:
        """The type of file system it lies on, such as ``ext4`` or ``fuse.sshfs``, when that can be told."""


class OsFiles:
    """The real thing."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """See ``Files``."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        """See ``Files``."""
        os.close(fd)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """See ``Files``."""
        return os.pread(fd, count, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """See ``Files``."""
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        """See ``Files``."""
        os.fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        """See ``Files``."""
        os.ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """See ``Files``. Not ``posix_fallocate``, which moves the file's end."""
        if _fallocate is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        while _fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, length) != 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    def fstat(self, fd: int) -> FileStat:
        """See ``Files``."""
        found = os.fstat(fd)
        return FileStat(
            size=found.st_size,
            permissions=stat.S_IMODE(found.st_mode),
            is_regular=stat.S_ISREG(found.st_mode),
        )

    def fchmod(self, fd: int, mode: int) -> None:
        """See ``Files``."""
        os.fchmod(fd, mode)

    def flock(self, fd: int, *, exclusive: bool, wait: bool) -> bool:
        """See ``Files``. Never ``lockf``: a record lock is lost when any descriptor of the file is closed."""
        operation = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(fd, operation if wait else operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock_holder(self, fd: int) -> int | None:
        """See ``Files``. The kernel's list knows better than what a holder once wrote into a file."""
        found = os.fstat(fd)
        inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in _lines(Path("/proc/locks")):
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:00:131099 0 EOF
            fields = line.split()
            if fields[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and fields[5] == inode and int(fields[4]) > 0:
                return int(fields[4])
        return None

    def rename(self, source: Path, target: Path) -> None:
        """See ``Files``."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """See ``Files``."""
        path.unlink()

    def mkdir(self, path: Path, mode: int) -> None:
        """See ``Files``."""
        path.mkdir(mode)

    def names(self, path: Path) -> list[str]:
        """See ``Files``."""
        return [entry.name for entry in path.iterdir()]

    def is_link(self, path: Path) -> bool:
        """See ``Files``."""
        return path.is_symlink()

    def file_system(self, fd: int) -> str | None:
        """See ``Files``. The mount table has the name, where ``statfs`` says "some FUSE file system"."""
        device = os.fstat(fd).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        for line in _lines(Path("/proc/self/mountinfo")):
            # 36 35 98:0 /root /mount/point options [optional fields] - ext4 /dev/sda1 options
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == wanted:
                return source.split()[0]
        return None


def _lines(path: Path) -> list[str]:
    """The lines of a file of ``/proc``, or none where there is no such file: what they tell is a courtesy."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """The C library's ``fallocate``, which Python does not offer with flags."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int

    def fallocate(fd: int, mode: int, offset: int, length: int) -> int:
        return int(function(fd, mode, offset, length))

    return fallocate


_fallocate: Final = _find_fallocate()


def write_all(files: Files, fd: int, data: bytes, offset: int) -> None:
    """Write all of ``data``, going on after a short write.

    Raises:
        OSError: What the call says (``EIO`` when it takes nothing). Some of the bytes may be there.
    """
    written = files.pwrite(fd, data, offset)
    if written == len(data):
        return
    rest = memoryview(data)
    while True:
        if written <= 0:
            raise OSError(errno.EIO, "the write took no byte")
        rest = rest[written:]
        offset += written
        if not rest:
            return
        written = files.pwrite(fd, rest, offset)


def read_exactly(files: Files, fd: int, count: int, offset: int) -> bytes:
    """Read ``count`` bytes, or what there is up to the end of the file."""
    data = files.pread(fd, count, offset)
    if len(data) == count or not data:
        return data
    parts = [data]
    missing = count - len(data)
    while missing and (data := files.pread(fd, missing, offset + count - missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)
