"""postcard, version 1, as the reference crate writes and reads it: ``encode`` and ``decode``.

The rules and the crate's lenience are pinned by ``protocol/vectors``. Both directions run on functions
generated from the declarations (``postcard_reader``, ``postcard_writer``).
"""

import struct
from typing import Final, TypeVar, overload

from superfluid_protocol.errors import DecodeError, EncodeError, Reason
from superfluid_protocol.generate import Function
from superfluid_protocol.json_form import explain
from superfluid_protocol.postcard_reader import Reader
from superfluid_protocol.postcard_writer import Writer
from superfluid_protocol.schema import type_of, wire_type

T = TypeVar("T")

_reader: Final = Reader()
_writer: Final = Writer()
# By the declaration as the caller wrote it, and by the value's class: reading a declaration costs too much.
_readers: Final[dict[object, Function]] = {}
_writers: Final[dict[type, Function]] = {}


def encode(value: object, as_type: object = None) -> bytes:
    """The postcard bytes of a value.

    Args:
        as_type: the declared type, needed only for values that are no structs, variants or enum members.

    Raises:
        EncodeError: the value is not of its declared type.
    """
    out = bytearray()
    try:
        if as_type is not None:
            _writer.function(wire_type(as_type))(out, value, 0)
        else:
            write = _writers.get(type(value))
            if write is None:
                write = _writers[type(value)] = _writer.function(type_of(value))
            write(out, value, 0)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        if isinstance(error, EncodeError):
            raise
        fault = explain(type_of(value) if as_type is None else wire_type(as_type), value)
        if fault is None:  # nothing is wrong with the value: a bug of ours
            raise
        raise fault from None
    return bytes(out)


@overload
def decode(type_: type[T], data: bytes | bytearray | memoryview, *, offset: int = 0) -> tuple[T, int]: ...
@overload
def decode(type_: object, data: bytes | bytearray | memoryview, *, offset: int = 0) -> tuple[object, int]: ...
def decode(type_: object, data: bytes | bytearray | memoryview, *, offset: int = 0) -> tuple[object, int]:
    """Read one value of a declared type; returns it and the number of bytes it took.

    Bytes after the value are not looked at: whether they may be there is the caller's rule. Time, memory and
    depth are bounded by ``len(data)`` whatever the bytes say.

    Args:
        offset: where in ``data`` the value begins.

    Raises:
        DecodeError: the bytes are no such value.
    """
    read = _readers.get(type_)
    if read is None:
        read = _readers[type_] = _reader.function(wire_type(type_))
    if offset < 0:
        raise ValueError("a negative offset")
    whole = data if type(data) is bytes else bytes(data)
    try:
        value, end = read(whole, offset, 0)
    except (IndexError, struct.error):
        raise DecodeError(Reason.UNEXPECTED_END, len(whole)) from None
    return value, end - offset
