"""A conversation in one session: say something, show the reply as it comes, survive whatever happens to the other side.

Replies go to stdout, and everything about them to stderr, so that a pipe carries replies only.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click

from superfluid.cli.visible import visible
from superfluid_client import (
    Client,
    ConnectionLost,
    Finish,
    NothingInFlight,
    OutcomeUnknown,
    RequestRefused,
    ServerFailed,
    Session,
    Stream,
    SuperfluidError,
)
from superfluid_protocol import event, numbers

FAILED: Final = 1

BEYOND_THE_END: Final = 2**63
"""A cursor that no session reaches: reading from it costs nothing, and tells whether there is a session."""


def existing(client: Client, session_id: int) -> Session:
    """A session that is there.

    Raises:
        NoSuchSession: It is not.
    """
    session = client.session(session_id)
    session.events(BEYOND_THE_END)
    return session


def note(text: str) -> None:
    """A line about the conversation, set apart from it."""
    click.secho(f"{text}", err=True, dim=sys.stderr.isatty())


class Conversation:
    """What the commands of `superfluid chat` work on.

    Attributes:
        session: The one that is talked in; `/fork` and `/session` change it.
    """

    def __init__(self, client: Client, session: Session, *, max_tokens: int) -> None:
        self.client = client
        self.session = session
        self.max_tokens = max_tokens
        self.can_cancel = False
        """Whether Ctrl-C ends the reply; otherwise it ends the program, and the reply with it."""

    def note_session(self) -> None:
        """Say which session this is, and how it draws."""
        from superfluid.cli.describe import params_text

        params = "" if self.session.params is None else f"; {params_text(self.session.params)}"
        note(f"session {self.session.id}{params}")

    def say(self, text: str) -> int:
        """Append a message and show the reply. Returns 0, or 1 when that failed; why is told."""
        try:
            self.session.user(text)
        except ConnectionLost:
            note(
                "The connection was lost while the message was sent. /continue answers it if it arrived; "
                "else say it again."
            )
            return FAILED
        except (OutcomeUnknown, ServerFailed) as error:
            note(str(error))  # it may have been stored
            return FAILED
        except (SuperfluidError, ValueError) as error:
            note(f"Not sent: {error}")
            return FAILED
        return self.answer()

    def answer(self) -> int:
        """Let the model answer, or go on where its reply was cut. Returns as `say`."""
        stream = self.session.stream(self.max_tokens)
        try:
            with self._cancelled_by_ctrl_c():
                self._show(stream)
        except RequestRefused as error:
            _end_line(stream)
            note(str(error))
            return FAILED
        except SuperfluidError as error:
            _end_line(stream)
            note(f"{error}. What is shown is kept; /continue goes on from there.".replace("..", "."))
            return FAILED
        except BaseException:
            stream.close()
            raise
        _end_line(stream)
        self._note_end(stream.result.finish)
        return 0

    def _show(self, stream: Stream) -> None:
        """Write the reply as it is committed; what the model thinks goes with the notes."""
        thinking = False
        for message in stream.events():
            body = message.body
            if not isinstance(body, event.Generated) or not body.text:
                continue
            if body.channel == numbers.Channel.REASONING:
                click.secho(visible(body.text, keep="\n\t"), err=True, nl=False, dim=sys.stderr.isatty())
                thinking = True
                continue
            if thinking:
                click.echo(err=True)
                thinking = False
            text = visible(body.text, keep="\n\t") if sys.stdout.isatty() else body.text
            click.echo(text, nl=False)
            sys.stdout.flush()

    def _note_end(self, finish: int) -> None:
        if finish == Finish.MAX_TOKENS:
            note("The reply was cut at its token limit; /continue goes on.")
        elif finish == Finish.CANCELLED:
            note("Cancelled; /continue goes on.")

    @contextmanager
    def _cancelled_by_ctrl_c(self) -> Iterator[None]:
        """Let the first Ctrl-C end the reply in order, so that all that was committed is shown; a second one, for a
        daemon that does not answer, leaves the stream as it is."""
        if not self.can_cancel:
            yield
            return
        pressed = False

        def cancel(_number: int, _frame: FrameType | None) -> None:
            nonlocal pressed
            if pressed:
                raise KeyboardInterrupt
            pressed = True
            try:
                self.session.cancel()
            except NothingInFlight:
                pass  # it ended by itself in this moment
            except SuperfluidError as error:
                note(f"The reply cannot be cancelled ({error}); Ctrl-C again leaves it.")

        before = signal.signal(signal.SIGINT, cancel)
        try:
            yield
        except KeyboardInterrupt:
            raise ConnectionLost("The reply was left") from None
        finally:
            signal.signal(signal.SIGINT, before)


def _end_line(stream: Stream) -> None:
    """Begin a new line if the reply's last one is not at its end."""
    shown = next(
        (
            m.body.text
            for m in reversed(stream.committed)
            if isinstance(m.body, event.Generated) and m.body.text
        ),
        "",
    )
    if shown and not shown.endswith("\n"):
        click.echo()
