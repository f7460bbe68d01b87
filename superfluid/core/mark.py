"""The mark: a small witness, beside the log, of how much of it is durable.

A torn tail and a damaged acknowledgement look the same inside the log. The mark tells them apart: what lies
below its ``end`` was synced and may have been acknowledged, so damage there is corruption; what lies beyond
was told to nobody.

Layout of ``wal.mark``, little-endian: two slots of 64 bytes, at 0 and at 4096 (never in one sector, so that
a torn write costs one of them at most); the file is 8192 bytes.

| at | field |
|---|---|
| 0 | magic ``SFMARK03`` |
| 8 | sequence u64: counts the marks; an even one goes to the slot at 0, an odd one to the slot at 4096 |
| 16 | log id [16] |
| 32 | end u64: the log is durable up to here, a frame boundary |
| 40 | header checksum u64 of the frame that ends there (of the file head when there is none) |
| 48 | epoch u64 of the run that wrote it |
| 56 | checksum u64: xxh3-64 with seed 0 over bytes 0-55 (not keyed: the mark may be another log's) |

The slot with the highest sequence and a good checksum counts. Legal order: the log's fsync, then the mark,
then the delivery. The mark itself is synced rarely: after a crash of the process the page cache still has
it, and after a power loss an older one is merely a weaker witness.
"""

import struct
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

MAGIC: Final = b"SFMARK03"
SLOT_BYTES: Final = 64
SLOT_OFFSETS: Final = (0, 4096)
FILE_BYTES: Final = 8192

_SLOT: Final = struct.Struct("<8sQ16sQQQQ")
_CHECKED: Final = 56


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One statement: the log ``log_id`` is durable up to ``end``, whose last frame has ``checksum``."""

    sequence: int
    log_id: bytes
    end: int
    checksum: int
    epoch: int

    @property
    def offset(self) -> int:
        """Where in the file this mark belongs, in bytes: slots are written alternately."""
        return SLOT_OFFSETS[self.sequence % 2]


def encode_slot(mark: Mark) -> bytes:
    """The 64 bytes of one slot."""
    fields = (MAGIC, mark.sequence, mark.log_id, mark.end, mark.checksum, mark.epoch)
    checked = _SLOT.pack(*fields, 0)[:_CHECKED]
    return checked + xxh3_64_intdigest(checked).to_bytes(8, "little")


def decode_slot(data: bytes) -> Mark | None:
    """The mark in these bytes, or None when they are no intact slot."""
    if len(data) != SLOT_BYTES:
        return None
    magic, sequence, log_id, end, checksum, epoch, check = _SLOT.unpack(data)
    if magic != MAGIC or check != xxh3_64_intdigest(data[:_CHECKED]):
        return None
    return Mark(sequence=sequence, log_id=log_id, end=end, checksum=checksum, epoch=epoch)


def latest(data: bytes) -> Mark | None:
    """The mark that counts in the bytes of a whole mark file, or None when no slot is intact."""
    marks = [decode_slot(data[at : at + SLOT_BYTES]) for at in SLOT_OFFSETS]
    return max((mark for mark in marks if mark is not None), key=lambda mark: mark.sequence, default=None)
