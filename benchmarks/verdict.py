"""What a case was to reach, and what it reached."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of a table.

    Attributes:
        met: None where there is nothing to reach: the figure stands beside another.
        raw: What the figure was computed from.
    """

    what: str
    target: str
    figure: str
    met: bool | None
    raw: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """For people at a terminal."""
        return f"{_MET[self.met]:8} {self.what}: {self.figure} (to reach: {self.target})"


_MET = {True: "met", False: "NOT MET", None: "beside"}


def as_json(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """For the file of raw figures."""
    return [asdict(verdict) for verdict in verdicts]


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown for what `as_json` gave."""
    return [
        "| what | to reach | found | |",
        "|---|---|---|---|",
        *(f"| {one['what']} | {one['target']} | {one['figure']} | {_MET[one['met']]} |" for one in found),
    ]
