"""`superfluid models`: what is served, and what was measured of it."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from superfluid.core.capability import Capability
    from superfluid_protocol import ModelInfo


@click.command(
    epilog="""
\b
Examples:
  superfluid models                       what the daemon serves
  superfluid models --json                the same for programs, with all that was measured
  superfluid models --probe ./model.gguf  measure a model now, without a daemon; serving it uses the result
"""
)
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="The daemon's socket.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON array.")
@click.option(
    "--probe",
    metavar="MODEL",
    help="Measure MODEL (smollm2, or the path of a GGUF file) now, again if it was measured before: the attention "
    "kernels and what makes replies exact. Takes a minute or more, on a machine that does nothing else.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="With --probe: threads of the worker  [default: the machine's cores]",
)
def models(*, socket: Path | None, as_json: bool, probe: str | None, threads: int) -> None:
    """Show the served model and what was measured of it: attention kernel, exactness and its cost."""
    if probe is not None:
        shown = [_probed(probe, threads)]
    else:
        from superfluid_client import Client

        with Client.connect(socket) as client:
            shown = [_served(info) for info in client.models()]
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        for model in shown:
            click.echo("\n".join(describe(model)))


def describe(model: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people about one model."""
    from superfluid.core.capability import from_json

    state = ""
    if "loaded" in model:
        state = f": {'ready' if model['loaded'] else 'loading'}, {model['lanes']} lanes"
        state += f" of {model['context']} tokens" if model["context"] else ""
    yield f"{model['name']} ({model['path']}){state}"
    if model.get("description"):
        yield f"  {model['description']}"
    found = from_json(json.dumps(model["capability"])) if model["capability"] else None
    if found is None:
        yield "  nothing was measured"
        return
    for time in found.attention:
        yield (
            f"  attention, flash {time.flash_attn}: a step takes {time.first_us / 1000:.1f} ms, "
            f"{time.deep_us / 1000:.1f} ms {time.depth} tokens later"
        )
    if found.trouble:
        yield f"  {found.trouble}"
    yield f"  exact replies: {_exactness(found)}"


def _exactness(found: "Capability") -> str:
    tactic = found.tactic
    if tactic is None or found.exactness is None:
        return str(found.batch_invariant)
    context = f"{tactic.kernels} kernels, flash {tactic.flash_attn}, KV {tactic.kv_type}"
    if tactic.rows == 1:
        return f"always, by {context} itself"
    return f"by {tactic.rows} rows for one ({context}); a step takes {found.exactness.cost:.2f} times as long"


def _served(info: "ModelInfo") -> dict[str, Any]:
    return {
        "name": info.name,
        "path": info.path,
        "loaded": info.loaded,
        "context": info.context,
        "lanes": info.lanes,
        "description": info.description,
        "capability": json.loads(info.capability) if info.capability else None,
    }


def _probed(name: str, threads: int) -> dict[str, Any]:
    """Measure a model in this process's own workers."""
    from superfluid.worker.llama.model import check_file
    from superfluid.worker.llama.models import find_model

    path = find_model(name)
    check_file(path)

    import trio

    from superfluid.app.measuring import measure_now
    from superfluid.core.capability import to_json

    def tell(fraction: float) -> None:
        if sys.stderr.isatty():
            click.echo(f"\rmeasuring {fraction:4.0%}", nl=False, err=True)

    found = trio.run(lambda: measure_now(path, os.environ, threads=threads, on_progress=tell))
    if sys.stderr.isatty():
        click.echo("\r" + " " * 20 + "\r", nl=False, err=True)
    return {"name": name, "path": path.name, "capability": json.loads(to_json(found))}
