"""Frames on a byte stream, sans-I/O: a u32 little-endian length and that many bytes of payload."""

import struct
from typing import Final

MAX_FRAME: Final = 64 * 1024 * 1024
"""Greatest payload in bytes, both ways: the published protocol's limit. A larger declared length is an attack
or another protocol's bytes, and is refused before anything is allocated."""

HEADER_BYTES: Final = 4
_HEADER: Final = struct.Struct("<I")

_COMPACT_BYTES: Final = 64 * 1024
"""Consumed bytes that may stay in front of the buffer: moving the rest for less costs more than it frees."""


class FrameTooLarge(ValueError):
    """The peer declared a frame above the limit, so where the next one begins is unknown: the stream is over.

    Args:
        declared: the length in the frame's header, in bytes.
    """

    def __init__(self, declared: int, limit: int = MAX_FRAME) -> None:
        super().__init__(f"frame of {declared} bytes is above the limit of {limit}")
        self.declared = declared
        self.limit = limit


def encode_frame(payload: bytes) -> bytes:
    """A payload as a frame. Raises ``FrameTooLarge`` above ``MAX_FRAME``."""
    if len(payload) > MAX_FRAME:
        raise FrameTooLarge(len(payload))
    return _HEADER.pack(len(payload)) + payload


class FrameDecoder:
    """Cuts a byte stream into payloads.

    ``feed`` what was received, then take ``next_frame()`` until it is None. What is held is at most one
    incomplete frame more than what was fed and not taken. After ``FrameTooLarge`` the decoder holds nothing
    and every call raises it again.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._start = 0
        self._error: FrameTooLarge | None = None

    @property
    def buffered(self) -> int:
        """Bytes fed and not returned yet; 0 means that the stream is between two frames."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes. Raises ``FrameTooLarge`` when that was raised before."""
        if self._error is not None:
            raise self._error
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next payload, or None while it is incomplete.

        Raises:
            FrameTooLarge: the four length bytes are in and declare more than the limit.
        """
        if self._error is not None:
            raise self._error
        start, held = self._start, len(self._buffer)
        if held - start < HEADER_BYTES:
            return None
        length: int = _HEADER.unpack_from(self._buffer, start)[0]
        if length > self._limit:
            self._buffer = bytearray()
            self._start = 0
            self._error = FrameTooLarge(length, self._limit)
            raise self._error
        end = start + HEADER_BYTES + length
        if held < end:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[start + HEADER_BYTES : end])
        self._consume(end)
        return payload

    def _consume(self, end: int) -> None:
        """Drop the bytes before ``end``, moving the rest down only when that is cheap for each byte."""
        if end == len(self._buffer):
            self._buffer = bytearray()  # a large frame's memory goes with it
            self._start = 0
        elif end > _COMPACT_BYTES and end * 2 > len(self._buffer):
            del self._buffer[:end]
            self._start = 0
        else:
            self._start = end
