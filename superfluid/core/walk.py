"""Walk the frames of a log: bytes in; frame, need more, clean end, torn tail or damage out.

Three ways to end, which must never be taken for each other:

* ``CleanEnd``: the bytes end where a frame ends.
* ``TornTail``: what follows the last good frame is the rest of a write that nobody was told about; it may
  be cut off.
* ``Damage``: bytes that were acknowledged, or may have been, are not what was written; nothing may be cut
  off.

A bad frame below the mark is damage. Beyond it, a bad frame is torn, unless what follows shows that more
than one write lies there: an intact frame that claims durability beyond the bad one's start, or bytes other
than zero further on than the largest frame reaches. That search decides the verdict; it never yields data.

Legal order: ``feed`` any number of bytes, ``next_item`` until it says ``NeedMore``, and so on; ``feed_end``
after the last byte; then ``next_item`` until it gives one of the three ends, which it repeats from then on.
"""

from dataclasses import dataclass
from typing import Final

from superfluid.core.frame import (
    ALIGNMENT,
    FRAME_MAGIC,
    HEAD_BYTES,
    HEADER_BYTES,
    KINDS,
    MAX_FRAME_BYTES,
    FileHead,
    Frame,
    Header,
    Position,
    objection,
    parse_header,
    payload_is_intact,
)
from superfluid.core.mark import Mark


@dataclass(frozen=True, slots=True)
class NeedMore:
    """Not enough yet: at least ``count`` further bytes, or the end, have to be fed."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanEnd:
    """The log ends on a frame boundary."""

    at: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """Bytes from ``at.offset`` to ``file_end`` that are no frame; all zero from ``zeros_from`` on."""

    at: Position
    zeros_from: int
    file_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Acknowledged bytes are not what was written. ``offset`` is that of the first frame concerned."""

    offset: int
    reason: str


End = CleanEnd | TornTail | Damage


class Walker:
    """Reads the frames behind a file head.

    Args:
        head: The file's head; the bytes fed begin right behind it.
        witness: The mark that belongs to this log, or None when there is none to go by.
    """

    def __init__(self, head: FileHead, witness: Mark | None) -> None:
        self._key = head.key
        self._witness = witness
        self._data = b""
        self._used = 0
        self._ended = False
        self._at = Position(offset=HEAD_BYTES, previous=head.checksum, epoch=0)
        self._search: _Search | None = None
        self._end: End | None = None
        if witness is not None and witness.end <= HEAD_BYTES:
            self._check_witness(HEAD_BYTES, HEAD_BYTES)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the file. What is fed is held until its frame is complete."""
        assert not self._ended, "nothing follows the end"
        self._data = self._data[self._used :] + data if self._used < len(self._data) else data
        self._used = 0

    def feed_end(self) -> None:
        """Say that no byte follows."""
        self._ended = True

    def next_item(self) -> Frame | NeedMore | End:
        """The next frame, a wish for more bytes, or how the walk ended."""
        if self._end is not None:
            return self._end
        item = self._next_frame() if self._search is None else None
        if item is None:
            item = self._next_verdict()
        if not isinstance(item, (Frame, NeedMore)):
            self._end = item
        return item

    def _next_frame(self) -> Frame | NeedMore | End | None:
        """The frame at the position; None (and a search begun) when there is a bad one."""
        available = len(self._data) - self._used
        if available < HEADER_BYTES:
            if not self._ended:
                return NeedMore(HEADER_BYTES - available)
            if available == 0:
                return self._clean_end()
            return self._bad_frame("the file ends inside a frame's header")
        at = self._at
        header = parse_header(self._data, self._used, at.offset, self._key)
        if header is None:
            return self._bad_frame("no intact frame begins here")
        if (reason := objection(header, at)) is not None:
            return Damage(offset=at.offset, reason=reason)
        size = header.size
        missing = size - available
        if missing > 0:
            return self._bad_frame("the file ends inside a frame") if self._ended else NeedMore(missing)
        return self._take(header, size)

    def _take(self, header: Header, size: int) -> Frame | End | None:
        begin = self._used + HEADER_BYTES
        padded = self._data[begin : self._used + size]
        if not payload_is_intact(header, padded, self._key):
            return self._bad_frame("the frame's payload is not the one that was written")
        end = header.offset + size
        previous = self._at
        self._at = Position(offset=end, previous=header.checksum, epoch=header.epoch)
        if self._witness is not None and previous.offset < self._witness.end <= end:
            self._check_witness(previous.offset, end)
            if self._end is not None:
                return self._end
        self._used += size
        payload = padded if len(padded) == header.stored else padded[: header.stored]
        return Frame(header, KINDS[header.kind], payload)

    def _check_witness(self, begin: int, end: int) -> None:
        """The mark names a frame boundary and the checksum of the frame that ends there."""
        witness = self._witness
        assert witness is not None
        if witness.end != end or witness.checksum != self._at.previous:
            self._end = Damage(
                offset=begin, reason="the mark vouches for another frame than the one that is here"
            )

    def _clean_end(self) -> End:
        if self._witness is not None and self._at.offset < self._witness.end:
            return Damage(offset=self._at.offset, reason=f"the file ends here and {self._vouched()}")
        return CleanEnd(at=self._at)

    def _bad_frame(self, reason: str) -> Damage | None:
        if self._witness is not None and self._at.offset < self._witness.end:
            return Damage(offset=self._at.offset, reason=f"{reason} and {self._vouched()}")
        self._search = _Search(self._at.offset, self._key)
        return None

    def _vouched(self) -> str:
        assert self._witness is not None
        return f"the mark vouches for everything up to {self._witness.end}"

    def _next_verdict(self) -> NeedMore | End:
        """Search what follows the bad frame; nothing is held but what a header may need."""
        search = self._search
        assert search is not None
        self._used += search.scan(self._data[self._used :], ended=self._ended)
        start = self._at.offset
        if search.later is not None:
            return Damage(
                offset=start, reason=f"no intact frame, and the one at {search.later} was written after it"
            )
        if search.zeros_from > start + MAX_FRAME_BYTES:
            return Damage(offset=start, reason="no intact frame, and more than one write lies behind it")
        if not self._ended:
            return NeedMore(HEADER_BYTES)
        return TornTail(at=self._at, zeros_from=search.zeros_from, file_end=search.offset)


class _Search:
    """Looks through the bytes from a bad frame on for signs of a later write."""

    def __init__(self, start: int, key: int) -> None:
        self._start: Final = start
        self._key: Final = key
        self.offset = start
        self.zeros_from = start
        self.later: int | None = None

    def scan(self, data: bytes, *, ended: bool) -> int:
        """Look at ``data``, which begins at ``self.offset``; return how much of it is done with.

        Unless the end was fed, the bytes in which a header may have begun are left for the next time.
        """
        if filled := len(data.rstrip(b"\0")):
            self.zeros_from = self.offset + filled
        hit = data.find(FRAME_MAGIC)
        while hit >= 0 and hit + HEADER_BYTES <= len(data):
            place = self.offset + hit
            header = parse_header(data, hit, place, self._key) if place % ALIGNMENT == 0 else None
            if header is not None and header.durable > self._start:
                self.later = place
                break
            hit = data.find(FRAME_MAGIC, hit + 1)
        done = len(data) if ended else max(0, len(data) - HEADER_BYTES + 1)
        self.offset += done
        return done
