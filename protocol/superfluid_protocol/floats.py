"""f32 in a language that has only f64: bit-exact NaNs, and the shortest decimal.

In memory an f32 is the float of exactly its value (0.7 reads as 0.699999988079071), so that values compare
equal whichever way they came in.
"""

import functools
import struct
from typing import Final

_F32: Final = struct.Struct("<f")
_F64: Final = struct.Struct("<d")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

F32_LIMIT: Final = 3.4028235677973366e38
"""The least magnitude that rounds to infinity as an f32: the greatest f32 and half a step."""

_F32_DIGITS: Final = 9
"""Significant digits that tell any two f32 apart."""


def f32(value: float) -> float:
    """Round to the nearest f32. Raises OverflowError when that is infinite and ``value`` is not."""
    rounded: float = _F32.unpack(_F32.pack(value))[0]
    return rounded


def read_f32(data: bytes, at: int) -> float:
    """Read an f32; raises ``struct.error`` when the buffer is short."""
    value: float = _F32.unpack_from(data, at)[0]
    if value != value:
        return _widen_nan(_U32.unpack_from(data, at)[0])
    return value


def write_f32(out: bytearray, value: float) -> None:
    """Append an f32, rounded to nearest. Raises OverflowError beyond the greatest f32."""
    if value != value:
        out += _U32.pack(_narrow_nan(value))
    else:
        out += _F32.pack(value)


def read_f64(data: bytes, at: int) -> float:
    """Read an f64; raises ``struct.error`` when the buffer is short."""
    value: float = _F64.unpack_from(data, at)[0]
    return value


def write_f64(out: bytearray, value: float) -> None:
    """Append an f64."""
    out += _F64.pack(value)


def _widen_nan(bits: int) -> float:
    """The f64 NaN with an f32 NaN's sign and payload. The CPU's own conversion would set the quiet bit."""
    wide = (bits & 0x8000_0000) << 32 | 0x7FF << 52 | (bits & 0x7F_FFFF) << 29
    value: float = _F64.unpack(_U64.pack(wide))[0]
    return value


def _narrow_nan(value: float) -> int:
    """The bits of the f32 NaN with the sign and the upper payload of an f64 NaN."""
    wide: int = _U64.unpack(_F64.pack(value))[0]
    payload = wide >> 29 & 0x7F_FFFF
    # A payload that lives in the lower bits only would leave an infinity: make it the quiet NaN.
    return (wide >> 32 & 0x8000_0000) | 0x7F80_0000 | (payload or 0x40_0000)


def shortest_f32(value: float) -> float:
    """The float whose ``repr`` is the shortest decimal that reads back as the f32 nearest to ``value``.

    The value must be finite. Raises OverflowError beyond the greatest f32.
    """
    return _shortest(value) if value else value  # zeros compare equal, so a cache would lose the sign of one


@functools.lru_cache(maxsize=1024)  # sampling parameters: a handful of values, over and over
def _shortest(value: float) -> float:
    packed = _F32.pack(value)
    exact: float = _F32.unpack(packed)[0]
    for digits in range(_F32_DIGITS - 1):
        mantissa, exponent = f"{exact:.{digits}e}".replace(".", "").split("e")
        scale = int(exponent) - digits
        # Above a power of two the f32 are half as dense as below it: when the nearest decimal lies just too far
        # below, the next one away from zero may still be near enough.
        away = int(mantissa) + (1 if exact > 0 else -1)
        for candidate in (float(f"{mantissa}e{scale}"), float(f"{away}e{scale}")):
            if abs(candidate) < F32_LIMIT and _F32.pack(candidate) == packed:
                return candidate
    return float(f"{exact:.{_F32_DIGITS}g}")
