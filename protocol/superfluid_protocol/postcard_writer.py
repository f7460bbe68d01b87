"""Values to bytes: generates ``write(out, value, depth)``, which appends to a bytearray, for a declared type.

The generated code lets Python refuse: a number out of range raises ValueError or OverflowError, another type
TypeError or AttributeError. ``encode`` turns these into an ``EncodeError`` that names the place.
"""

from superfluid_protocol.floats import write_f32, write_f64
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
from superfluid_protocol.varint import U64_MAX, write_span, write_varint, write_zigzag
from superfluid_protocol.writer import ValueWriter


def varint(value: int) -> bytes:
    """A varint on its own, for constants in generated code."""
    out = bytearray()
    write_varint(out, value, U64_MAX)
    return bytes(out)


class Writer(ValueWriter):
    """Generates the functions that write postcard bytes."""

    arguments = "out, value"
    result = ""

    def __init__(self) -> None:
        super().__init__(
            {
                "write_f32": write_f32,
                "write_f64": write_f64,
                "write_span": write_span,
                "write_varint": write_varint,
                "write_zigzag": write_zigzag,
            }
        )

    def product(self, name: str, cls: type, index: int | None) -> Body:
        body = self.body(name)
        if index is None:
            # A variant comes here through its class; a struct's class is not checked by anything else.
            self.only(body, "value", self.bind(f"{name}_class", cls))
        elif index < 0x80:
            body(f"out.append({index})")
        else:
            body(f"out += {varint(index)!r}")
        for field in fields(cls):
            local = body.fresh()
            body(f"{local} = value.{field.name}")
            self.write(body, field.type, local)
        body("return")
        return body

    def write(self, body: Body, node: WireType, value: str) -> None:  # noqa: C901
        match node:
            case IntType():
                self._int(body, node, value)
            case BoolType():
                with body.under(f"if {value} is True"):
                    body("out.append(1)")
                with body.under(f"elif {value} is False"):
                    body("out.append(0)")
                with body.under("else"):
                    body("refuse()")
            case FloatType(bits):
                body(f"write_f{bits}(out, {value})")
            case TextType():
                encoded = body.fresh()
                body(f"{encoded} = {value}.encode()")
                self._length(body, encoded)
                body(f"out += {encoded}")
            case BytesType(size):
                self.only(body, value, "bytes")
                if size is None:
                    self._length(body, value)
                else:
                    with body.under(f"if len({value}) != {size}"):
                        body("refuse()")
                body(f"out += {value}")
            case OptionType(item):
                with body.under(f"if {value} is None"):
                    body("out.append(0)")
                with body.under("else"):
                    body("out.append(1)")
                    self.write(body, item, value)
            case VecType(IntType(bits=32, signed=False)):
                self.only(body, value, "tuple")
                with body.under(f"if {value}"):
                    body(f"write_span(out, {value})")
                with body.under("else"):
                    body("out.append(0)")
            case VecType(item):
                self.only(body, value, "tuple")
                self._length(body, value)
                local = body.fresh()
                with body.under(f"for {local} in {value}"):
                    self.write(body, item, local)
            case TupleType(items):
                self.only(body, value, "tuple")
                parts = [body.fresh() for _ in items]
                body(f"[{', '.join(parts)}] = {value}")
                for part, item in zip(parts, items, strict=True):
                    self.write(body, item, part)
            case StructType() | SumType():
                body(f"{self.call(node)}(out, {value}, depth)")
            case UnitSumType(cls):
                self.only(body, value, self.bind(f"class_{cls.__name__}", cls))
                body(f"write_varint(out, {value}.value, 4294967295)")
            case _:
                raise TypeError(f"no writer for {node}")

    def _int(self, body: Body, node: IntType, value: str) -> None:
        if node.bits == 8:
            if node.signed:
                with body.under(f"if not -128 <= {value} <= 127"):
                    body("raise ValueError")
                body(f"out.append({value} & 255)")
            else:
                body(f"out.append({value})")
        elif node.signed:
            body(f"write_zigzag(out, {value}, {node.bits})")
        else:
            self._unsigned(body, value, node.maximum)

    def _unsigned(self, body: Body, value: str, maximum: int) -> None:
        """A varint: one byte inline, more by the loop."""
        with body.under(f"if 0 <= {value} < 128"):
            body(f"out.append({value})")
        with body.under("else"):
            body(f"write_varint(out, {value}, {maximum})")

    def _length(self, body: Body, value: str) -> None:
        length = body.fresh()
        body(f"{length} = len({value})")
        self._unsigned(body, length, U64_MAX)
