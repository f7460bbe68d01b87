"""The prompt of `superfluid chat`: lines in, messages and slash commands out."""

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from superfluid.cli.conversation import FAILED, Conversation, existing, note
from superfluid_client import SuperfluidError

HISTORY_LINES: Final = 1000

NOT_TEXT: Final = "the input is not UTF-8 text"

HELP: Final = """\
/continue      go on with a reply that was cut
/fork [EVENT]  go on in a fork of this session: of all of it, or of what came before EVENT
/tree          which session was forked from which
/sessions      every session
/session N     go on in session N
/help          this
/quit          leave (Ctrl-D as well)
//text         say a message that begins with a slash
A line that ends with a backslash is continued on the next one."""


class Leave(Exception):
    """The person is done."""


class Prompt:
    """Reads lines until they end.

    Args:
        history: Where lines are remembered between two chats; None remembers nothing.
    """

    def __init__(self, conversation: Conversation, *, history: Path | None) -> None:
        self._conversation = conversation
        self._history = history
        self._interactive = sys.stdin.isatty()
        self._commands: dict[str, Callable[[str], int]] = {
            "continue": self._continue,
            "fork": self._fork,
            "tree": self._tree,
            "sessions": self._sessions,
            "session": self._session,
            "help": self._help,
            "quit": self._quit,
            "exit": self._quit,
        }

    def run(self) -> int:
        """Talk until the input ends. The exit code: 1 if a piped line failed; a person has seen it and went on."""
        self._conversation.can_cancel = self._interactive
        failed = False
        with self._remembered():
            self._conversation.note_session()
            if self._interactive:
                note("/help shows the commands")
            while (line := self._read()) is not None:
                try:
                    failed = bool(self._obey(line)) or failed
                except Leave:
                    break
                except KeyboardInterrupt:
                    if not self._interactive:
                        raise
                    note("Left; the daemon may have done it all the same")
        return FAILED if failed and not self._interactive else 0

    def _obey(self, line: str) -> int:
        text = line.strip()
        if not text:
            return 0
        if text.startswith("//"):
            return self._conversation.say(text[1:])
        if not text.startswith("/"):
            return self._conversation.say(text)
        word, _, rest = text[1:].partition(" ")
        command = self._commands.get(word)
        if command is None:
            close = difflib.get_close_matches(word, self._commands, n=1)
            note(
                f"There is no /{word}; {f'did you mean /{close[0]}?' if close else '/help shows what there is'}"
            )
            return FAILED
        try:
            return command(rest.strip())
        except SuperfluidError as error:
            note(str(error))
            return FAILED

    # -- commands -----------------------------------------------------------------------------------

    def _continue(self, _rest: str) -> int:
        return self._conversation.answer()

    def _fork(self, rest: str) -> int:
        at_event = _number(rest)
        if rest and at_event is None:
            note("/fork takes the number of an event")
            return FAILED
        talk = self._conversation
        parent = talk.session.id
        talk.session = talk.session.fork(at_event)
        note(f"session {talk.session.id}, a fork of {parent}; /session {parent} goes back")
        return 0

    def _session(self, rest: str) -> int:
        number = _number(rest)
        if number is None:
            note("/session takes the number of a session")
            return FAILED
        talk = self._conversation
        talk.session = existing(talk.client, number)
        talk.note_session()
        return 0

    def _sessions(self, _rest: str) -> int:
        from superfluid.cli.session import print_list

        print_list(self._conversation.client.sessions())
        return 0

    def _tree(self, _rest: str) -> int:
        from superfluid.cli.session import print_tree

        client = self._conversation.client
        print_tree(client.tree(), client.sessions(include_archived=True))
        return 0

    def _help(self, _rest: str) -> int:
        click.echo(HELP)
        return 0

    def _quit(self, _rest: str) -> int:
        raise Leave

    # -- reading ------------------------------------------------------------------------------------

    def _read(self) -> str | None:
        """The next line, or None at the end of input; on a terminal Ctrl-C drops a line, and twice ends the input."""
        interrupted = False
        while True:
            try:
                return self._continued_line()
            except EOFError:
                if self._interactive:
                    click.echo(err=True)
                return None
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                click.echo(err=True)
                if interrupted:
                    return None
                interrupted = True
                note("Ctrl-C again, Ctrl-D or /quit leaves")

    def _continued_line(self) -> str:
        parts = [self._line("> ")]
        while parts[-1].endswith("\\"):
            parts[-1] = parts[-1][:-1]
            try:
                parts.append(self._line(". "))
            except EOFError:
                break
        return "\n".join(parts)

    def _line(self, prompt: str) -> str:
        try:
            if self._interactive:
                return input(prompt)
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise click.ClickException(NOT_TEXT) from error
        if not line:
            raise EOFError
        return line.rstrip("\n")

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        """Line editing, with the lines of earlier chats. The file is readable by its user alone, as the sessions are."""
        if not self._interactive:
            yield
            return
        try:
            import readline
        except ImportError:  # a Python that was built without it still reads lines
            yield
            return
        if self._history is None:
            yield
            return
        readline.set_history_length(HISTORY_LINES)
        with contextlib.suppress(OSError):
            readline.read_history_file(self._history)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                readline.write_history_file(self._history)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
