"""Values to plain objects: generates ``write(value, depth) -> object`` for a declared type.

Everything is checked on the way, because what this makes goes to the log: a record that could be written and
not read back would keep the daemon from starting. The generated code raises TypeError, ValueError or
``struct.error``; ``to_plain`` turns them into an ``EncodeError`` that names the place.
"""

import math
import struct

from superfluid_protocol.floats import F32_LIMIT
from superfluid_protocol.generate import Body
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
)
from superfluid_protocol.writer import ValueWriter


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


class PlainWriter(ValueWriter):
    """Generates the functions that write plain objects."""

    arguments = "value"
    result = "value"

    def __init__(self) -> None:
        super().__init__(
            {
                "integer": _integer,
                "number": _number,
                "pack_span": _span,
            }
        )

    def product(self, name: str, cls: type, index: int | None) -> Body:
        body = self.body(name)
        if index is None:
            self.only(body, "value", self.bind(f"{name}_class", cls))
        items = [] if index is None else [str(index)]
        for field in fields(cls):
            local = body.fresh()
            body(f"{local} = value.{field.name}")
            self.write(body, field.type, local)
            items.append(local)
        body(f"return [{', '.join(items)}]")
        return body

    def write(self, body: Body, node: WireType, local: str) -> None:  # noqa: C901
        """Replace the value in ``local`` by its plain form."""
        match node:
            case IntType():
                low, high = node.minimum, node.maximum
                with body.under(f"if type({local}) is not int or not {low} <= {local} <= {high}"):
                    body(f"{local} = integer({local}, {low}, {high})")
            case BoolType():
                self.only(body, local, "bool")
            case FloatType(bits):
                body(f"{local} = number({local}, {bits})")
            case TextType():
                self.only(body, local, "str")
                with body.under(f"if not {local}.isascii()"):
                    body(f"{local}.encode()")
            case BytesType(size):
                self.only(body, local, "bytes")
                if size is not None:
                    with body.under(f"if len({local}) != {size}"):
                        body("refuse()")
            case OptionType(item):
                with body.under(f"if {local} is not None"):
                    self.write(body, item, local)
            case VecType(IntType(bits=32, signed=False)):
                self.only(body, local, "tuple")
                body(f"{local} = pack_span({local}) if {local} else b''")
            case VecType(item):
                self.only(body, local, "tuple")
                items, each = body.fresh(), body.fresh()
                body(f"{items} = []")
                with body.under(f"for {each} in {local}"):
                    self.write(body, item, each)
                    body(f"{items}.append({each})")
                body(f"{local} = {items}")
            case TupleType(items):
                self.only(body, local, "tuple")
                parts = [body.fresh() for _ in items]
                body(f"[{', '.join(parts)}] = {local}")
                for part, item in zip(parts, items, strict=True):
                    self.write(body, item, part)
                body(f"{local} = [{', '.join(parts)}]")
            case StructType() | SumType():
                body(f"{local} = {self.call(node)}({local}, depth)")
            case UnitSumType(cls):
                self.only(body, local, self.bind(f"class_{cls.__name__}", cls))
                body(f"{local} = {local}.value")
            case _:
                raise TypeError(f"no plain form for {node}")
