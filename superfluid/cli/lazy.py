"""A click group that loads a subcommand only when it is asked for.

`superfluid --help` has to be fast, and to work where the engine was never installed; so the list of commands and the line
that describes each are data, and what a command needs is imported when it runs.
"""

import difflib
import importlib
from collections.abc import Mapping
from typing import Final, cast

import click

CLOSE: Final = 0.5
"""How alike a mistyped command must be to be suggested, in difflib's measure: typos of short words still count."""


class LazyGroup(click.Group):
    """A group whose commands are named as ``"module:attribute"``, each with its line of help.

    Args:
        lazy: (place, line of help) by command name, in the order of the help page.
    """

    def __init__(self, *args: object, lazy: Mapping[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # click's own arguments, passed on as they are
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order of the help page."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command, if there is one of that name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._lazy[cmd_name][0].split(":")
        return cast("click.Command", getattr(importlib.import_module(module), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the closest one."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            known = self.list_commands(ctx)
            close = difflib.get_close_matches(name, known, n=1, cutoff=CLOSE)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise click.UsageError(f"no such command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without loading one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_place, text) in self._lazy.items()])
