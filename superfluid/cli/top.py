"""`superfluid top`: what the daemon does, live."""

import dataclasses
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from superfluid.cli.top_model import View
    from superfluid_client import Client

QUIT_KEYS = b"qQ"


@click.command(
    epilog="""
\b
Examples:
  superfluid top                                  q or Ctrl-C leaves
  superfluid top --once                           one look, for a script or a report
  superfluid top --json --interval 5 >> load.jsonl
"""
)
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="The daemon's socket.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often the daemon is asked.",
)
@click.option(
    "--once", is_flag=True, help="Take two samples, an interval apart, show what they tell, and leave."
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object a sample, one a line.")
def top(*, socket: Path | None, interval: float, once: bool, as_json: bool) -> int:
    """Show lanes, queue, tokens a second, times to the first token, and where KV is.

    Asks the running daemon for its metrics; one that goes away is waited for.
    """
    from superfluid_client import Client

    with Client.connect(socket) as client:
        feed = Feed(client)
        try:
            if once:
                return _once(feed, interval, as_json=as_json)
            if not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
                return _live(feed, interval)
            return _stream(feed, interval, as_json=as_json)
        except KeyboardInterrupt:
            return 0  # how one leaves it


class Feed:
    """The daemon's views, as often as they are asked for."""

    def __init__(self, client: "Client") -> None:
        from superfluid.cli.top_model import History

        self._client = client
        self._history = History()
        self._lanes = self._context = 0
        self._model = ""
        self.where = client.path

    def look(self) -> "View | None":
        """Ask the daemon now; None when it is not there.

        Raises:
            SuperfluidError: It is there, and does not answer this.
        """
        from superfluid.cli.top_model import parse
        from superfluid_client import ConnectionFailed, ConnectionLost

        try:
            if not self._context:
                self._ask_model()
            text = self._client.metrics()
        except (ConnectionFailed, ConnectionLost):
            self._history.clear()
            self._context = 0  # the next one may serve another model
            return None
        return self._history.add(
            parse(text, time.monotonic()), model=self._model, context=self._context, lanes=self._lanes
        )

    def _ask_model(self) -> None:
        for model in self._client.models():
            self._model, self._context, self._lanes = model.name, model.context, model.lanes


def _once(feed: Feed, interval: float, *, as_json: bool) -> int:
    if feed.look() is not None:
        time.sleep(interval)
        view = feed.look()
        if view is not None:
            _write(view, as_json=as_json)
            return 0
    raise click.ClickException(f"the daemon on {feed.where} went away")


def _stream(feed: Feed, interval: float, *, as_json: bool) -> int:
    """Views one below the other, until somebody ends it."""
    gone = False
    while True:
        view = feed.look()
        if view is not None:
            _write(view, as_json=as_json)
        elif not gone:
            click.echo(_gone(feed), err=True)
        gone = view is None
        time.sleep(interval)


def _write(view: "View", *, as_json: bool) -> None:
    from superfluid.cli.top_screen import lines

    if as_json:
        click.echo(json.dumps(dataclasses.asdict(view)))
    else:
        click.echo("\n".join(lines(view)) + "\n")
    sys.stdout.flush()


def _live(feed: Feed, interval: float) -> int:
    """One view that changes, on the whole terminal."""
    from rich.console import Console
    from rich.live import Live

    from superfluid.cli.top_screen import drawing

    view: View | None = None
    with (
        Live(drawing(view, ""), console=Console(highlight=False), screen=True, auto_refresh=False) as screen,
        _keys() as keys,
    ):
        while True:
            fresh = feed.look()
            note = "q leaves" if fresh is not None else f"{_gone(feed)}; q leaves"
            view = fresh or view
            screen.update(drawing(view, note), refresh=True)
            if _pressed_quit(keys, interval):
                return 0


def _gone(feed: Feed) -> str:
    return f"no daemon answers on {feed.where}; waiting for it"


@contextmanager
def _keys() -> Iterator[int | None]:
    """The terminal's keys one at a time, unseen; None when standard input is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed_quit(keys: int | None, seconds: float) -> bool:
    """Wait for the next look; whether somebody wants to leave."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([] if keys is None else [keys], [], [], left)
        if ready and keys is not None:
            pressed = os.read(keys, 64)
            if not pressed or any(key in QUIT_KEYS for key in pressed):
                return True
    return False
