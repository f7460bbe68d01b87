"""Where the `session` commands read: the running daemon, or the log itself when there is none.

The log is read without lock or engine, and nothing is changed; what a live server has committed by then is what is
seen.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from superfluid_client import Client, ConnectionFailed, Node
from superfluid_protocol import Inspection, SessionSummary, address, types


class Source(Protocol):
    """Something that knows the sessions."""

    def sessions(self, *, include_archived: bool) -> tuple[SessionSummary, ...]:
        """Summaries by id."""

    def tree(self) -> tuple[Node, ...]:
        """Every session's place, archived ones included."""

    def inspect(self, session_id: int) -> Inspection:
        """Everything about one, with all of its events."""

    def check(self) -> None:
        """Raise what is wrong with the source itself; to be called after everything readable has been shown."""

    def close(self) -> None:
        """Let go of it."""


def open_source(socket: Path | None, directory: Path | None) -> Source:
    """The daemon or the log that is meant.

    Args:
        socket: As named on the command line. Alone, it means that daemon and nothing else.
        directory: As named on the command line. Alone, it means that log, whoever serves it.

    Neither means the daemon at its usual place, else the log at its usual place.

    Raises:
        ConnectionFailed: The named daemon does not run.
        ClickException: Neither the daemon nor the log is there.
        SuperfluidError: The log cannot be read.
    """
    if directory is not None and socket is None:
        return _open_log(directory, "")
    try:
        return DaemonSource(Client.connect(socket))
    except ConnectionFailed as absent:
        if socket is not None and directory is None:
            raise
        return _open_log(directory or address.default_sessions(os.environ), str(absent))


@dataclass(frozen=True, slots=True)
class DaemonSource:
    """The running daemon."""

    client: Client

    def sessions(self, *, include_archived: bool) -> tuple[SessionSummary, ...]:
        """As `Source`."""
        return self.client.sessions(include_archived=include_archived)

    def tree(self) -> tuple[Node, ...]:
        """As `Source`."""
        return self.client.tree()

    def inspect(self, session_id: int) -> Inspection:
        """As `Source`."""
        return self.client.inspect(session_id)

    def check(self) -> None:
        """As `Source`. A daemon that answers has read its log to the end."""

    def close(self) -> None:
        """As `Source`."""
        self.client.close()


class LogSource:
    """A log, folded into the state that a daemon would have."""

    def __init__(self, path: Path) -> None:
        from superfluid.core.errors import LogCorrupt
        from superfluid.core.replay import apply_command
        from superfluid.core.state import State
        from superfluid.wal.reader import read_log

        self._state = State()
        self._damage: LogCorrupt | None = None
        try:
            for command in read_log(path):
                apply_command(self._state, command)
        except LogCorrupt as damage:
            self._damage = damage

    @property
    def frozen(self) -> dict[int, str]:
        """Sessions that could be read in part only, with the reason."""
        return self._state.frozen

    def sessions(self, *, include_archived: bool) -> tuple[SessionSummary, ...]:
        """As `Source`."""
        from superfluid.core import view

        return view.summaries(self._state, include_archived=include_archived)

    def tree(self) -> tuple[Node, ...]:
        """As `Source`."""
        from superfluid.core import view

        return tuple(Node(*node) for node in view.nodes(self._state))

    def inspect(self, session_id: int) -> Inspection:
        """As `Source`. The log does not say whose KV is in a pool, and the reader not which store this is."""
        from superfluid.core import frame, view

        return view.inspection(
            self._state,
            session_id,
            wal_version=frame.VERSION,
            store_id=None,
            tier=types.Cold(),
            room=sys.maxsize,
        )

    def check(self) -> None:
        """As `Source`.

        Raises:
            LogCorrupt: The log is damaged behind what was shown.
        """
        if self._damage is not None:
            raise self._damage

    def close(self) -> None:
        """As `Source`. The log was closed when it had been read."""


def _open_log(directory: Path, absent: str) -> LogSource:
    from superfluid.core.errors import StartError

    try:
        source = LogSource(directory)
    except StartError as error:
        raise click.ClickException(f"{absent}; {error}" if absent else str(error)) from error
    click.echo(f"superfluid: read from the log in {directory}, without the daemon", err=True)
    for session_id, reason in sorted(source.frozen.items()):
        click.echo(f"superfluid: session {session_id} is shown up to where its log fits: {reason}", err=True)
    return source
