"""Tables and trees: by rich on a terminal, in plain aligned columns elsewhere.

Nothing here interprets markup: titles and texts come from the log.
"""

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.tree import Tree

PLAIN_WIDTH: Final = 100
"""Columns that shortened texts are cut for where no terminal says how many it has."""


def width() -> int:
    """Columns of the output."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns if sys.stdout.isatty() else PLAIN_WIDTH


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = (), wrap: bool = True
) -> None:
    """Print a table; the last column takes what room is left.

    Args:
        numeric: Columns to align to the right.
        wrap: On a terminal, give the last column as many lines as it needs instead of cutting it.
    """
    if sys.stdout.isatty():
        _rich_table(head, rows, numeric, wrap=wrap)
        return
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    for line in lines:
        cells = [
            cell.rjust(wide) if column in numeric else cell.ljust(wide)
            for column, (cell, wide) in enumerate(zip(line, widths, strict=False))
        ]
        click.echo("  ".join([*cells, line[-1]]).rstrip())


def _rich_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int], *, wrap: bool
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, title in enumerate(head):
        may_wrap = wrap and column == len(head) - 1
        grid.add_column(
            title,
            justify="right" if column in numeric else "left",
            no_wrap=not may_wrap,
            overflow="fold" if may_wrap else "ellipsis",
        )
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(grid)


class Branch:
    """A label and what hangs below it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.below: list[Branch] = []


def forest(roots: Sequence[Branch]) -> None:
    """Print trees, each child below its parent."""
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        for root in roots:
            console.print(_rich_tree(root))
        return
    # A chain of forks may be longer than Python's stack is deep.
    pending = [(root, 0) for root in reversed(roots)]
    while pending:
        branch, depth = pending.pop()
        click.echo("  " * depth + branch.label)
        pending.extend((child, depth + 1) for child in reversed(branch.below))


def _rich_tree(root: Branch) -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    top = Tree(Text(root.label))
    pending = [(root, top)]
    while pending:
        branch, drawn = pending.pop()
        pending.extend((child, drawn.add(Text(child.label))) for child in branch.below)
    return top
