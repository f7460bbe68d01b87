"""The daemon's own log lines: structlog, to standard error, never with content.

Readable on a terminal, one JSON object a line otherwise. Lines name sessions, requests, counts and reasons; message
text, token ids and keys never get into them (the callers pass none, and a test plants canaries). A reader that leaves or
reads nothing holds nothing up: see `superfluid.observe.outlet`.
"""

import logging
import sys
from typing import Any, Final, TextIO, cast

import structlog

from superfluid.core.errors import StartError
from superfluid.observe.outlet import Outlet

LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


class Filter:
    """Which lines are written: a default level, and levels for parts of the program.

    Args:
        directive: ``info``, or ``warn,superfluid.sched=debug``: a level, and ``target=level`` pairs; the longest
            matching target decides.

    Raises:
        StartError: The directive is not of that form.
    """

    def __init__(self, directive: str) -> None:
        self.default = logging.INFO
        self.targets: list[tuple[str, int]] = []
        for part in filter(None, (piece.strip() for piece in directive.split(","))):
            target, equals, level = part.rpartition("=")
            number = LEVELS.get(level.lower())
            if number is None or (equals and not target):
                raise StartError(
                    f"the log filter {part!r} is not a level or target=level; levels are {', '.join(LEVELS)}"
                )
            if target:
                self.targets.append((target.replace("::", "."), number))
            else:
                self.default = number
        self.targets.sort(key=lambda pair: -len(pair[0]))

    def level_of(self, name: str) -> int:
        """The least level of a line of the module *name* that is written."""
        for target, level in self.targets:
            if name == target or name.startswith(target + "."):
                return level
        return self.default

    def __call__(
        self, _logger: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Drop the line, or pass it on: a structlog processor."""
        name = str(event.get("target", ""))
        if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < self.level_of(name):
            raise structlog.DropEvent
        return event


def configure(directive: str, *, stream: TextIO | None = None) -> Outlet | None:
    """Set up logging for the process.

    Args:
        stream: Where lines go; standard error by default. Lines are written to its descriptor.

    Returns:
        What writes the lines, to be drained at the end of the process; None where there is no standard error.

    Raises:
        StartError: The directive is no filter.
    """
    wanted = Filter(directive)
    out = stream or sys.stderr
    if out is None:  # started with standard error closed: its number may be anything's by now
        structlog.configure(processors=[_drop])
        return None
    tty = out.isatty()
    renderer: structlog.typing.Processor
    if tty:
        renderer = structlog.dev.ConsoleRenderer(
            colors=True, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
    exceptions: list[structlog.typing.Processor] = [] if tty else [structlog.processors.format_exc_info]
    decorate: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if tty else "iso", utc=not tty),
        *exceptions,
        renderer,
    ]

    def tell_dropped(count: int) -> str:
        line: Any = {"event": "log lines were dropped: nobody read them", "lines": count, "target": __name__}
        for processor in decorate:
            line = processor(None, "warning", line)
        return f"{line}\n"

    outlet = Outlet(out.fileno(), tell_dropped=tell_dropped)
    structlog.configure(
        processors=[wanted, *decorate],
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", outlet)),
        cache_logger_on_first_use=False,
    )
    return outlet


def _drop(_logger: object, _method: str, _event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
