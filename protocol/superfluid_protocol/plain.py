"""The plain form: compact Python objects for a self-describing binary format. The log stores bodies so.

A variant is ``[index, field, ...]``, a struct ``[field, ...]``, an enum member its index, ``Vec<u32>`` packed
little-endian bytes, an Option None or the value; integers, floats, text and bytes are themselves, other
vectors and tuples are lists.
"""

import struct
from typing import Final, TypeVar, overload

from superfluid_protocol.errors import EncodeError
from superfluid_protocol.generate import Function
from superfluid_protocol.json_form import explain
from superfluid_protocol.plain_reader import PlainReader
from superfluid_protocol.plain_writer import PlainWriter
from superfluid_protocol.schema import type_of, wire_type

T = TypeVar("T")

_reader: Final = PlainReader()
_writer: Final = PlainWriter()
_readers: Final[dict[object, Function]] = {}
_writers: Final[dict[type, Function]] = {}


def to_plain(value: object, as_type: object = None) -> object:
    """The plain form of a value; whatever this returns, ``from_plain`` reads back.

    Args:
        as_type: the declared type, needed only for values that are no structs, variants or enum members.

    Raises:
        EncodeError: the value is not of its declared type.
    """
    try:
        if as_type is not None:
            return _writer.function(wire_type(as_type))(value, 0)
        write = _writers.get(type(value))
        if write is None:
            write = _writers[type(value)] = _writer.function(type_of(value))
        return write(value, 0)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        if isinstance(error, EncodeError):
            raise
        fault = explain(type_of(value) if as_type is None else wire_type(as_type), value)
        if fault is None:  # nothing is wrong with the value: a bug of ours
            raise
        raise fault from None


@overload
def from_plain(type_: type[T], obj: object) -> T: ...
@overload
def from_plain(type_: object, obj: object) -> object: ...
def from_plain(type_: object, obj: object) -> object:
    """Read the plain form of a declared type; lists may come as tuples.

    Raises:
        DecodeError: ``obj`` is no such value; ``path`` names the struct or variant and its field.
    """
    read = _readers.get(type_)
    if read is None:
        read = _readers[type_] = _reader.function(wire_type(type_))
    value: object = read(obj, 0)
    return value
