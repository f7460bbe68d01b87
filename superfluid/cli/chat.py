"""`superfluid chat`: talk to the model in a session, on a terminal or through a pipe."""

import os
import sys
from pathlib import Path

import click

DEFAULT_TOKENS = 1024


@click.command(
    epilog="""
\b
Examples:
  superfluid chat                                   a new session
  superfluid chat --session 3                       go on with session 3
  superfluid chat --system "You are brief." --temperature 0
  echo "What is a fork?" | superfluid chat          one reply; every line is a message
  git diff | superfluid chat -m -                   all of the input is one message
\b
Inside:
  /continue /fork [EVENT] /tree /sessions /session N /help /quit
  Ctrl-C ends the reply, and at an empty prompt, twice, the program.
"""
)
@click.option(
    "--session", "session_id", type=click.IntRange(min=0), metavar="N", help="Go on with this session."
)
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="The daemon's socket.")
@click.option("--system", metavar="TEXT", help="What the model is told before everything else.")
@click.option(
    "-m",
    "--message",
    metavar="TEXT",
    help="Say this, print the reply and leave; - takes all of standard input.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=DEFAULT_TOKENS,
    show_default=True,
    help="Longest reply; /continue goes on behind it.",
)
@click.option("--temperature", type=click.FloatRange(min=0), help="0 is greedy.  [default: 0.7]")
@click.option("--top-p", type=click.FloatRange(0, 1), help="[default: 0.95]")
@click.option("--min-p", type=click.FloatRange(0, 1), help="[default: 0.05]")
@click.option("--top-k", type=click.IntRange(min=0), help="0 turns it off.  [default: 40]")
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), help="The same seed, the same draws.  [default: random]"
)
def chat(
    *,
    session_id: int | None,
    socket: Path | None,
    system: str | None,
    message: str | None,
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    min_p: float | None,
    top_k: int | None,
    seed: int | None,
) -> int:
    """Talk to the model of the running daemon.

    Everything that is shown is committed: a session can be continued from here or from any other program, after a crash
    as well.
    """
    given = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "top_k": top_k, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    if session_id is not None and (chosen or system is not None):
        raise click.UsageError(
            "--session goes on with a session as it is: its sampling and system text are set"
        )

    from superfluid.cli.conversation import Conversation, existing
    from superfluid.cli.prompt import Prompt
    from superfluid_client import Client, sampling

    with Client.connect(socket) as client:
        if session_id is None:
            params = sampling(**chosen)  # type: ignore[arg-type]  # the names are those of its arguments
            session = client.create_session(params, system=system)
        else:
            session = existing(client, session_id)
        conversation = Conversation(client, session, max_tokens=max_tokens)
        if message is not None:
            conversation.note_session()
            return conversation.say(_whole_input() if message == "-" else message)
        return Prompt(conversation, history=_history_file()).run()


def _whole_input() -> str:
    from superfluid.cli.prompt import NOT_TEXT

    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise click.ClickException(NOT_TEXT) from error


def _history_file() -> Path | None:
    """Where the lines typed at the prompt are kept: beside the sessions, which hold the same words."""
    from superfluid_protocol import address

    home = address.home(os.environ)
    return home / "chat-history" if home.is_dir() else None
