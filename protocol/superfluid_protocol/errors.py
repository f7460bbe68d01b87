"""The two ways this package says no: ``DecodeError`` for what came in, ``EncodeError`` for what we made."""

import enum


class Reason(enum.Enum):
    """Why bytes (or a JSON or plain object) are not a value of the asked type.

    The first group are the reference crate's refusals, one to one; the comments name its errors.
    """

    UNEXPECTED_END = "unexpected end"  # DeserializeUnexpectedEnd; a length beyond the input counts as one
    BAD_VARINT = "bad varint"  # DeserializeBadVarint: too long for its type, or too large
    BAD_BOOL = "bad bool"  # DeserializeBadBool: a byte that is neither 0 nor 1
    BAD_OPTION = "bad option tag"  # DeserializeBadOption: a tag that is neither 0 nor 1
    BAD_UTF8 = "bad UTF-8"  # DeserializeBadUtf8; in objects: a lone surrogate
    BAD_ENUM = "unknown variant"  # SerdeDeCustom

    # Ours: the crate has no bound here and overflows its stack.
    TOO_DEEP = "nested too deep"
    NOT_NESTABLE = "not allowed inside itself"

    # Objects only (JSON and the plain form).
    BAD_TYPE = "wrong type"
    OUT_OF_RANGE = "out of range"
    BAD_LENGTH = "wrong length"
    NOT_FINITE = "not a finite number"
    MISSING_FIELD = "missing field"
    UNKNOWN_FIELD = "unknown field"


class DecodeError(ValueError):
    """The input is not a value of the asked type.

    Args:
        reason: what is wrong; switch on this, not on the text.
        offset: bytes only: where in the buffer. A short input is reported at its end.
        path: objects only: where in the object, as ``Append.span[3]``.
    """

    def __init__(self, reason: Reason, offset: int | None = None, path: str = "") -> None:
        where = f"at byte {offset}" if offset is not None else f"in {path or 'the value'}"
        super().__init__(f"{reason.value} {where}")
        self.reason = reason
        self.offset = offset
        self.path = path


class EncodeError(ValueError):
    """A value cannot be written: a number out of range, text with a lone surrogate, a field of another type.

    The text names the place and never shows the value, which may be message content.
    """
