"""How a wire type is declared in Python, and how a declaration is read.

One declaration drives every form of a value: the postcard codec, the JSON form, the plain form for the
log, the property tests. A field's annotation is its wire type:

==========================  =========================================================
``U8`` ... ``U64``          ``Annotated[int, IntType(...)]``, and ``I8`` ... ``I64``
``F32``, ``F64``            ``Annotated[float, FloatType(...)]``
``Bool``, ``Str``           bool, UTF-8 text
``Bytes``, ``Bytes16``      ``Vec<u8>``, and 16 raw bytes with no length before them
``X | None``                ``Option<X>``
``tuple[X, ...]``           ``Vec<X>``; ``Span`` is ``Vec<u32>``
``tuple[X, Y]``             a tuple; ``tuple[()]`` is the unit
a ``@struct`` class         its fields in order
a ``Sealed`` class          one of its ``@variant(index)`` classes
an ``enum.Enum`` class      a variant without fields; the member's value is the index
==========================  =========================================================

The order of fields and the indices of variants are the format: neither is ever changed. A declaration must
be a real object, so the modules of the catalogue do not use ``from __future__ import annotations``.
"""

import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Final, TypeVar, Union, dataclass_transform, get_args, get_origin

MAX_DEPTH: Final = 64
"""Levels of a value inside a value of its own type (``Rerooted`` in ``Rerooted``). Real prefixes are flat,
so any small bound would do; the reference crate has none and overflows its stack."""

EXTENSION_BASE: Final = 1024
"""First variant index of our own additions; a client of the published protocol never meets one unasked."""

T = TypeVar("T")


class WireType:
    """What one place of a value looks like on the wire. Subclasses are the cases the codecs switch over."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class IntType(WireType):
    """An integer of 8, 16, 32 or 64 bits; 8 bits are one raw byte, more are a varint (zigzag when signed)."""

    bits: int
    signed: bool = False

    @property
    def minimum(self) -> int:
        """The least value the type holds."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def maximum(self) -> int:
        """The greatest value the type holds."""
        return (1 << (self.bits - self.signed)) - 1


@dataclasses.dataclass(frozen=True)
class FloatType(WireType):
    """An IEEE 754 number of 32 or 64 bits, little-endian."""

    bits: int


@dataclasses.dataclass(frozen=True)
class BoolType(WireType):
    """One byte, 0 or 1."""


@dataclasses.dataclass(frozen=True)
class TextType(WireType):
    """Length in bytes, then UTF-8."""


@dataclasses.dataclass(frozen=True)
class BytesType(WireType):
    """Length, then bytes; with a ``size``, exactly that many bytes and no length."""

    size: int | None = None


@dataclasses.dataclass(frozen=True)
class OptionType(WireType):
    """A tag byte, 0 or 1, and after 1 the value."""

    item: WireType


@dataclasses.dataclass(frozen=True)
class VecType(WireType):
    """Number of items, then the items."""

    item: WireType


@dataclasses.dataclass(frozen=True)
class TupleType(WireType):
    """The items, nothing between."""

    items: tuple[WireType, ...]


@dataclasses.dataclass(frozen=True)
class StructType(WireType):
    """A ``@struct`` class: its fields in order."""

    cls: type


@dataclasses.dataclass(frozen=True)
class SumType(WireType):
    """A ``Sealed`` class: variant index, then the variant's fields. ``without``: indices refused here."""

    base: type
    without: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class UnitSumType(WireType):
    """An ``enum.Enum`` class: the variant index alone."""

    cls: type[enum.Enum]


@dataclasses.dataclass(frozen=True)
class Without:
    """Mark on a ``Sealed`` field: these variants are refused in this place."""

    indices: frozenset[int]


class AbsentAtEnd:
    """Mark on an optional last field: bytes that end before it (an older peer's) read as None."""


U8 = Annotated[int, IntType(8)]
U16 = Annotated[int, IntType(16)]
U32 = Annotated[int, IntType(32)]
U64 = Annotated[int, IntType(64)]
I8 = Annotated[int, IntType(8, signed=True)]
I16 = Annotated[int, IntType(16, signed=True)]
I32 = Annotated[int, IntType(32, signed=True)]
I64 = Annotated[int, IntType(64, signed=True)]
F32 = Annotated[float, FloatType(32)]
F64 = Annotated[float, FloatType(64)]
Bool = Annotated[bool, BoolType()]
Str = Annotated[str, TextType()]
Bytes = Annotated[bytes, BytesType()]
Bytes16 = Annotated[bytes, BytesType(16)]
Span = tuple[U32, ...]


class Sealed:
    """Base of the closed sums. Only the classes marked ``@variant`` can be built."""

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__} is abstract: build one of its variants")


_variants: Final[dict[type, dict[int, type]]] = {}
_index_of: Final[dict[type, int]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def struct(cls: type[T]) -> type[T]:
    """Make a class a frozen, slotted, keyword-only dataclass whose field order is its wire form."""
    # One __repr__ for all: dataclass would compile one for each, a fifth of this package's import time.
    cls.__repr__ = _repr  # type: ignore[method-assign]  # the same text as dataclass makes
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)(cls)


def _repr(self: object) -> str:
    cls = type(self)
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # only set on dataclasses
    return f"{cls.__name__}({', '.join(shown)})"


@dataclass_transform(kw_only_default=True, frozen_default=True)
def variant(index: int) -> Callable[[type[T]], type[T]]:
    """Make a class the variant ``index`` of the ``Sealed`` class it derives from (see ``struct``)."""

    def register(cls: type[T]) -> type[T]:
        made = struct(cls)
        base = made.__mro__[1]
        if base.__mro__[1] is not Sealed:
            raise TypeError(f"{cls.__name__} must derive from a Sealed class, and from nothing else")
        known = _variants.setdefault(base, {})
        if index in known:
            raise TypeError(f"{base.__name__} has two variants {index}")
        known[index] = made
        _index_of[made] = index
        return made

    return register


def variants(base: type) -> Mapping[int, type]:
    """The variants of a ``Sealed`` class by index."""
    return types.MappingProxyType(_variants[base])


def variant_index(cls: type) -> int:
    """The index of a variant class. Raises KeyError for any other class."""
    return _index_of[cls]


@dataclasses.dataclass(frozen=True)
class Field:
    """One field as declared: ``name`` in Python, ``wire_name`` in JSON (``class_`` is ``class`` there)."""

    name: str
    wire_name: str
    type: WireType
    absent_at_end: bool


@functools.cache
def fields(cls: type) -> tuple[Field, ...]:
    """The fields of a ``@struct`` or ``@variant`` class in wire order."""
    return tuple(
        Field(
            name=field.name,
            wire_name=field.name.rstrip("_"),
            type=wire_type(field.type),
            absent_at_end=AbsentAtEnd in getattr(field.type, "__metadata__", ()),
        )
        for field in dataclasses.fields(cls)
    )


@functools.cache
def is_recursive(base: type) -> bool:
    """Whether values of this ``Sealed`` class can be nested in each other without end."""
    root = SumType(base)
    seen: set[WireType] = set()
    todo = list(_children(root))
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(_children(node))
    return root in seen


def _children(node: WireType) -> tuple[WireType, ...]:
    match node:
        case OptionType(item) | VecType(item):
            return (item,)
        case TupleType(items):
            return items
        case StructType(cls):
            return tuple(field.type for field in fields(cls))
        case SumType(base, without):
            kept = (cls for index, cls in variants(base).items() if index not in without)
            return tuple(field.type for cls in kept for field in fields(cls))
        case _:
            return ()


def wire_type(declared: object) -> WireType:
    """Read a declaration. Raises TypeError for one that says nothing about the wire."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return _annotated(args)
    if origin in (Union, types.UnionType) and len(args) == 2 and type(None) in args:
        return OptionType(wire_type(args[0] if args[1] is type(None) else args[1]))
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return VecType(wire_type(args[0]))
        return TupleType(tuple(wire_type(arg) for arg in args))
    if isinstance(declared, type):
        return _class(declared)
    raise TypeError(f"{declared!r} does not declare a wire type")


def _annotated(args: tuple[object, ...]) -> WireType:
    inner, *marks = args
    for mark in marks:
        if isinstance(mark, WireType):
            return mark
        if isinstance(mark, Without) and isinstance(inner, type):
            return SumType(inner, mark.indices)
    return wire_type(inner)


def _class(cls: type) -> WireType:
    if issubclass(cls, enum.Enum):
        return UnitSumType(cls)
    if cls in _variants:
        return SumType(cls)
    if cls in _index_of:
        raise TypeError(f"{cls.__name__} is a variant; the wire type is {cls.__mro__[1].__name__}")
    if dataclasses.is_dataclass(cls):
        return StructType(cls)
    raise TypeError(f"{cls.__name__} does not declare a wire type")


def type_of(value: object) -> WireType:
    """The wire type of a struct, a variant or an enum member; TypeError for values that need one named."""
    cls = type(value)
    if cls in _index_of:
        return SumType(cls.__mro__[1])
    if isinstance(value, enum.Enum) or dataclasses.is_dataclass(cls):
        return wire_type(cls)
    raise TypeError(f"a {cls.__name__} says nothing of its wire type; name it")


def member_name(member: enum.Enum) -> str:
    """The wire name of an enum member: ``REROOT`` is ``Reroot``."""
    return "".join(part.capitalize() for part in member.name.split("_"))
