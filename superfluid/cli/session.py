"""`superfluid session …`: look at sessions, with the daemon or without it."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from superfluid.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superfluid.cli.render import Branch
    from superfluid.cli.source import Source
    from superfluid_client import Node
    from superfluid_protocol import Inspection, SessionSummary

TITLE_WIDTH: Final = 60
LABEL_WIDTH: Final = 40
LEAST_TEXT_WIDTH: Final = 20

EVENT_HEAD: Final = ("id", "kind", "role", "tokens", "text")


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("superfluid.cli.session:list_", "Every session, one a line."),
        "inspect": ("superfluid.cli.session:inspect", "One session: its parameters and its events."),
        "tree": ("superfluid.cli.session:tree", "Which session was forked from which."),
    },
    epilog="""
\b
Examples:
  superfluid session list --json | jq '.[].id'
  superfluid session inspect 3 --full
  superfluid session tree --sessions ~/.superfluid/sessions
""",
)
def session() -> None:
    """Look at sessions.

    Asks the running daemon. When none runs, the log is read as it is, without the engine and without changing anything.
    """


def _options(command: Any) -> Any:  # noqa: ANN401 - click's decorators are typed no closer
    """What all commands of this group take."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Write one JSON document and nothing else."),
        click.option(
            "--socket", type=click.Path(path_type=Path), metavar="PATH", help="Ask the daemon on this socket."
        ),
        click.option(
            "--sessions",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Read the log in this directory (with --socket: when that daemon does not run).",
        ),
    ):
        command = option(command)
    return command


@click.command("list")
@click.option("--all", "-a", "include_archived", is_flag=True, help="Archived sessions too.")
@_options
def list_(*, include_archived: bool, as_json: bool, socket: Path | None, sessions: Path | None) -> None:
    """List the sessions, one a line."""
    with _source(socket, sessions) as source:
        found = source.sessions(include_archived=include_archived)
        if as_json:
            _write_json(found)
        else:
            print_list(found)


@click.command("inspect")
@click.argument("session_id", metavar="SESSION", type=click.IntRange(min=0))
@click.option("--full", is_flag=True, help="Whole texts instead of their beginnings.")
@_options
def inspect(
    *, session_id: int, full: bool, as_json: bool, socket: Path | None, sessions: Path | None
) -> None:
    """Show everything about SESSION, a number: a summary, its parameters, then its events, one a line."""
    with _source(socket, sessions) as source:
        found = source.inspect(session_id)
        if as_json:
            _write_json(found)
        else:
            _print_inspection(found, full=full)


@click.command("tree")
@_options
def tree(*, as_json: bool, socket: Path | None, sessions: Path | None) -> None:
    """Draw which session was forked from which, and at which event. Archived sessions are part of it."""
    with _source(socket, sessions) as source:
        nodes = source.tree()
        if as_json:
            _write_json_object([node._asdict() for node in nodes])
            return
        print_tree(nodes, source.sessions(include_archived=True))


@contextmanager
def _source(socket: Path | None, directory: Path | None) -> "Iterator[Source]":
    from superfluid.cli.source import open_source

    source = open_source(socket, directory)
    try:
        yield source
        source.check()
    finally:
        source.close()


def _write_json(value: Any) -> None:  # noqa: ANN401 - one or several wire values
    from superfluid_protocol import to_json

    _write_json_object([to_json(item) for item in value] if isinstance(value, tuple) else to_json(value))


def _write_json_object(value: object) -> None:
    # ASCII: a terminal has nothing to obey in it, and a program nothing to guess.
    click.echo(json.dumps(value, indent=2))


def print_tree(nodes: "tuple[Node, ...]", summaries: "tuple[SessionSummary, ...]") -> None:
    """Draw the sessions, each below the one it was forked from."""
    from superfluid.cli.render import forest

    forest(_branches(nodes, {line.id: line for line in summaries}))


def print_list(found: "tuple[SessionSummary, ...]") -> None:
    """Print one line a session."""
    from superfluid.cli.render import table
    from superfluid.cli.visible import shortened

    rows = []
    for line in found:
        origin = (
            ""
            if line.parent is None
            else f"{line.parent}@{line.fork_at}"
            if line.fork_at
            else str(line.parent)
        )
        title = shortened(line.title or "", TITLE_WIDTH) + (" (archived)" if line.archived else "")
        rows.append((str(line.id), origin, str(line.events), str(line.tokens), title.strip()))
    table(("id", "from", "events", "tokens", "title"), rows, numeric=(0, 2, 3))


def _print_inspection(found: "Inspection", *, full: bool) -> None:
    from superfluid.cli.describe import describe, name, params_text
    from superfluid.cli.render import table, width
    from superfluid.cli.visible import shortened, visible
    from superfluid_protocol import numbers

    line = found.summary
    facts = [f"{line.events} events", f"{line.tokens} tokens", f"epoch {found.epoch}"]
    facts += [
        f"last finish: {name(numbers.Finish, found.last_finish)}",
        f"KV: {type(found.tier).__name__.lower()}",
    ]
    click.echo(f"session {line.id}" + (f": {shortened(line.title, TITLE_WIDTH)}" if line.title else ""))
    if line.parent is not None:
        click.echo(f"  forked from session {line.parent} at event {line.fork_at}")
    click.echo(f"  {', '.join(facts)}{', archived' if line.archived else ''}")
    click.echo(f"  {params_text(found.params)}")
    if found.events:
        click.echo(f"  {_when(found.events[0].ts_unix_ms)} to {_when(found.events[-1].ts_unix_ms)}")
    click.echo("")

    described = [(message.event_id, describe(message.body)) for message in found.events]
    rows = [
        (str(event_id), item.kind, item.role, "" if item.tokens is None else str(item.tokens), item.text)
        for event_id, item in described
    ]
    used = sum(max((len(row[column]) for row in rows), default=0) + 2 for column in range(4))
    room = max(width() - used - 4, LEAST_TEXT_WIDTH)
    shown = [(*row[:4], visible(row[4]) if full else shortened(row[4], room)) for row in rows]
    table(EVENT_HEAD, shown, numeric=(0, 3), wrap=full)


def _when(ts_unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(ts_unix_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{ts_unix_ms} ms"


def _branches(nodes: "tuple[Node, ...]", lines: "dict[int, SessionSummary]") -> "list[Branch]":
    from superfluid.cli.render import Branch
    from superfluid.cli.visible import shortened

    made: dict[int, Branch] = {}
    for session_id, _parent, fork_at in nodes:
        line = lines.get(session_id)
        label = f"{session_id}" + (f" @{fork_at}" if fork_at else "")
        if line is not None:
            label += f"  {line.events} events" + (
                f"  {shortened(line.title, LABEL_WIDTH)}" if line.title else ""
            )
            label += " (archived)" if line.archived else ""
        made[session_id] = Branch(label)
    roots = []
    for session_id, parent, _fork_at in nodes:
        if parent is not None and parent in made:
            made[parent].below.append(made[session_id])
        else:
            roots.append(made[session_id])
    return roots
