"""The command line: its commands, and how every one of them ends.

Exit codes: 0; 1 when something failed at run time; 2 when the command line was wrong; 130 after Ctrl-C. An error is one
line on stderr and never a traceback; with ``SUPERFLUID_TRACEBACK=1`` a bug of ours shows where it is.
"""

import io
import os
import sys
from typing import Final, NoReturn

import click

from superfluid import __version__
from superfluid.cli.lazy import LazyGroup

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
"""What a shell reports for a program that SIGINT ended: 128 + 2."""


@click.group(
    cls=LazyGroup,
    lazy={
        "serve": ("superfluid.cli.serve:serve", "Serve a model's sessions on a Unix socket."),
        "chat": ("superfluid.cli.chat:chat", "Talk to the model in a session."),
        "session": ("superfluid.cli.session:session", "List, inspect and draw sessions."),
        "models": ("superfluid.cli.models:models", "Show what is served, and what was measured of it."),
        "top": ("superfluid.cli.top:top", "Watch what the daemon does, live."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""
\b
Examples:
  superfluid serve smollm2        start the daemon with the embedded model
  superfluid chat                 talk to it, in a new session
  superfluid chat --session 3     go on with session 3
  superfluid session list         every session, with or without a daemon
  superfluid session inspect 3    one session, event by event
  superfluid top                  lanes, queue, tokens a second, KV
\b
Environment:
  SUPERFLUID_HOME                 where socket and sessions are  [default: ~/.superfluid]
""",
)
@click.version_option(__version__, "--version", prog_name="superfluid", message="%(prog)s %(version)s")
def cli() -> None:
    """A session server for local LLMs: nothing that was shown is ever lost."""


def main() -> NoReturn:
    """Run the command line and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that has no sign for a character shows its number; no reply is worth an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run one command line; its exit code. Errors are told on stderr, in one line."""
    try:
        code = cli.main(args, prog_name="superfluid", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "superfluid"
        return _tell(f"{error.format_message().rstrip('.')} (see '{command} --help')", USAGE)
    except click.ClickException as error:
        return _tell(error.format_message(), FAILED)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:  # noqa: BLE001 - the last place where a fault can become one line
        return _tell(_one_line(error), FAILED)
    return code if isinstance(code, int) else 0


def _tell(message: str, code: int) -> int:
    try:
        click.echo(f"superfluid: {' '.join(message.split())}", err=True)
    except OSError:
        return code  # stderr is gone too; the code has to say it
    return code


def _reader_left() -> int:
    """Whoever read our output stopped reading (``| head``). The interpreter flushes stdout once more as it exits,
    so that has to go somewhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _one_line(error: Exception) -> str:
    """What to tell of an error: those that were made for people as they are, a bug of ours as one."""
    from superfluid.core.errors import SuperfluidError
    from superfluid_client import SuperfluidError as ClientError

    if isinstance(error, SuperfluidError | ClientError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if os.environ.get("SUPERFLUID_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    return f"internal error: {type(error).__name__}: {error} (SUPERFLUID_TRACEBACK=1 shows where)"
