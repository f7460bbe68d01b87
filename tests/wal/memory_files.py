"""A disk in memory that fails when told to, and loses what a real one may lose.

It keeps two truths, as a kernel does: what programs see (the page cache) and what the disk holds. ``fsync`` carries
dirty blocks of 4 KiB over; a failed one takes them for clean and carries nothing, so that only writing them again
helps. ``power_loss`` lets chance decide, sector by sector, what of the dirty blocks had reached the disk. ``crash_in``
ends the process at a system call, those counted that change something.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from superfluid.wal.files import FileStat

BLOCK = 4096
SECTOR = 512


class Crash(BaseException):
    """The process ends here. No handler for errors may run into this by accident."""


@dataclass
class Fault:
    """The next call of ``op`` on a file of this name fails; ``taken`` bytes of a write are there all the same."""

    op: str
    name: str
    code: int = errno.EIO
    taken: int = 0


@dataclass
class Inode:
    """One file: what is seen, what is on disk, and which blocks differ."""

    seen: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    mode: int = 0o600

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        self.seen.extend(bytes(max(0, end - len(self.seen))))
        self.seen[offset:end] = data
        self.dirty.update(range(offset // BLOCK, -(-end // BLOCK)))

    def carry(self, begin: int, end: int) -> None:
        """Put these bytes on the disk."""
        end = min(end, len(self.seen))
        if begin < end:
            self.disk.extend(bytes(max(0, end - len(self.disk))))
            self.disk[begin:end] = self.seen[begin:end]

    def sync(self) -> None:
        for block in self.dirty:
            self.carry(block * BLOCK, (block + 1) * BLOCK)
        self.dirty.clear()
        self.truncate_disk(len(self.seen))

    def truncate_disk(self, size: int) -> None:
        del self.disk[size:]
        self.disk.extend(bytes(size - len(self.disk)))


@dataclass
class Open:
    path: Path
    inode: Inode | None
    locked: bool = False


class MemoryFiles:
    """``superfluid.wal.files.Files`` on that disk. ``calls`` is what was asked of it, as (operation, file name)."""

    def __init__(self) -> None:
        self.seen_names: dict[Path, Inode] = {}
        self.disk_names: dict[Path, Inode] = {}
        self.directories = {Path("/")}
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str]] = []
        self.descriptors: dict[int, Open] = {}
        self.crash_in: int | None = None
        self._next_fd = 3

    # -- what happens to the disk -------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies: descriptors and their locks are gone, the page cache stays."""
        self.descriptors.clear()
        self.faults.clear()
        self.crash_in = None

    def power_loss(self, chance: Callable[[], bool]) -> None:
        """The machine dies: what was not synced is there or not, by sectors, names and sizes too."""
        self.kill()
        if chance():
            self.disk_names = dict(self.seen_names)
        self.seen_names = dict(self.disk_names)
        for inode in {id(inode): inode for inode in self.seen_names.values()}.values():
            size = len(inode.seen) if chance() else len(inode.disk)
            for block in sorted(inode.dirty):
                for sector in range(block * BLOCK, (block + 1) * BLOCK, SECTOR):
                    if chance():
                        inode.carry(sector, sector + SECTOR)
            inode.truncate_disk(size)
            inode.seen = bytearray(inode.disk)
            inode.dirty.clear()

    def write_back(self, chance: Callable[[], bool]) -> None:
        """The kernel writes some dirty blocks out on its own."""
        for inode in self.seen_names.values():
            for block in sorted(inode.dirty):
                if chance():
                    inode.carry(block * BLOCK, (block + 1) * BLOCK)
                    inode.dirty.discard(block)

    def content(self, path: Path) -> bytes:
        return bytes(self.seen_names[path].seen)

    # -- the system calls ---------------------------------------------------------------------------

    def _enter(self, op: str, path: Path) -> Fault | None:
        if self.crash_in is not None and op not in {"open", "pread"}:
            if self.crash_in == 0:
                raise Crash
            self.crash_in -= 1
        self.calls.append((op, path.name))
        for fault in self.faults:
            if fault.op == op and path.name.startswith(fault.name):
                self.faults.remove(fault)
                if not fault.taken:
                    raise OSError(fault.code, os.strerror(fault.code))
                return fault
        return None

    def _at(self, fd: int) -> Inode:
        inode = self.descriptors[fd].inode
        assert inode is not None, "a directory has no bytes"
        return inode

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        self._enter("open", path)
        if flags & os.O_DIRECTORY:
            if path not in self.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            inode = None
        else:
            if path not in self.seen_names:
                if not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                self.seen_names[path] = Inode(mode=mode)
            inode = self.seen_names[path]
            if flags & os.O_TRUNC:
                inode.seen.clear()
        self._next_fd += 1
        self.descriptors[self._next_fd] = Open(path, inode)
        return self._next_fd

    def close(self, fd: int) -> None:
        del self.descriptors[fd]

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        self._enter("pread", self.descriptors[fd].path)
        return bytes(self._at(fd).seen[offset : offset + count])

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        fault = self._enter("pwrite", self.descriptors[fd].path)
        taken = min(len(data), fault.taken) if fault else len(data)
        self._at(fd).write(bytes(data[:taken]), offset)
        if fault:
            # What follows a short write is the reason for it.
            self.faults.insert(0, Fault("pwrite", self.descriptors[fd].path.name, fault.code))
        return taken

    def fsync(self, fd: int) -> None:
        opened = self.descriptors[fd]
        if opened.inode is None:
            self._enter("fsync_dir", opened.path)
            self.disk_names = {
                **{path: inode for path, inode in self.disk_names.items() if path.parent != opened.path},
                **{path: inode for path, inode in self.seen_names.items() if path.parent == opened.path},
            }
            return
        try:
            self._enter("fsync", opened.path)
        except OSError:
            opened.inode.dirty.clear()
            raise
        opened.inode.sync()

    def ftruncate(self, fd: int, length: int) -> None:
        self._enter("ftruncate", self.descriptors[fd].path)
        inode = self._at(fd)
        del inode.seen[length:]
        inode.seen.extend(bytes(length - len(inode.seen)))

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._enter("allocate", self.descriptors[fd].path)

    def fstat(self, fd: int) -> FileStat:
        inode = self.descriptors[fd].inode
        if inode is None:
            return FileStat(size=0, permissions=0o700, is_regular=False)
        return FileStat(size=len(inode.seen), permissions=inode.mode, is_regular=True)

    def fchmod(self, fd: int, mode: int) -> None:
        inode = self.descriptors[fd].inode
        if inode is not None:
            inode.mode = mode

    def flock(self, fd: int, *, exclusive: bool, wait: bool) -> bool:
        mine = self.descriptors[fd]
        held = any(
            other.locked and other.inode is mine.inode
            for other in self.descriptors.values()
            if other is not mine
        )
        if held:
            assert not wait, "this would wait for ever"
            return False
        mine.locked = exclusive
        return True

    def lock_holder(self, fd: int) -> int | None:
        return None

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename", target)
        self.seen_names[target] = self.seen_names.pop(source)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        del self.seen_names[path]

    def mkdir(self, path: Path, mode: int) -> None:
        self._enter("mkdir", path)
        self.directories.add(path)

    def names(self, path: Path) -> list[str]:
        return [name.name for name in self.seen_names if name.parent == path]

    def is_link(self, path: Path) -> bool:
        return False

    def file_system(self, fd: int) -> str | None:
        return None
