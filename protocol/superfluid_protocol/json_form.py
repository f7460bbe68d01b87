"""The JSON form: Python objects for ``json.dumps``, and back.

Sums are externally tagged (``{"Read": {"session": 1, "cursor": 0}}``), a variant without fields is a bare
string (``"Tree"``; ``{"Tree": null}`` is read too), structs are objects, tuples and vectors (bytes too) are
arrays, None is null. JSON comes from browsers and scripts, so reading refuses whatever could mean two things:
NaN and infinities, lone surrogates, booleans and fractions for integers, numbers out of range, unknown fields
and missing ones (an absent ``Option`` alone reads as None).
"""

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

from superfluid_protocol.errors import DecodeError, EncodeError, Reason
from superfluid_protocol.floats import F32_LIMIT, f32, shortest_f32
from superfluid_protocol.schema import (
    MAX_DEPTH,
    BoolType,
    BytesType,
    Field,
    FloatType,
    IntType,
    OptionType,
    StructType,
    SumType,
    TextType,
    TupleType,
    UnitSumType,
    VecType,
    WireType,
    fields,
    is_recursive,
    member_name,
    type_of,
    variant_index,
    variants,
    wire_type,
)

T = TypeVar("T")


def to_json(value: object, as_type: object = None) -> object:
    """The JSON form of a value.

    Args:
        as_type: the declared type, needed only for values that are no structs, variants or enum members.

    Raises:
        EncodeError: the value is not of its declared type, or holds NaN or an infinity.
    """
    return _write_whole(type_of(value) if as_type is None else wire_type(as_type), value, finite=True)


def explain(node: WireType, value: object) -> EncodeError | None:
    """Say why another form's encoder refused ``value``: this one checks every value and knows its place."""
    try:
        _write_whole(node, value, finite=False)
    except EncodeError as error:
        return error
    return None


@overload
def from_json(type_: type[T], obj: object) -> T: ...
@overload
def from_json(type_: object, obj: object) -> object: ...
def from_json(type_: object, obj: object) -> object:
    """Read the JSON form of a declared type.

    Raises:
        DecodeError: ``obj`` is no such value; ``path`` names the place.
    """
    node = wire_type(type_)
    try:
        return _read(node, obj, 0)
    except _Fault as fault:
        raise DecodeError(fault.reason, path=fault.path(node)) from None


class _Fault(Exception):
    """What is wrong and, gathered on its way out, where."""

    def __init__(self, reason: Reason, *steps: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps = list(steps)

    def within(self, step: str) -> "_Fault":
        """Note one step of the way to the place, innermost first."""
        self._steps.append(step)
        return self

    def path(self, root: WireType) -> str:
        """The way from the outermost value to the place."""
        name = root.cls.__name__ if isinstance(root, StructType | UnitSumType) else ""
        return (name + "".join(reversed(self._steps))).removeprefix(".")


# -- checks that both directions share --------------------------------------------------------------


def _int(node: IntType, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _Fault(Reason.BAD_TYPE)
    if not node.minimum <= value <= node.maximum:
        raise _Fault(Reason.OUT_OF_RANGE)
    return int(value)


def _float(node: FloatType, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Fault(Reason.BAD_TYPE)
    try:
        number = float(value)
    except OverflowError:
        raise _Fault(Reason.OUT_OF_RANGE) from None
    if node.bits == 32 and math.isfinite(number) and abs(number) >= F32_LIMIT:
        raise _Fault(Reason.OUT_OF_RANGE)
    return number


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise _Fault(Reason.NOT_FINITE)
    return number


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Fault(Reason.BAD_TYPE)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Fault(Reason.BAD_TYPE)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Fault(Reason.BAD_UTF8) from None
    return value


def _sized(items: Any, size: int) -> None:  # noqa: ANN401 - anything with a length
    if len(items) != size:
        raise _Fault(Reason.BAD_LENGTH)


def _deeper(node: SumType, depth: int) -> int:
    if not is_recursive(node.base):
        return depth
    if depth >= MAX_DEPTH:
        raise _Fault(Reason.TOO_DEEP)
    return depth + 1


def _allowed(node: SumType, index: int) -> None:
    if index in node.without:
        raise _Fault(Reason.NOT_NESTABLE)


# -- writing ----------------------------------------------------------------------------------------


def _write_whole(node: WireType, value: object, *, finite: bool) -> object:
    try:
        return _write(node, value, 0, finite)
    except _Fault as fault:
        raise EncodeError(f"{fault.path(node)}: {fault.reason.value}") from None


def _write(node: WireType, value: Any, depth: int, finite: bool) -> object:  # noqa: ANN401, C901
    match node:
        case IntType():
            return _int(node, value)
        case TextType():
            return _text(value)
        case BoolType():
            return _bool(value)
        case FloatType(bits):
            number = _float(node, value)
            if not finite:
                return number
            return shortest_f32(_finite(number)) if bits == 32 else _finite(number)
        case BytesType(size):
            _exactly(bytes, value)
            if size is not None:
                _sized(value, size)
            return list(value)
        case OptionType(item):
            return None if value is None else _write(item, value, depth, finite)
        case VecType(item):
            _exactly(tuple, value)
            return _write_items((item,) * len(value), value, depth, finite)
        case TupleType(items):
            _exactly(tuple, value)
            _sized(value, len(items))
            return _write_items(items, value, depth, finite) if items else None
        case UnitSumType(cls):
            _exactly(cls, value)
            return member_name(value)
        case StructType(cls):
            _exactly(cls, value)
            return _write_fields(cls, value, depth, finite)
        case SumType():
            return _write_sum(node, value, depth, finite)
        case _:
            raise TypeError(f"no JSON form for {node}")


def _exactly(cls: type, value: object) -> None:
    if type(value) is not cls:
        raise _Fault(Reason.BAD_TYPE)


def _write_items(nodes: tuple[WireType, ...], values: Any, depth: int, finite: bool) -> list[object]:  # noqa: ANN401
    written: list[object] = []
    for at, (node, value) in enumerate(zip(nodes, values, strict=True)):
        try:
            written.append(_write(node, value, depth, finite))
        except _Fault as fault:
            raise fault.within(f"[{at}]") from None
    return written


def _write_fields(cls: type, value: object, depth: int, finite: bool) -> dict[str, object]:
    written: dict[str, object] = {}
    for field in fields(cls):
        try:
            written[field.wire_name] = _write(field.type, getattr(value, field.name), depth, finite)
        except _Fault as fault:
            raise fault.within(f".{field.wire_name}") from None
    return written


def _write_sum(node: SumType, value: object, depth: int, finite: bool) -> object:
    cls = type(value)
    if cls.__base__ is not node.base:
        raise _Fault(Reason.BAD_TYPE)
    try:
        _allowed(node, variant_index(cls))
        written = _write_fields(cls, value, _deeper(node, depth), finite)
    except _Fault as fault:
        raise fault.within(f".{cls.__name__}") from None
    return {cls.__name__: written} if written else cls.__name__


# -- reading ----------------------------------------------------------------------------------------


def _read(node: WireType, obj: Any, depth: int) -> object:  # noqa: ANN401, C901
    match node:
        case IntType():
            return _int(node, obj)
        case TextType():
            return _text(obj)
        case BoolType():
            return _bool(obj)
        case FloatType(bits):
            number = _finite(_float(node, obj))
            return f32(number) if bits == 32 else number
        case BytesType(size):
            read = bytes(_read_items(IntType(8), obj, depth))
            if size is not None:
                _sized(read, size)
            return read
        case OptionType(item):
            return None if obj is None else _read(item, obj, depth)
        case VecType(item):
            return tuple(_read_items(item, obj, depth))
        case TupleType(items):
            return _read_tuple(items, obj, depth)
        case UnitSumType(cls):
            members = {member_name(member): member for member in cls}
            tag, content = _tagged(obj)
            if tag not in members:
                raise _Fault(Reason.BAD_ENUM)
            if content is not None:
                raise _Fault(Reason.BAD_TYPE, f".{tag}")
            return members[tag]
        case StructType(cls):
            return _read_fields(cls, obj, depth)
        case SumType():
            return _read_sum(node, obj, depth)
        case _:
            raise TypeError(f"no JSON form for {node}")


def _read_items(node: WireType, obj: object, depth: int) -> list[Any]:
    if not isinstance(obj, list):
        raise _Fault(Reason.BAD_TYPE)
    read: list[object] = []
    for at, item in enumerate(obj):
        try:
            read.append(_read(node, item, depth))
        except _Fault as fault:
            raise fault.within(f"[{at}]") from None
    return read


def _read_tuple(nodes: tuple[WireType, ...], obj: object, depth: int) -> tuple[object, ...]:
    if not nodes and obj is None:
        return ()
    if not isinstance(obj, list):
        raise _Fault(Reason.BAD_TYPE)
    _sized(obj, len(nodes))
    read: list[object] = []
    for at, (node, item) in enumerate(zip(nodes, obj, strict=True)):
        try:
            read.append(_read(node, item, depth))
        except _Fault as fault:
            raise fault.within(f"[{at}]") from None
    return tuple(read)


def _tagged(obj: object) -> tuple[str, object]:
    """Split a sum's object into variant name and content."""
    if isinstance(obj, str):
        return obj, None
    if not isinstance(obj, dict):
        raise _Fault(Reason.BAD_TYPE)
    _sized(obj, 1)
    [(tag, content)] = obj.items()
    return tag, content


def _read_sum(node: SumType, obj: object, depth: int) -> object:
    tag, content = _tagged(obj)
    found = _by_name(node.base).get(tag)
    if found is None:
        raise _Fault(Reason.BAD_ENUM)
    try:
        _allowed(node, variant_index(found))
        below = _deeper(node, depth)
        return _read_fields(found, content, below) if fields(found) else _read_unit(found, content)
    except _Fault as fault:
        raise fault.within(f".{found.__name__}") from None


def _read_unit(cls: type, content: object) -> object:
    if content is not None:
        raise _Fault(Reason.BAD_TYPE)
    return cls()


_names: Final[dict[type, dict[str, Callable[..., object]]]] = {}


def _by_name(base: type) -> dict[str, Any]:
    known = _names.get(base)
    if known is None:
        known = _names[base] = {cls.__name__: cls for cls in variants(base).values()}
    return known


def _member(obj: dict[str, object], field: Field) -> object:
    if field.wire_name not in obj and not isinstance(field.type, OptionType):
        raise _Fault(Reason.MISSING_FIELD)
    return obj.get(field.wire_name)


def _read_fields(cls: type, obj: object, depth: int) -> object:
    if not isinstance(obj, dict):
        raise _Fault(Reason.BAD_TYPE)
    declared = fields(cls)
    read: dict[str, object] = {}
    for field in declared:
        try:
            read[field.name] = _read(field.type, _member(obj, field), depth)
        except _Fault as fault:
            raise fault.within(f".{field.wire_name}") from None
    known = {field.wire_name for field in declared}
    if not known.issuperset(obj):
        # The name is the sender's: it is not repeated, as it may be content.
        raise _Fault(Reason.UNKNOWN_FIELD)
    return cls(**read)
