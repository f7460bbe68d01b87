"""What the writers of both forms share: how a generated function for a sum chooses, and how it refuses."""

import abc
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from superfluid_protocol.errors import EncodeError
from superfluid_protocol.generate import Body, Generator
from superfluid_protocol.schema import MAX_DEPTH, SumType, WireType


def _refuse() -> NoReturn:
    raise TypeError


def _too_deep() -> NoReturn:
    raise EncodeError(f"nested deeper than {MAX_DEPTH} levels")


class ValueWriter(Generator):
    """Generates functions that take a value last but one, and the depth of it last.

    Args:
        helpers: What the generated code calls, by name; ``refuse`` and ``too_deep`` are there already.
    """

    arguments: ClassVar[str]
    """Those before the depth."""

    result: ClassVar[str]
    """What a function returns, or nothing."""

    def __init__(self, helpers: Mapping[str, object]) -> None:
        super().__init__({"refuse": _refuse, "too_deep": _too_deep, **helpers})

    def body(self, name: str) -> Body:
        """An empty function."""
        return Body(name, f"{self.arguments}, depth")

    def dispatch(self, name: str, node: SumType, table: str, *, recursive: bool) -> Body:
        body = self.body(name)
        body(f"variant = {table}.get(type(value))")
        with body.under("if variant is None"):
            body("refuse()")
        if recursive:
            with body.under(f"if depth >= {MAX_DEPTH}"):
                body("too_deep()")
        body(f"return variant({self.arguments}, {'depth + 1' if recursive else 'depth'})")
        return body

    def other(self, name: str, node: WireType) -> Body:
        body = self.body(name)
        self.write(body, node, "value")
        body(f"return {self.result}")
        return body

    def key(self, cls: type, index: int) -> object:
        return cls

    @abc.abstractmethod
    def write(self, body: Body, node: WireType, local: str) -> None:
        """Add the lines that write the value in a local variable."""

    def only(self, body: Body, local: str, cls: str) -> None:
        """Refuse another class. A list in a tuple's place, say, would not come back equal."""
        with body.under(f"if type({local}) is not {cls}"):
            body("refuse()")
