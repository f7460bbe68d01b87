"""The view of `superfluid top` as rows: drawn with bars on a terminal, written as lines elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from superfluid.cli.top_model import View

if TYPE_CHECKING:
    from rich.console import RenderableType

BAR_WIDTH: Final = 24
LABEL_WIDTH: Final = 9
LONGEST_TTFT: Final = 60.0
"""The histogram's last bound: this much, or more."""

GIB: Final = 1 << 30
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One line; ``share`` (0 to 1) is drawn as a bar where there is one."""

    label: str
    text: str
    share: float | None = None


def title(view: View) -> str:
    """What is served."""
    if not view.model:
        return "superfluid"
    size = f"{view.context:,} tokens a session" if view.context else "the model is loading"
    return f"superfluid · {view.model} · {size}"


def rows(view: View) -> list[Row]:
    """Everything about one moment, the most telling first."""
    return [
        Row("lanes", f"{view.lanes_active} of {view.lanes}", _share(view.lanes_active, view.lanes)),
        Row("queue", _parts(view.queue)),
        Row(
            "tokens",
            f"prefill {view.prefill_rate:,.0f}/s, decode {view.decode_rate:,.0f}/s, warm {_warm(view)}",
        ),
        Row("TTFT", f"p50 {_seconds(view.ttft_p50)}, p95 {_seconds(view.ttft_p95)}, of the last minute"),
        Row(
            "pool",
            f"{view.pool_used:,} of {view.pool_cells:,} positions",
            _share(view.pool_used, view.pool_cells),
        ),
        Row(
            "host",
            f"{_bytes(view.host_used)} of {_bytes(view.host_budget)}",
            _share(view.host_used, view.host_budget),
        ),
        Row("pins", f"{view.pins_held} held, {view.pins_yielded} yielded, {view.pins_expired} expired"),
        Row("resumes", f"{_parts(view.resumes)}; {view.parks} parked"),
        Row("evicted", f"{_parts(view.evictions)}; {view.preemptions} preempted"),
        Row("drafts", f"{view.accepted:,} of {view.drafted:,} tokens guessed right"),
        Row("worker", f"{view.respawns} respawns; {view.sessions:,} sessions in the log"),
    ]


def lines(view: View) -> list[str]:
    """The view as text."""
    told = [f"{row.label:<{LABEL_WIDTH}}{_percent(row.share)}{row.text}" for row in rows(view)]
    return [title(view), *told]


def drawing(view: View | None, note: str) -> "RenderableType":
    """The view for a terminal.

    Args:
        view: The last one there was; None before the first.
        note: The line below it.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL_WIDTH, style="bold")
    grid.add_column(width=BAR_WIDTH)
    grid.add_column()
    for row in rows(view) if view is not None else ():
        if row.share is None:
            grid.add_row(Text(row.label), "", Text(row.text))
        else:
            bar = ProgressBar(total=1.0, completed=row.share, width=BAR_WIDTH, pulse=False)
            grid.add_row(Text(row.label), bar, Text(row.text))
    head = Text(title(view) if view is not None else "superfluid", style="bold cyan")
    return Group(head, Text(""), grid, Text(""), Text(note, style="dim"))


def _share(part: int, whole: int) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:4.0%}  "


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in parts.items())


def _warm(view: View) -> str:
    return "-" if view.warm_share is None else f"{view.warm_share:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{LONGEST_TTFT:.0f} s or more" if value >= LONGEST_TTFT else f"{value:.2f} s"


def _bytes(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
