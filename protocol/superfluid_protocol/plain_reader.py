"""Plain objects to values: generates ``read(obj, depth) -> value`` for a declared type.

A refusal is a ``DecodeError`` whose path names the struct or variant and the field.
"""

import math
import struct
from typing import Final, NoReturn

from superfluid_protocol.errors import DecodeError, Reason
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

_PARAMETERS: Final = "obj, depth"


def _refuse(reason: Reason, path: str) -> NoReturn:
    raise DecodeError(reason, path=path)


def _integer(obj: object, path: str) -> NoReturn:
    number = isinstance(obj, int) and not isinstance(obj, bool)
    raise DecodeError(Reason.OUT_OF_RANGE if number else Reason.BAD_TYPE, path=path)


def _number(obj: object, bits: int, path: str) -> float:
    if not isinstance(obj, int | float) or isinstance(obj, bool):
        raise DecodeError(Reason.BAD_TYPE, path=path)
    try:
        number = float(obj)
    except OverflowError:
        raise DecodeError(Reason.OUT_OF_RANGE, path=path) from None
    if bits == 32 and F32_LIMIT <= abs(number) < math.inf:
        raise DecodeError(Reason.OUT_OF_RANGE, path=path)
    return number


def _text(obj: str, path: str) -> None:
    try:
        obj.encode()
    except UnicodeEncodeError:
        raise DecodeError(Reason.BAD_UTF8, path=path) from None


def _span(obj: object, path: str) -> tuple[int, ...]:
    if type(obj) is not bytes:
        raise DecodeError(Reason.BAD_TYPE, path=path)
    count, rest = divmod(len(obj), 4)
    if rest:
        raise DecodeError(Reason.BAD_LENGTH, path=path)
    return struct.unpack(f"<{count}I", obj)


class PlainReader(Generator):
    """Generates the functions that read plain objects."""

    def __init__(self) -> None:
        names: dict[str, object] = {
            "integer": _integer,
            "new": object.__new__,
            "number": _number,
            "refuse": _refuse,
            "text": _text,
            "unpack_span": _span,
        }
        names.update((reason.name, reason) for reason in Reason)
        super().__init__(names)

    def product(self, name: str, cls: type, index: int | None) -> Body:
        body = Body(name, _PARAMETERS)
        declared = fields(cls)
        locals_ = [body.fresh() for _ in declared]
        if index is None:
            self._array(body, "obj", len(declared), cls.__name__)
            body(f"[{', '.join(locals_)}] = obj")
        else:
            with body.under(f"if len(obj) != {len(declared) + 1}"):
                body(f"refuse(BAD_LENGTH, {cls.__name__!r})")
            body(f"[{', '.join(['_', *locals_])}] = obj")
        for field, local in zip(declared, locals_, strict=True):
            self._read(body, field.type, local, f"{cls.__name__}.{field.wire_name}")
        body(f"value = new({self.bind(f'{name}_class', cls)})")
        for field, local in zip(declared, locals_, strict=True):
            setter = self.bind(f"{name}_set_{field.name}", getattr(cls, field.name).__set__)
            body(f"{setter}(value, {local})")
        body("return value")
        return body

    def dispatch(self, name: str, node: SumType, table: str, *, recursive: bool) -> Body:
        body = Body(name, _PARAMETERS)
        path = repr(node.base.__name__)
        with body.under("if type(obj) is not list and type(obj) is not tuple"):
            body(f"refuse(BAD_TYPE, {path})")
        with body.under("if not obj"):
            body(f"refuse(BAD_LENGTH, {path})")
        body("index = obj[0]")
        with body.under("if type(index) is not int"):
            body(f"refuse(BAD_TYPE, {path})")
        body(f"variant = {table}.get(index)")
        with body.under("if variant is None"):
            if node.without:
                body(f"refuse(NOT_NESTABLE if index in {set(node.without)} else BAD_ENUM, {path})")
            else:
                body(f"refuse(BAD_ENUM, {path})")
        if recursive:
            with body.under(f"if depth >= {MAX_DEPTH}"):
                body(f"refuse(TOO_DEEP, {path})")
        body(f"return variant(obj, {'depth + 1' if recursive else 'depth'})")
        return body

    def other(self, name: str, node: WireType) -> Body:
        body = Body(name, _PARAMETERS)
        self._read(body, node, "obj", "")
        body("return obj")
        return body

    def key(self, cls: type, index: int) -> object:
        return index

    def _read(self, body: Body, node: WireType, local: str, path: str) -> None:  # noqa: C901
        """Replace the plain object in ``local`` by its value."""
        match node:
            case IntType():
                low, high = node.minimum, node.maximum
                with body.under(f"if type({local}) is not int or not {low} <= {local} <= {high}"):
                    body(f"integer({local}, {path!r})")
            case BoolType():
                self._only(body, local, "bool", path)
            case FloatType(bits):
                body(f"{local} = number({local}, {bits}, {path!r})")
            case TextType():
                self._only(body, local, "str", path)
                with body.under(f"if not {local}.isascii()"):
                    body(f"text({local}, {path!r})")
            case BytesType(size):
                self._only(body, local, "bytes", path)
                if size is not None:
                    with body.under(f"if len({local}) != {size}"):
                        body(f"refuse(BAD_LENGTH, {path!r})")
            case OptionType(item):
                with body.under(f"if {local} is not None"):
                    self._read(body, item, local, path)
            case VecType(IntType(bits=32, signed=False)):
                body(f"{local} = unpack_span({local}, {path!r})")
            case VecType(item):
                self._array(body, local, None, path)
                items, each = body.fresh(), body.fresh()
                body(f"{items} = []")
                with body.under(f"for {each} in {local}"):
                    self._read(body, item, each, path)
                    body(f"{items}.append({each})")
                body(f"{local} = tuple({items})")
            case TupleType(items):
                self._array(body, local, len(items), path)
                parts = [body.fresh() for _ in items]
                body(f"[{', '.join(parts)}] = {local}")
                for part, item in zip(parts, items, strict=True):
                    self._read(body, item, part, path)
                body(f"{local} = ({''.join(f'{part}, ' for part in parts)})")
            case StructType() | SumType():
                body(f"{local} = {self.call(node)}({local}, depth)")
            case UnitSumType(cls):
                members = self.bind(f"members_{cls.__name__}", {member.value: member for member in cls})
                self._only(body, local, "int", path)
                body(f"{local} = {members}.get({local})")
                with body.under(f"if {local} is None"):
                    body(f"refuse(BAD_ENUM, {path!r})")
            case _:
                raise TypeError(f"no plain form for {node}")

    def _only(self, body: Body, local: str, cls: str, path: str) -> None:
        with body.under(f"if type({local}) is not {cls}"):
            body(f"refuse(BAD_TYPE, {path!r})")

    def _array(self, body: Body, local: str, size: int | None, path: str) -> None:
        with body.under(f"if type({local}) is not list and type({local}) is not tuple"):
            body(f"refuse(BAD_TYPE, {path!r})")
        if size is not None:
            with body.under(f"if len({local}) != {size}"):
                body(f"refuse(BAD_LENGTH, {path!r})")
