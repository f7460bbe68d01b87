"""What the scheduler wants done with park files, beside the ticks: plain data for whoever can do it."""

from dataclasses import dataclass
from typing import TypeAlias

from superfluid.core.ids import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFile:
    """Write entry *entry* of the worker's host memory to the session's park file. Answered by `Scheduler.filed`.

    Attributes:
        stream: The tokens of its positions.
        name: What the file says of itself (`Origin.name`).
    """

    ticket: int
    entry: int
    session: int
    stream: TokenIds
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFile:
    """Read the session's park file, if it is of that *stream* and *name*, into entry *entry*. Answered by
    `Scheduler.filed`."""

    ticket: int
    entry: int
    session: int
    stream: TokenIds
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile:
    """Remove the session's park file."""

    session: int


Order: TypeAlias = SealFile | FetchFile | RemoveFile
