"""The lossy encoding of a state: its F16 values in blocks of 32 that share a scale, everything else as it is.

A block is 32 signed bytes and one F16 scale, as in the engine's own q8_0: 34 bytes for 64. The layout of a state is the
engine's private matter, so it is read here to the last byte, and what does not fit the picture is refused: recurrent
layers, other types than F16, cells with more than a position. Nothing of it is guessed when a file is read back: where
the values are stands in front of them.

    u32 spans, for each u64 start and u64 bytes (in the state)
    then in the state's order: bytes outside of spans as they are, and of each span the scales, then the values

The largest error of a value is about 1/250 of the largest one of its block.
"""

import struct
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Span: TypeAlias = tuple[int, int]
"""Start and size of a run of F16 values in a state, in bytes."""

BLOCK: Final = 32
"""Values that share a scale."""

_F16: Final = 1
"""``ggml_type``."""
_AT_ONCE: Final = 1 << 15
"""Blocks in one step: two MiB of values, so that the steps are short and need little memory."""
_SPAN: Final = struct.Struct("<QQ")
_COUNT: Final = struct.Struct("<I")
_MOST_LAYERS: Final = 4096
_MOST_STREAMS: Final = 256


class LayoutError(ValueError):
    """The state, or what is stored of it, is not laid out as this module knows it."""


def lossy_refusal(state: Bytes) -> str | None:
    """Why states like *state* cannot be stored in the lossy encoding, or None when they can."""
    try:
        return None if spans(state) else "the state holds no F16 values"
    except LayoutError as error:
        return f"the state is not laid out as F16 keys and values: {error}"


# -- where the values are ---------------------------------------------------------------------------


class _Cursor:
    """Reads a state from its front."""

    def __init__(self, state: Bytes) -> None:
        self._view = state.data
        self.at = 0

    def take(self, size: int) -> memoryview:
        if size > len(self._view) - self.at:
            raise LayoutError("it ends early")
        self.at += size
        return self._view[self.at - size : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    @property
    def ended(self) -> bool:
        return self.at == len(self._view)


def spans(state: Bytes) -> list[Span]:
    """The runs of F16 values in an exported state, ascending.

    Raises:
        LayoutError: not every byte of it is understood.
    """
    cursor = _Cursor(state)
    cursor.take(8)  # a magic number, and the sequence it was
    found: list[Span] = []
    while not cursor.ended:  # one cache, or one with all positions and one with the window's
        streams = cursor.u32()
        if not 0 < streams <= _MOST_STREAMS:
            raise LayoutError("it is of an impossible number of sequences")
        for _ in range(streams):
            _read_stream(cursor, found)
    return found


def _read_stream(cursor: _Cursor, found: list[Span]) -> None:
    cells = cursor.u32()
    if cells == 0:
        return
    places = np.frombuffer(cursor.take(12 * cells), "<u4").reshape(cells, 3)
    if (places[:, 1] != 1).any():
        raise LayoutError("a cell has more than a position of one sequence")
    transposed, layers = cursor.u32(), cursor.u32()
    # No layers at all: a model whose layers all slide has an empty other cache.
    if transposed > 1 or layers > _MOST_LAYERS:
        raise LayoutError("its layers are not keys and values")
    for _ in range(layers):
        _read_rows(cursor, cells, found)
    for _ in range(layers):
        if transposed:
            _read_columns(cursor, cells, found)
        else:
            _read_rows(cursor, cells, found)


def _read_rows(cursor: _Cursor, cells: int, found: list[Span]) -> None:
    kind, row = cursor.u32(), cursor.u64()
    if kind != _F16 or row % 2:
        raise LayoutError("a layer is not of F16 values")
    _note(cursor, cells * row, found)


def _read_columns(cursor: _Cursor, cells: int, found: list[Span]) -> None:
    kind, element, width = cursor.u32(), cursor.u32(), cursor.u32()
    if kind != _F16 or element != 2:
        raise LayoutError("a layer is not of F16 values")
    _note(cursor, cells * element * width, found)


def _note(cursor: _Cursor, size: int, found: list[Span]) -> None:
    found.append((cursor.at, size))
    cursor.take(size)


# -- there and back ---------------------------------------------------------------------------------


def pack(state: Bytes) -> Bytes:
    """*state* in the lossy encoding.

    Raises:
        LayoutError: it is not laid out as this module knows it, or holds values that are not finite.
    """
    found = spans(state)
    values = sum(size for _, size in found)
    table = _COUNT.pack(len(found)) + b"".join(_SPAN.pack(*span) for span in found)
    packed = sum(_packed_bytes(size) for _, size in found)
    stored = np.empty(len(table) + len(state) - values + packed, np.uint8)
    stored[: len(table)] = np.frombuffer(table, np.uint8)
    at, done = len(table), 0
    for start, size in found:
        stored[at : at + start - done] = state[done:start]
        at += start - done
        done = start + size
        _quantize(state[start:done], stored[at : at + _packed_bytes(size)])
        at += _packed_bytes(size)
    stored[at:] = state[done:]
    return stored


def unpack(stored: Bytes, state_bytes: int) -> Bytes:
    """The state of so many bytes that *stored* gives.

    Raises:
        LayoutError: it gives none.
    """
    found, at = _read_table(stored, state_bytes)
    state = np.empty(state_bytes, np.uint8)
    done = 0
    for start, size in found:
        state[done:start] = stored[at : at + start - done]
        at += start - done
        done = start + size
        _restore(stored[at : at + _packed_bytes(size)], state[start:done])
        at += _packed_bytes(size)
    state[done:] = stored[at:]
    return state


def _read_table(stored: Bytes, state_bytes: int) -> tuple[list[Span], int]:
    """The spans, and where what follows them starts, once it is known that all of it adds up."""
    cursor = _Cursor(stored)
    count = cursor.u32()
    table = cursor.take(_SPAN.size * count)
    found = [(int(start), int(size)) for start, size in _SPAN.iter_unpack(table)]
    at = 0
    for start, size in found:
        if start < at or size % 2:
            raise LayoutError("what is stored names impossible places")
        at = start + size
    packed = sum(_packed_bytes(size) - size for _, size in found)
    if at > state_bytes or len(stored) - cursor.at != state_bytes + packed:
        raise LayoutError("what is stored is of another size")
    return found, cursor.at


def _blocks(size: int) -> int:
    return -(-size // (2 * BLOCK))


def _packed_bytes(size: int) -> int:
    return _blocks(size) * (2 + BLOCK)


def _quantize(values: Bytes, out: Bytes) -> None:
    blocks = _blocks(len(values))
    scales, quants = (
        out[: 2 * blocks].view(np.float16),
        out[2 * blocks :].view(np.int8).reshape(blocks, BLOCK),
    )
    for first in range(0, blocks, _AT_ONCE):
        part = values[first * 2 * BLOCK : (first + _AT_ONCE) * 2 * BLOCK].view(np.float16).astype(np.float32)
        part = np.pad(part, (0, -len(part) % BLOCK)).reshape(-1, BLOCK)
        most = np.abs(part).max(axis=1)
        if not np.isfinite(most).all():
            raise LayoutError("it holds values that are not finite")
        some = slice(first, first + len(part))
        scales[some] = most / 127
        scale = scales[some].astype(np.float32)
        inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
        quants[some] = np.rint(part * inverse[:, None]).clip(-127, 127)


def _restore(packed: Bytes, values: Bytes) -> None:
    blocks = _blocks(len(values))
    scales, quants = (
        packed[: 2 * blocks].view(np.float16),
        packed[2 * blocks :].view(np.int8).reshape(blocks, BLOCK),
    )
    for first in range(0, blocks, _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        part = quants[some] * scales[some].astype(np.float32)[:, None]
        out = values[first * 2 * BLOCK : (first + _AT_ONCE) * 2 * BLOCK].view(np.float16)
        out[:] = part.ravel()[: len(out)]
