"""LEB128 varints and zigzag as postcard bounds them, and spans: what the generated code calls.

A short buffer raises IndexError here; ``decode`` turns it into ``Reason.UNEXPECTED_END`` at the buffer's end.
A number out of its range raises ValueError; ``encode`` turns it into an ``EncodeError`` that names the place.
"""

from typing import Final

from superfluid_protocol.errors import DecodeError, Reason

U32_MAX: Final = (1 << 32) - 1
U64_MAX: Final = (1 << 64) - 1


def read_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """Read an unsigned varint of at most ``bits`` bits; returns the value and the position after it.

    Padding with zero bits is accepted up to the type's longest encoding; one byte more, or one bit more,
    is ``BAD_VARINT`` (the reference crate's rule).
    """
    value = 0
    position = at
    for shift in range(0, bits, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return value, position
    raise DecodeError(Reason.BAD_VARINT, at)


def write_varint(out: bytearray, value: int, maximum: int) -> None:
    """Append an unsigned varint. Raises ValueError outside 0 .. ``maximum``."""
    if not 0 <= value <= maximum:
        raise ValueError
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_zigzag(out: bytearray, value: int, bits: int) -> None:
    """Append a signed integer of ``bits`` bits as a zigzag varint. Raises ValueError out of range."""
    write_varint(out, (value << 1) ^ (value >> (bits - 1)), (1 << bits) - 1)


def read_span(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read a ``Vec<u32>``.

    Spans are the long sequences of the protocol, so the loop is written out for the one to three bytes that
    the ids of real vocabularies take.
    """
    count, position = read_varint(data, at, 64)
    end = position + count
    if end > len(data):  # an id takes a byte at least: never build more than the input's size
        raise IndexError
    head = data[position:end]
    if head.isascii():  # no byte has its high bit set: every id is one byte
        return tuple(head), end
    ids: list[int] = []
    append = ids.append
    for _ in range(count):
        first = data[position]
        if first < 0x80:
            append(first)
            position += 1
            continue
        second = data[position + 1]
        if second < 0x80:
            append(first + (second << 7) - 0x80)
            position += 2
            continue
        third = data[position + 2]
        if third < 0x80:
            append(first + (second << 7) + (third << 14) - 0x4080)
            position += 3
            continue
        value, position = read_varint(data, position, 32)
        append(value)
    return tuple(ids), position


def write_span(out: bytearray, span: tuple[int, ...]) -> None:
    """Append a ``Vec<u32>``. Raises ValueError for an id out of range."""
    write_varint(out, len(span), U64_MAX)
    append = out.append
    for value in span:
        if value < 0x80:
            append(value)  # a negative one raises ValueError here
        elif value < 0x4000:
            append(value & 0x7F | 0x80)
            append(value >> 7)
        elif value < 0x200000:
            append(value & 0x7F | 0x80)
            append(value >> 7 & 0x7F | 0x80)
            append(value >> 14)
        else:
            write_varint(out, value, U32_MAX)
