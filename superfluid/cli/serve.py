"""`superfluid serve`: check early, run the daemon, say in a few lines how to use it."""

import os
import shlex
import sys
from pathlib import Path

import click

from superfluid.app.config import DEFAULT_DRAIN_SECONDS, DEFAULT_LANES, ServeConfig
from superfluid_protocol import address


@click.command(
    epilog="""
\b
Examples:
  superfluid serve smollm2                    the model that comes as a package
  superfluid serve ./model.gguf               a GGUF file
  superfluid serve smollm2 --max-batch 4 --max-context 4096
Then, in another terminal:  superfluid chat
"""
)
@click.argument("model", required=False)
@click.option(
    "--model", "named", metavar="MODEL", multiple=True, help="The model, as an option instead of an argument."
)
@click.option(
    "--sessions",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the session log is kept  [default: $SUPERFLUID_HOME/sessions]",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The Unix socket to serve  [default: $SUPERFLUID_HOME/superfluid.sock]",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, 64),
    default=DEFAULT_LANES,
    show_default=True,
    help="Generations that decode together; more wait in a queue.",
)
@click.option(
    "--max-context",
    type=click.IntRange(min=0),
    default=0,
    help="Tokens of one session on the model  "
    "[default: what it was trained with, at most 8192, within a quarter of the free memory]",
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    help="Threads of the worker  [default: the machine's cores]",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    default=DEFAULT_DRAIN_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long running replies may finish after SIGINT or SIGTERM; a second signal ends the wait.",
)
@click.option(
    "--runtime", type=click.Choice(["llamacpp"]), default="llamacpp", show_default=True, help="The engine."
)
@click.option(
    "--tui/--no-tui", default=False, hidden=True, help="Accepted for scripts; there is no full-screen view."
)
@click.option(
    "--log-filter",
    default=None,
    metavar="FILTER",
    help="Which log lines are written: a level, or target=level pairs: info,superfluid.sched=debug",
)
@click.option("-v", "--verbose", is_flag=True, help="Write debug lines too.")
def serve(
    *,
    model: str | None,
    named: tuple[str, ...],
    sessions: Path | None,
    socket: Path | None,
    max_batch: int,
    max_context: int,
    threads: int,
    drain_timeout: float,
    runtime: str,
    tui: bool,
    log_filter: str | None,
    verbose: bool,
) -> None:
    """Serve MODEL: the name smollm2, or the path of a GGUF file.

    Sessions are kept in a log that holds everything they say, in the clear, readable by you alone. SIGINT (Ctrl-C)
    and SIGTERM end the daemon in order; nothing that a client has seen is ever lost, whatever ends it.
    """
    models = [*([model] if model else []), *named]
    if not models:
        raise click.UsageError("name a model: superfluid serve smollm2, or the path of a GGUF file")
    if len(models) > 1:
        raise click.UsageError(
            "one model can be served at a time; start another daemon with its own SUPERFLUID_HOME"
        )
    config = ServeConfig(
        model=models[0],
        sessions=sessions or address.default_sessions(os.environ),
        socket=socket or address.default_socket(os.environ),
        max_batch=max_batch,
        max_context=max_context,
        threads=threads,
        drain_timeout=drain_timeout,
    )
    _run(config, log_filter or ("debug" if verbose else "info"))


def _run(config: ServeConfig, log_filter: str) -> None:
    # The engine first: what else is missing without it (numpy) would hide the one sentence that says what to do.
    from superfluid.worker.llama.model import check_file
    from superfluid.worker.llama.models import find_model

    path = find_model(config.model)
    check_file(path)

    import trio

    from superfluid.app.serve import Daemon
    from superfluid.observe import logs
    from superfluid.observe.outlet import Outlet

    log_lines = logs.configure(log_filter)
    # None when the daemon was started with standard output closed.
    output = Outlet(sys.stdout.fileno()) if sys.stdout is not None else None

    def greet(daemon: Daemon) -> None:
        if output is not None:
            output.write(_greeting(daemon.config.model, daemon.socket))

    try:
        trio.run(Daemon(config, path, on_ready=greet).run, strict_exception_groups=True)
    finally:
        for outlet in (output, log_lines):
            if outlet is not None:
                outlet.drain()


def _greeting(model: str, socket: Path) -> str:
    """A few lines for the person who started it, to be pasted into another terminal.

    That one knows nothing of this one's environment, so a socket that is not everybody's default is named.
    """
    elsewhere = {name: value for name, value in os.environ.items() if name != "SUPERFLUID_HOME"}
    custom = socket != address.default_socket(elsewhere)
    option = f" --socket {shlex.quote(str(socket))}" if custom else ""
    python = (
        f"from superfluid_client import Client; c = Client.connect({repr(str(socket)) if custom else ''}); "
        's = c.create_session(); s.user("Hello!"); print(s.generate(64).text)'
    )
    lines = (
        f"superfluid serves {model} on {socket}",
        "Try, in another terminal:",
        f"  superfluid chat{option}",
        f"  superfluid session list{option}",
        f"  python -c {shlex.quote(python)}",
    )
    return "\n".join(lines) + "\n"
