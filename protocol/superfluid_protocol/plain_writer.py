"""Values to plain objects: generates ``write(value, depth) -> object`` for a declared type.

Everything is checked on the way, because what this makes goes to the log: a record that could be written and
not read back would keep the daemon from starting. The generated code raises TypeError, ValueError or
``struct.error``; ``to_plain`` turns them into an ``EncodeError`` that names the place.
"""

import math
import struct
from typing import Final, NoReturn

from superfluid_protocol.errors import EncodeError
from superfluid_protocol.floats import F32_LIMIT
from superfluid_protocol.generate import Body, Generator
from superfluid_protocol.schema import (
    MAX_DEPTH,
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
)

_PARAMETERS: Final = "value, depth"


def _refuse() -> NoReturn:
    raise TypeError


def _too_deep() -> NoReturn:
    raise EncodeError(f"nested deeper than {MAX_DEPTH} levels")


def _integer(value: object, minimum: int, maximum: int) -> int:
    """The slow path of an integer: an ``IntEnum`` in range is fine."""
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ValueError
    return int(value)


def _number(value: object, bits: int) -> float:
    """A float in range, a NaN or an infinity; an integer is widened."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if bits == 32 and F32_LIMIT <= abs(number) < math.inf:
        raise ValueError
    return number


def _span(value: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(value)}I", *value)


class PlainWriter(Generator):
    """Generates the functions that write plain objects."""

    def __init__(self) -> None:
        super().__init__(
            {
                "integer": _integer,
                "number": _number,
                "pack_span": _span,
                "refuse": _refuse,
                "too_deep": _too_deep,
            }
        )

    def product(self, name: str, cls: type, index: int | None) -> Body:
        body = Body(name, _PARAMETERS)
        if index is None:
            self._only(body, "value", self.bind(f"{name}_class", cls))
        items = [] if index is None else [str(index)]
        for field in fields(cls):
            local = body.fresh()
            body(f"{local} = value.{field.name}")
            self._write(body, field.type, local)
            items.append(local)
        body(f"return [{', '.join(items)}]")
        return body

    def dispatch(self, name: str, node: SumType, table: str, *, recursive: bool) -> Body:
        body = Body(name, _PARAMETERS)
        body(f"variant = {table}.get(type(value))")
        with body.under("if variant is None"):
            body("refuse()")
        if recursive:
            with body.under(f"if depth >= {MAX_DEPTH}"):
                body("too_deep()")
        body(f"return variant(value, {'depth + 1' if recursive else 'depth'})")
        return body

    def other(self, name: str, node: WireType) -> Body:
        body = Body(name, _PARAMETERS)
        self._write(body, node, "value")
        body("return value")
        return body

    def key(self, cls: type, index: int) -> object:
        return cls

    def _write(self, body: Body, node: WireType, local: str) -> None:  # noqa: C901
        """Replace the value in ``local`` by its plain form."""
        match node:
            case IntType():
                low, high = node.minimum, node.maximum
                with body.under(f"if type({local}) is not int or not {low} <= {local} <= {high}"):
                    body(f"{local} = integer({local}, {low}, {high})")
            case BoolType():
                self._only(body, local, "bool")
            case FloatType(bits):
                body(f"{local} = number({local}, {bits})")
            case TextType():
                self._only(body, local, "str")
                with body.under(f"if not {local}.isascii()"):
                    body(f"{local}.encode()")
            case BytesType(size):
                self._only(body, local, "bytes")
                if size is not None:
                    with body.under(f"if len({local}) != {size}"):
                        body("refuse()")
            case OptionType(item):
                with body.under(f"if {local} is not None"):
                    self._write(body, item, local)
            case VecType(IntType(bits=32, signed=False)):
                self._only(body, local, "tuple")
                body(f"{local} = pack_span({local}) if {local} else b''")
            case VecType(item):
                self._only(body, local, "tuple")
                items, each = body.fresh(), body.fresh()
                body(f"{items} = []")
                with body.under(f"for {each} in {local}"):
                    self._write(body, item, each)
                    body(f"{items}.append({each})")
                body(f"{local} = {items}")
            case TupleType(items):
                self._only(body, local, "tuple")
                parts = [body.fresh() for _ in items]
                body(f"[{', '.join(parts)}] = {local}")
                for part, item in zip(parts, items, strict=True):
                    self._write(body, item, part)
                body(f"{local} = [{', '.join(parts)}]")
            case StructType() | SumType():
                body(f"{local} = {self.call(node)}({local}, depth)")
            case UnitSumType(cls):
                self._only(body, local, self.bind(f"class_{cls.__name__}", cls))
                body(f"{local} = {local}.value")
            case _:
                raise TypeError(f"no plain form for {node}")

    def _only(self, body: Body, local: str, cls: str) -> None:
        with body.under(f"if type({local}) is not {cls}"):
            body("refuse()")
