"""Hypothesis strategies made from the wire declarations: ``values(Request)`` gives any request at all."""

import functools

from hypothesis import strategies as st

from superfluid_protocol.schema import (
    BoolType,
    BytesType,
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
    variants,
    wire_type,
)

NESTED_LEVELS = 2
"""How deep a value of a recursive sum may hold others; the bound itself has tests of its own."""

MAX_ITEMS = 4


def values(type_: object, *, finite: bool = True) -> st.SearchStrategy:
    """Any value of a declared type.

    Args:
        finite: leave out NaN and infinities, which JSON has no word for and equality does not like.
    """
    return _strategy(wire_type(type_), finite, NESTED_LEVELS)


@functools.cache
def _strategy(node: WireType, finite: bool, levels: int) -> st.SearchStrategy:
    match node:
        case IntType():
            edges = (node.minimum, 0, 127, 128, 16383, 16384, 2097151, 2097152, node.maximum)
            fitting = [edge for edge in edges if node.minimum <= edge <= node.maximum]
            return st.sampled_from(fitting) | st.integers(node.minimum, node.maximum)
        case FloatType(bits):
            return st.floats(width=bits, allow_nan=not finite, allow_infinity=not finite)
        case BoolType():
            return st.booleans()
        case TextType():
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
        case BytesType(size):
            return st.binary(min_size=size or 0, max_size=40 if size is None else size)
        case OptionType(item):
            return st.none() | _strategy(item, finite, levels)
        case VecType(item):
            return st.lists(_strategy(item, finite, levels), max_size=MAX_ITEMS).map(tuple)
        case TupleType(items):
            return st.tuples(*(_strategy(item, finite, levels) for item in items))
        case UnitSumType(cls):
            return st.sampled_from(cls)
        case StructType(cls):
            return _build(cls, finite, levels)
        case SumType(base, without):
            below = levels - is_recursive(base)
            allowed = [
                cls
                for index, cls in variants(base).items()
                if index not in without and (below >= 0 or not _holds(cls, base))
            ]
            return st.sampled_from(allowed).flatmap(lambda cls: _build(cls, finite, below))
        case _:
            raise TypeError(f"no strategy for {node}")


@functools.cache
def _build(cls: type, finite: bool, levels: int) -> st.SearchStrategy:
    return st.builds(cls, **{field.name: _strategy(field.type, finite, levels) for field in fields(cls)})


def _holds(cls: type, base: type) -> bool:
    """Whether a variant can hold another value of its own sum."""
    todo = [field.type for field in fields(cls)]
    while todo:
        match todo.pop():
            case SumType(found) if found is base:
                return True
            case OptionType(item) | VecType(item):
                todo.append(item)
            case TupleType(items):
                todo.extend(items)
    return False
