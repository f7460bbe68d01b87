"""The park file: the exported state of one sequence on disk.

    prefix   8 bytes magic, u16 version, u16 encoding, u16 bytes of the identity, u16 bytes of the digest,
             u64 positions, u64 bytes of the state, u64 bytes stored       (little-endian, as everything here)
    names    the identity in UTF-8, the digest
    check    16 bytes xxh3_128 of prefix and names
    stored   the stored bytes
    end      16 bytes xxh3_128 of everything before, 8 bytes end mark; nothing follows

A file is whole or it is refused: what its header claims has to be its real size to the byte, before anything is
allocated for it, and both checks have to agree before anybody uses a byte of it. Nothing is checked by parts: the thread
that writes runs at the lowest priority, and each step it takes is a chance that it loses its core while it holds the
interpreter's lock, for which the lanes would wait. One check and a few large writes are a dozen steps.

This module knows bytes and file objects. What is in a state is the engine's business, when files are written ``filer``'s.
Zstandard has no encoding here: on F16 states it saves 8 % at level 1 and takes four times as long as writing them.
"""

import errno
import os
import stat
import struct
from dataclasses import dataclass
from enum import IntEnum
from io import FileIO
from pathlib import Path
from typing import Final

import xxhash

from superfluid.core.limits import MAX_PARK_NAME_BYTES, PARK_SYNC_BYTES

MAGIC: Final = b"\x89SFPARK\n"
END: Final = b"PARKED\r\n"
VERSION: Final = 1
SUFFIX: Final = ".park"
TEMPORARY: Final = ".tmp"

_PREFIX: Final = struct.Struct("<8sHHHHQQQ")
_WHOLE_BYTES: Final = 16
_MOST_EXPANSION: Final = 4
"""A state is at most so many times larger than what is stored of it."""


class ParkError(ValueError):
    """The file is no whole park file, or not the one that was asked for."""


class Encoding(IntEnum):
    """How the stored bytes give the state."""

    RAW = 0
    """They are the state."""
    Q8 = 2
    """``quantize.pack`` of it: about half the size, and close to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a park file says of itself.

    Attributes:
        identity: Of the model and of everything that decides whether another worker can read the state.
        digest: Of the token ids of its positions.
        state_bytes: Of the state; ``stored_bytes`` of what is stored of it.
    """

    identity: str
    digest: bytes
    positions: int
    encoding: Encoding
    state_bytes: int
    stored_bytes: int

    def pack(self) -> bytes:
        """The head of the file: prefix, names and their check.

        Raises:
            ParkError: identity or digest are longer than ``MAX_PARK_NAME_BYTES``.
        """
        identity = self.identity.encode()
        if max(len(identity), len(self.digest)) > MAX_PARK_NAME_BYTES:
            raise ParkError("identity or digest are too long")
        prefix = _PREFIX.pack(
            MAGIC,
            VERSION,
            self.encoding,
            len(identity),
            len(self.digest),
            self.positions,
            self.state_bytes,
            self.stored_bytes,
        )
        head = prefix + identity + self.digest
        return head + xxhash.xxh3_128_digest(head)

    @property
    def file_bytes(self) -> int:
        """Of a whole file with this header."""
        return len(self.pack()) + self.stored_bytes + _WHOLE_BYTES + len(END)


def read_header(path: Path) -> Header:
    """The header of the file at *path*, whose size is as the header says. Reads no more than the head.

    Raises:
        ParkError: it is no park file, or is damaged so far.
        OSError: it cannot be opened or read.
    """
    with open_park(path) as source:
        return read_head(source)


def leftovers(directory: Path) -> list[Path]:
    """The unfinished files in *directory*, of workers that were killed. Only for when no worker is running."""
    return sorted(path for path in directory.iterdir() if path.suffix == TEMPORARY)


def open_park(path: Path) -> FileIO:
    """Open the file at *path* for reading, unless it is something else than a file.

    Raises:
        ParkError: it is a link, a directory, a pipe or the like.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ParkError("not a file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ParkError("not a file")
    return FileIO(descriptor)


def read_head(source: FileIO) -> Header:
    """The header at the start of an open file, whose size is as the header says.

    Raises:
        ParkError: it is no park file, or is damaged so far.
    """
    prefix = _read(source, _PREFIX.size)
    magic, version, encoding, *lengths, positions, state_bytes, stored_bytes = _PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION or max(lengths) > MAX_PARK_NAME_BYTES:
        raise ParkError("not a park file of this version")
    names = _read(source, sum(lengths))
    if _read(source, _WHOLE_BYTES) != xxhash.xxh3_128_digest(prefix + names):
        raise ParkError("its header is damaged")
    try:
        header = Header(
            identity=names[: lengths[0]].decode(),
            digest=names[lengths[0] :],
            positions=positions,
            encoding=Encoding(encoding),
            state_bytes=state_bytes,
            stored_bytes=stored_bytes,
        )
    except ValueError as error:
        raise ParkError("its header is none of this version") from error
    _check_sizes(header, os.fstat(source.fileno()).st_size)
    return header


def _check_sizes(header: Header, size: int) -> None:
    if size != header.file_bytes:
        raise ParkError(f"it has {size} bytes instead of {header.file_bytes}")
    most = header.stored_bytes * (1 if header.encoding is Encoding.RAW else _MOST_EXPANSION)
    if not header.stored_bytes <= header.state_bytes <= most or not header.positions:
        raise ParkError("its header claims an impossible size")


def write(out: FileIO, header: Header, stored: memoryview) -> None:
    """Write a whole file to *out*, syncing it as it grows."""
    head = header.pack()
    whole = xxhash.xxh3_128(head)
    whole.update(stored)
    _write(out, memoryview(head))
    for start in range(0, len(stored), PARK_SYNC_BYTES):
        _write(out, stored[start : start + PARK_SYNC_BYTES])
        os.fdatasync(out.fileno())
    _write(out, memoryview(whole.digest() + END))
    os.fsync(out.fileno())


def read_stored(source: FileIO, header: Header, into: memoryview) -> None:
    """Read what is stored behind the head that *source* has just given into a buffer of ``stored_bytes``.

    Raises:
        ParkError: the file is damaged; what *into* holds is worth nothing.
    """
    _read_into(source, into)
    whole = xxhash.xxh3_128(header.pack())
    whole.update(into)
    if _read(source, _WHOLE_BYTES + len(END)) != whole.digest() + END or source.read(1):
        raise ParkError("it is damaged")


def _write(out: FileIO, data: memoryview) -> None:
    while data:
        data = data[out.write(data) :]


def _read(source: FileIO, size: int) -> bytes:
    data = bytearray(size)
    _read_into(source, memoryview(data))
    return bytes(data)


def _read_into(source: FileIO, view: memoryview) -> None:
    while view:
        done = source.readinto(view)
        if not done:
            raise ParkError("it is cut short")
        view = view[done:]
