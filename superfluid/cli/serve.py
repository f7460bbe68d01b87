"""`superfluid serve`: check early, run the daemon, say in a few lines how to use it."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from superfluid.app.config import ServeConfig
from superfluid.cli.sections import SectionedCommand
from superfluid.cli.serve_options import serve_options
from superfluid_protocol import address


@click.command(
    cls=SectionedCommand,
    epilog="""
\b
Examples:
  superfluid serve smollm2                    the model that comes as a package
  superfluid serve ./model.gguf               a GGUF file
  superfluid serve smollm2 --max-batch 4 --max-context 4096
  superfluid serve smollm2 --class-lanes background=2 --park
Then, in another terminal:  superfluid chat, and superfluid top
""",
)
@click.argument("model", required=False)
@serve_options
def serve(
    *,
    model: str | None,
    named: tuple[str, ...],
    runtime: str,
    tui: bool,
    log_filter: str | None,
    verbose: bool,
    **settings: Any,  # noqa: ANN401 - those of ServeConfig, by name
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
    _run(_config(models[0], settings), log_filter or ("debug" if verbose else "info"))


def _config(model: str, settings: dict[str, Any]) -> ServeConfig:
    """What was asked for, checked as a whole."""
    if settings["pressure_low"] > settings["pressure_high"]:
        raise click.UsageError(
            f"--pressure-low {settings['pressure_low']} is above --pressure-high {settings['pressure_high']}: eviction "
            "begins at the high one and goes down to the low one"
        )
    if settings["exact"] and settings["park_lossy"]:
        raise click.UsageError(
            "--park-lossy keeps KV that is not exact, and --exact could never go on from it: use --park"
        )
    if settings["host_memory_gb"] == 0 and (settings["park"] or settings["park_lossy"]):
        raise click.UsageError(
            "--park needs host memory, which KV passes on its way to a file and back: --host-memory-gb 0 leaves none"
        )
    settings["sessions"] = settings["sessions"] or address.default_sessions(os.environ)
    settings["socket"] = settings["socket"] or address.default_socket(os.environ)
    settings["park"] = settings["park"] or settings["park_lossy"]
    return ServeConfig(model=model, **settings)


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
