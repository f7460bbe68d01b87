"""Bytes to values: generates ``read(data, at, depth) -> (value, position after it)`` for a declared type.

The generated code indexes and unpacks without checking first: a short buffer raises IndexError (or
``struct.error`` for floats), and ``decode`` reports it as ``UNEXPECTED_END``.
"""

from typing import Final, NoReturn

from superfluid_protocol.errors import DecodeError, Reason
from superfluid_protocol.floats import read_f32, read_f64
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
from superfluid_protocol.varint import read_span, read_varint

_PARAMETERS: Final = "data, at, depth"


def _refuse_text(at: int) -> NoReturn:
    # The context would show the text around the bad byte.
    raise DecodeError(Reason.BAD_UTF8, at) from None


def _refuse(reason: Reason, at: int) -> NoReturn:
    raise DecodeError(reason, at)


class Reader(Generator):
    """Generates the functions that read postcard bytes."""

    def __init__(self) -> None:
        names: dict[str, object] = {
            "new": object.__new__,
            "read_f32": read_f32,
            "read_f64": read_f64,
            "read_span": read_span,
            "read_varint": read_varint,
            "refuse": _refuse,
            "refuse_text": _refuse_text,
        }
        names.update((reason.name, reason) for reason in Reason)
        super().__init__(names)

    def product(self, name: str, cls: type, index: int | None) -> Body:
        body = Body(name, _PARAMETERS)
        declared = fields(cls)
        owner = self.bind(f"{name}_class", cls)
        if not declared:
            body(f"return {self.bind(f'{name}_value', cls())}, at")
            return body
        values = []
        for field in declared:
            value = body.fresh()
            values.append(value)
            if field.absent_at_end:
                with body.under("if at == len(data)"):
                    body(f"{value} = None")
                with body.under("else"):
                    self._read(body, field.type, value)
            else:
                self._read(body, field.type, value)
        # The slots are set one by one: half the cost of the frozen class's __init__.
        body(f"value = new({owner})")
        for field, value in zip(declared, values, strict=True):
            setter = self.bind(f"{name}_set_{field.name}", getattr(cls, field.name).__set__)
            body(f"{setter}(value, {value})")
        body("return value, at")
        return body

    def dispatch(self, name: str, node: SumType, table: str, *, recursive: bool) -> Body:
        body = Body(name, _PARAMETERS)
        body("start = at")
        self._unsigned(body, "index", 32)
        body(f"variant = {table}.get(index)")
        with body.under("if variant is None"):
            if node.without:
                body(f"refuse(NOT_NESTABLE if index in {set(node.without)} else BAD_ENUM, start)")
            else:
                body("refuse(BAD_ENUM, start)")
        if recursive:
            with body.under(f"if depth >= {MAX_DEPTH}"):
                body("refuse(TOO_DEEP, start)")
        body(f"return variant(data, at, {'depth + 1' if recursive else 'depth'})")
        return body

    def other(self, name: str, node: WireType) -> Body:
        body = Body(name, _PARAMETERS)
        self._read(body, node, "value")
        body("return value, at")
        return body

    def key(self, cls: type, index: int) -> object:
        return index

    def _read(self, body: Body, node: WireType, target: str) -> None:  # noqa: C901
        match node:
            case IntType():
                self._int(body, node, target)
            case BoolType():
                body(f"{target} = data[at]")
                with body.under(f"if {target} > 1"):
                    body("refuse(BAD_BOOL, at)")
                body(f"{target} = {target} == 1", "at += 1")
            case FloatType(bits):
                body(f"{target} = read_f{bits}(data, at)", f"at += {bits // 8}")
            case TextType():
                self._sized(body)
                with body.under("try"):
                    body(f"{target} = data[at:end].decode()")
                with body.under("except UnicodeDecodeError as error"):
                    body("refuse_text(at + error.start)")
                body("at = end")
            case BytesType(size):
                self._sized(body, size)
                body(f"{target} = data[at:end]", "at = end")
            case OptionType(item):
                self._option(body, item, target)
            case VecType(IntType(bits=32, signed=False)):
                body(f"{target}, at = read_span(data, at)")
            case VecType(item):
                self._vec(body, item, target)
            case TupleType(items):
                parts = [body.fresh() for _ in items]
                for part, item in zip(parts, items, strict=True):
                    self._read(body, item, part)
                body(f"{target} = ({''.join(f'{part}, ' for part in parts)})")
            case StructType() | SumType():
                body(f"{target}, at = {self.call(node)}(data, at, depth)")
            case UnitSumType(cls):
                members = self.bind(f"members_{cls.__name__}", {member.value: member for member in cls})
                index = body.fresh()
                body("start = at")
                self._unsigned(body, index, 32)
                body(f"{target} = {members}.get({index})")
                with body.under(f"if {target} is None"):
                    body("refuse(BAD_ENUM, start)")
            case _:
                raise TypeError(f"no reader for {node}")

    def _int(self, body: Body, node: IntType, target: str) -> None:
        if node.bits == 8:
            body(f"{target} = data[at]", "at += 1")
            if node.signed:
                body(f"{target} -= ({target} & 128) << 1")
            return
        self._unsigned(body, target, node.bits)
        if node.signed:
            body(f"{target} = ({target} >> 1) ^ -({target} & 1)")

    def _unsigned(self, body: Body, target: str, bits: int) -> None:
        """A varint: one byte inline, more by the loop."""
        body(f"{target} = data[at]")
        with body.under(f"if {target} < 128"):
            body("at += 1")
        with body.under("else"):
            body(f"{target}, at = read_varint(data, at, {bits})")

    def _sized(self, body: Body, size: int | None = None) -> None:
        """Set ``end`` to the end of the bytes at ``at``, checked before anything is sliced."""
        if size is None:
            self._unsigned(body, "end", 64)
            body("end += at")
        else:
            body(f"end = at + {size}")
        with body.under("if end > len(data)"):
            body("raise IndexError")

    def _option(self, body: Body, item: WireType, target: str) -> None:
        tag = body.fresh()
        body(f"{tag} = data[at]", "at += 1")
        with body.under(f"if {tag} == 1"):
            self._read(body, item, target)
        with body.under(f"elif {tag} == 0"):
            body(f"{target} = None")
        with body.under("else"):
            body("refuse(BAD_OPTION, at - 1)")

    def _vec(self, body: Body, item: WireType, target: str) -> None:
        if not takes_bytes(item):
            raise TypeError(f"a sequence of {item} would have no bound: its items take no bytes")
        count, value = body.fresh(), body.fresh()
        self._unsigned(body, count, 64)
        # An item takes a byte at least, so a count beyond the rest of the input is refused before the loop,
        # and the loop never builds more items than there are bytes.
        with body.under(f"if {count} > len(data) - at"):
            body("raise IndexError")
        body(f"{target} = []")
        with body.under(f"for _ in range({count})"):
            self._read(body, item, value)
            body(f"{target}.append({value})")
        body(f"{target} = tuple({target})")


def takes_bytes(node: WireType) -> bool:
    """Whether every value of a type takes one byte at least."""
    match node:
        case TupleType(items):
            return any(takes_bytes(item) for item in items)
        case StructType(cls):
            return any(takes_bytes(field.type) for field in fields(cls))
        case BytesType(size):
            return size != 0
        case _:
            return True
