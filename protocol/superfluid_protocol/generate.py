"""Python functions made from the declarations: what the postcard and the plain codec share.

A codec in pure Python spends most of its time on calls and dispatch, so each struct and variant gets one
straight-line function, made once, when its type is first used. The source is built from the catalogue alone,
never from input. Nested structs and sums are calls to their own functions; everything else is inlined.
"""

import abc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from superfluid_protocol.schema import StructType, SumType, WireType, is_recursive, variants

Function = Callable[..., Any]


class Body:
    """Source lines of one function, with fresh local names."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name = name
        self._lines = [f"def {name}({parameters}):"]
        self._indent = 1
        self._fresh = 0

    def __call__(self, *lines: str) -> None:
        """Append lines at the current indentation."""
        self._lines.extend("    " * self._indent + line for line in lines)

    @contextmanager
    def under(self, head: str) -> Iterator[None]:
        """Append ``head:`` and indent what is appended inside."""
        self(f"{head}:")
        self._indent += 1
        yield
        self._indent -= 1

    def fresh(self) -> str:
        """A local name not used yet."""
        self._fresh += 1
        return f"x{self._fresh}"

    def source(self) -> str:
        """The whole function."""
        return "\n".join(self._lines) + "\n"


class Generator(abc.ABC):
    """Builds and keeps the functions of one direction of one form.

    Every function takes as its last argument ``depth``, the levels of recursive sums around the value.
    Subclasses say what the function of a struct or variant, of a sum, and of any other type does.
    """

    def __init__(self, names: dict[str, object]) -> None:
        self._globals: Final[dict[str, Any]] = dict(names)
        self._ready: Final[dict[WireType, Function]] = {}
        self._started: Final[set[str]] = set()
        self._pending: Final[list[tuple[dict[object, Function], object, str]]] = []
        self._lock = threading.Lock()

    def function(self, node: WireType) -> Function:
        """The function for a type; safe to call from several threads."""
        ready = self._ready.get(node)
        if ready is None:
            with self._lock:
                name = self._any(node)
                for table, key, variant in self._pending:
                    table[key] = self._globals[variant]
                self._pending.clear()
                # Published last: a function is seen when everything that it calls is there.
                ready = self._ready[node] = self._globals[name]
        return ready

    @abc.abstractmethod
    def product(self, name: str, cls: type, index: int | None) -> Body:
        """The function of a struct (``index`` None) or of a variant."""

    @abc.abstractmethod
    def dispatch(self, name: str, node: SumType, table: str, *, recursive: bool) -> Body:
        """The function of a sum: choose from the dict named ``table``; a recursive one guards its depth."""

    @abc.abstractmethod
    def other(self, name: str, node: WireType) -> Body:
        """The function of any other type, for use at the top."""

    @abc.abstractmethod
    def key(self, cls: type, index: int) -> object:
        """The key of a variant in a sum's table."""

    def bind(self, name: str, value: object) -> str:
        """Make an object known to the generated code; returns ``name``."""
        self._globals[name] = value
        return name

    def call(self, node: StructType | SumType) -> str:
        """The name of the function for a struct or a sum; made now unless it is there or under way."""
        if isinstance(node, StructType):
            name = f"struct_{node.cls.__name__}"
            if self._start(name):
                self._compile(self.product(name, node.cls, None))
            return name
        name = "_".join(("sum", node.base.__name__, *map(str, sorted(node.without))))
        if self._start(name):
            self._sum(name, node)
        return name

    def _any(self, node: WireType) -> str:
        if isinstance(node, StructType | SumType):
            return self.call(node)
        name = f"other_{len(self._started)}"
        self._started.add(name)
        self._compile(self.other(name, node))
        return name

    def _sum(self, name: str, node: SumType) -> None:
        table: dict[object, Function] = {}
        self.bind(f"{name}_table", table)
        self._compile(self.dispatch(name, node, f"{name}_table", recursive=is_recursive(node.base)))
        for index, cls in variants(node.base).items():
            if index in node.without:
                continue
            variant = f"variant_{node.base.__name__}_{cls.__name__}"
            if self._start(variant):
                self._compile(self.product(variant, cls, index))
            self._pending.append((table, self.key(cls, index), variant))

    def _start(self, name: str) -> bool:
        """Whether a function is new; from then on it counts as under way."""
        new = name not in self._started
        self._started.add(name)
        return new

    def _compile(self, body: Body) -> None:
        code = compile(body.source(), f"<{body.name}>", "exec")
        exec(code, self._globals)  # noqa: S102 - the source comes from the declarations, never from input
