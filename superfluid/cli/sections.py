"""Options in sections: a long help page that can be read."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click


class _Option(click.Option):
    """An option that knows its section of the help page."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:  # noqa: ANN401 - click's own, passed on
        super().__init__(*args, **attributes)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """What click appends to the help, but that a number is not negative, which goes without saying."""
        extra = super().get_help_extra(ctx)
        if extra.get("range") == "x>=0":
            extra.pop("range")
        return extra


class SectionedCommand(click.Command):
    """A command whose help page lists its options by section, in the order in which sections first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; ``--help`` itself last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        last: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (sections.setdefault(param.section, []) if isinstance(param, _Option) else last).append(
                    record
                )
        for title, records in (*sections.items(), ("Help", last)):
            with formatter.section(title):
                formatter.write_dl(records)


def options_of(section: str) -> Callable[..., Any]:
    """``click.option`` for a section."""
    return partial(click.option, cls=_Option, section=section)
