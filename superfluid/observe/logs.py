"""The daemon's own log lines: structlog, to standard error, never with content.

Readable on a terminal, one JSON object a line otherwise. Lines name sessions, requests, counts and reasons; message
text, token ids and keys never get into them (the callers pass none, and a test plants canaries).
"""

import logging
import sys
from contextlib import suppress
from typing import Final, TextIO, cast

import structlog

from superfluid.core.errors import StartError

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


class ForgivingStream:
    """A text stream whose reader may leave: what cannot be written is dropped.

    A terminal that closed or a collector that restarts must not end the sessions of everybody else, so a line of the log
    is never worth an exception in what it tells of.

    Args:
        stream: Where text goes while it can.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop."""
        with suppress(OSError):
            self._stream.flush()


def configure(directive: str, *, stream: TextIO | None = None) -> None:
    """Set up logging for the process.

    Args:
        stream: Where lines go; standard error by default.
    """
    out = stream or sys.stderr
    tty = out.isatty()
    renderer: structlog.typing.Processor
    if tty:
        renderer = structlog.dev.ConsoleRenderer(
            colors=True, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
    exceptions: list[structlog.typing.Processor] = [] if tty else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[
            Filter(directive),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if tty else "iso", utc=not tty),
            *exceptions,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", ForgivingStream(out))),
        cache_logger_on_first_use=False,
    )
