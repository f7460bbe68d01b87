"""Frames: the container format of the session log, version 3. Bytes in, bytes out; ``core.walk`` reads a
file of them.

Goals, in order: never accept damage as data; never refuse a log because of a tail nobody was told about;
one fsync for many commands; readable in a hex dump. All numbers are little-endian.

**File head.** Two identical copies of 64 bytes, at 0 and at 64. A file gets its head before it gets its
name, so a missing or damaged head is never a torn write; one intact copy is enough to read by.

| at | field |
|---|---|
| 0 | magic ``SFLOG003`` |
| 8 | log id [16]: random, new for every file, also after compaction |
| 24 | store id [16]: random, kept when the log is compacted |
| 40 | key u64: random; the seed of every checksum in this file |
| 48 | created, ms since 1970 u64 (informative: time never orders or validates anything) |
| 56 | checksum u64: xxh3-64, keyed, over bytes 0-55 |

**Frames** follow from 128 on and start on 16-byte boundaries, so that a magic can be searched for in steps
and a header crosses at most one sector boundary. A frame is one batch, everything one fsync commits,
written with one write.

| at | field |
|---|---|
| 0 | magic ``SFB3`` |
| 4 | kind u8: 1 data, 2 start, 3 close, 4 snapshot. Never 0: a run of zeros is no frame |
| 5 | flags u8: bit 0, the payload is one zstandard frame |
| 6 | zero u16 |
| 8 | own offset u64: log bytes pasted elsewhere, even into this log, are no frames |
| 16 | durable u64: the end known durable when this frame was written; at most the own offset |
| 24 | epoch u64: the run that wrote it; never falls |
| 32 | stored length u32, without padding |
| 36 | raw length u32, before compression |
| 40 | header checksum u64 of the previous frame, of the file head for the first: the chain |
| 48 | payload checksum u64: xxh3-64, keyed, over the payload with its padding |
| 56 | header checksum u64: xxh3-64, keyed, over bytes 0-55 |
| 64 | payload, zero-padded to 16 |

The payload of a data frame is a batch of commands (``core.record``). A start frame opens each run of the
daemon and carries the run's epoch; a close frame ends a run that ended well; their payloads are
informative. Snapshot is reserved.

A header whose checksum and own offset are right was written here by a holder of the key: what it says is
then trusted, and a kind, flag or length that this version does not know is refused rather than cut off as
torn.

**Legal order of calls**, serial for a log: ``build_frame`` at the end, one write, fsync, mark
(``core.mark``), delivery.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import zstandard
from xxhash import xxh3_64_intdigest

from superfluid.core.errors import LogCorrupt
from superfluid.core.limits import COMPRESS_FROM_BYTES, MAX_PAYLOAD_BYTES, MAX_ZSTD_WINDOW_BYTES

VERSION: Final = 3
"""Of the format, as ``Inspection.wal_version`` tells it; the magic numbers carry it too."""

HEAD_MAGIC: Final = b"SFLOG003"
HEAD_COPY_BYTES: Final = 64
HEAD_BYTES: Final = 2 * HEAD_COPY_BYTES
FRAME_MAGIC: Final = b"SFB3"
ALIGNMENT: Final = 16
HEADER_BYTES: Final = 64
MAX_FRAME_BYTES: Final = HEADER_BYTES + -(-MAX_PAYLOAD_BYTES // ALIGNMENT) * ALIGNMENT

_HEAD: Final = struct.Struct("<8s16s16sQQQ")
_HEADER: Final = struct.Struct("<4sBBHQQQIIQQQ")
_CHECKED: Final = 56
_ZSTD: Final = 0x01
_ZSTD_LEVEL: Final = 1


class Kind(IntEnum):
    """What a frame is."""

    DATA = 1
    START = 2
    CLOSE = 3
    SNAPSHOT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """Who a log file is. ``checksum`` is the first link of the chain."""

    log_id: bytes
    store_id: bytes
    key: int
    created_ms: int

    @property
    def checksum(self) -> int:
        """The head's own checksum, which the first frame names as its predecessor's."""
        return xxh3_64_intdigest(self._checked(), seed=self.key)

    def _checked(self) -> bytes:
        packed = _HEAD.pack(HEAD_MAGIC, self.log_id, self.store_id, self.key, self.created_ms, 0)
        return packed[:_CHECKED]

    def encode(self) -> bytes:
        """The 128 bytes a log file begins with."""
        return 2 * (self._checked() + self.checksum.to_bytes(8, "little"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReading:
    """A head as found: ``damaged`` is true when one of its two copies has to be written anew."""

    head: FileHead
    damaged: bool


def decode_head(data: bytes) -> HeadReading | None:
    """Read the first 128 bytes of a file; None when they are no head, or two intact copies disagree."""
    copies = [_decode_copy(data[at : at + HEAD_COPY_BYTES]) for at in (0, HEAD_COPY_BYTES)]
    intact = [copy for copy in copies if copy is not None]
    if not intact or intact[0] != intact[-1]:
        return None
    return HeadReading(head=intact[0], damaged=len(intact) < len(copies))


def _decode_copy(data: bytes) -> FileHead | None:
    if len(data) != HEAD_COPY_BYTES:
        return None
    magic, log_id, store_id, key, created_ms, checksum = _HEAD.unpack(data)
    if magic != HEAD_MAGIC or checksum != xxh3_64_intdigest(data[:_CHECKED], seed=key):
        return None
    return FileHead(log_id=log_id, store_id=store_id, key=key, created_ms=created_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where the next frame goes: its offset, the checksum it chains to, and the highest epoch before it."""

    offset: int
    previous: int
    epoch: int


class Header(NamedTuple):
    """The header of a frame whose checksum, magic and own offset are right.

    A tuple, because a start makes a million of them: as a frozen dataclass they took a third of the walk.
    """

    kind: int
    flags: int
    zero: int
    offset: int
    durable: int
    epoch: int
    stored: int
    raw: int
    previous: int
    payload_checksum: int
    checksum: int

    @property
    def size(self) -> int:
        """Bytes of the whole frame, header and padding included."""
        return HEADER_BYTES + self.stored + -self.stored % ALIGNMENT


@dataclass(frozen=True, slots=True)
class Frame:
    """A proven frame. ``payload`` is as stored; ``unpack`` gives the bytes that were committed."""

    header: Header
    kind: Kind
    payload: bytes

    @property
    def offset(self) -> int:
        """Where the frame begins in its file."""
        return self.header.offset

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.header.offset + self.header.size


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltFrame:
    """A frame ready to be written, and the position behind it."""

    data: bytes
    after: Position


def build_frame(kind: Kind, raw: bytes, *, at: Position, durable: int, key: int) -> BuiltFrame:
    """Lay out one frame.

    Args:
        kind: What it is; a snapshot is not written by this version.
        raw: The payload, at most ``MAX_PAYLOAD_BYTES``. It is compressed when that is worth it.
        at: Where it goes; ``at.epoch`` is the epoch of the run that writes it.
        durable: The end known durable now.
        key: The file's checksum key.
    """
    assert len(raw) <= MAX_PAYLOAD_BYTES, "a batch is closed before it passes the frame's limit"
    flags, payload = _compress(raw)
    stored = len(payload)
    if padding := -stored % ALIGNMENT:
        payload += bytes(padding)
    fields = (FRAME_MAGIC, kind, flags, 0, at.offset, durable, at.epoch, stored, len(raw), at.previous)
    checked = _HEADER.pack(*fields, xxh3_64_intdigest(payload, seed=key), 0)[:_CHECKED]
    checksum = xxh3_64_intdigest(checked, seed=key)
    data = b"".join((checked, checksum.to_bytes(8, "little"), payload))
    return BuiltFrame(
        data=data, after=Position(offset=at.offset + len(data), previous=checksum, epoch=at.epoch)
    )


def _compress(raw: bytes) -> tuple[int, bytes]:
    """Compress what is large and gains by it; a compressor a call costs 8 us and keeps threads apart."""
    if len(raw) >= COMPRESS_FROM_BYTES:
        packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress(raw)
        if len(packed) <= len(raw) - len(raw) // 8:
            return _ZSTD, packed
    return 0, raw


def parse_header(data: bytes, at: int, offset: int, key: int) -> Header | None:
    """The intact header at ``data[at:]``, which lies at ``offset`` in its file, or None."""
    fields = _HEADER.unpack_from(data, at)
    if (
        fields[0] != FRAME_MAGIC
        or fields[4] != offset
        or fields[11] != xxh3_64_intdigest(data[at : at + _CHECKED], seed=key)
    ):
        return None
    return Header._make(fields[1:])


def objection(header: Header, at: Position) -> str | None:
    """Why an intact header cannot follow here, or None. No torn write: its checksum is right."""
    if header.previous != at.previous:
        return "the frame does not follow the one before it"
    if header.kind == Kind.SNAPSHOT:
        return "a snapshot frame, which this version does not read"
    if header.kind not in _KNOWN_KINDS or header.flags & ~_ZSTD or header.zero:
        return f"a frame of kind {header.kind} with flags {header.flags:#x}, which this version does not know"
    if header.durable > header.offset or header.epoch < at.epoch:
        return "the frame's epoch or durable end contradicts the frames before it"
    if max(header.stored, header.raw) > MAX_PAYLOAD_BYTES or (
        not header.flags and header.raw != header.stored
    ):
        return "the frame's length passes the limit or contradicts itself"
    return None


_KNOWN_KINDS: Final = frozenset((Kind.DATA, Kind.START, Kind.CLOSE))
KINDS: Final = {int(kind): kind for kind in Kind}


def payload_is_intact(header: Header, padded: bytes, key: int) -> bool:
    """Whether the payload, with its padding, is the one the header was written for."""
    return header.payload_checksum == xxh3_64_intdigest(padded, seed=key)


def unpack(frame: Frame) -> bytes:
    """The payload before compression.

    Raises:
        LogCorrupt: It was compressed and does not decompress to the declared length, or asks its reader for
        more memory than the limits allow. Both are found out before anything is decompressed.
    """
    if not frame.header.flags & _ZSTD:
        return frame.payload
    try:
        declared = zstandard.get_frame_parameters(frame.payload)
        if declared.content_size != frame.header.raw or declared.window_size > MAX_ZSTD_WINDOW_BYTES:
            raise LogCorrupt(
                "the compressed payload declares another size than its frame, or too large a window"
            )
        return zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES).decompress(
            frame.payload, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise LogCorrupt("the compressed payload does not decompress") from error
