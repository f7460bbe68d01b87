"""The options of `superfluid serve`, in the sections of its help page.

The names that an option's value is passed by are those of `superfluid.app.config.ServeConfig`; only the options in
`ABOUT_THE_PROCESS` are not settings of the daemon.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from superfluid.app import config
from superfluid.cli.sections import options_of
from superfluid.core import options
from superfluid_protocol.numbers import Qos

ABOUT_THE_PROCESS: Final = ("named", "runtime", "tui", "log_filter", "verbose")

MAX_SEQUENCES: Final = 64
"""Of each kind, lanes and kept ones: llama.cpp takes 256 together, and each costs KV for a whole context."""


def _class_lanes(_ctx: click.Context, param: click.Parameter, value: str | None) -> dict[Qos, int]:
    """The caps by class; a usage error says what is wrong."""
    if value is None:
        return {}
    try:
        return config.parse_class_lanes(value)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param=param) from wrong


_model = options_of("What is served, and where")
_lanes = options_of("Lanes and memory")
_order = options_of("Who computes when")
_cache = options_of("What is kept for the next turn")
_park = options_of("What is kept across restarts")
_process = options_of("The process")

_PERCENT = click.IntRange(1, 100)

OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    _model(
        "--model",
        "named",
        metavar="MODEL",
        multiple=True,
        help="The model, as an option instead of an argument.",
    ),
    _model(
        "--sessions",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Where the session log is kept  [default: $SUPERFLUID_HOME/sessions]",
    ),
    _model(
        "--socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="The Unix socket to serve  [default: $SUPERFLUID_HOME/superfluid.sock]",
    ),
    _lanes(
        "--max-batch",
        type=click.IntRange(1, MAX_SEQUENCES),
        default=config.DEFAULT_LANES,
        show_default=True,
        metavar="N",
        help="Generations that decode together; more wait in a queue. Each takes KV memory for a whole context.",
    ),
    _lanes(
        "--max-context",
        type=click.IntRange(min=0),
        default=0,
        metavar="TOKENS",
        help="Tokens of one session on the model  "
        "[default: what it was trained with, at most 8192, within a quarter of the free memory]",
    ),
    _lanes(
        "--kept-sequences",
        type=click.IntRange(0, MAX_SEQUENCES),
        default=config.KEPT_SEQUENCES,
        show_default=True,
        metavar="N",
        help="Finished generations whose KV stays in the pool beside the lanes; each takes as much as a lane.",
    ),
    _lanes(
        "--host-memory-gb",
        type=click.FloatRange(min=0),
        metavar="GB",
        help="Memory for KV beside the pool, in 10^9 bytes; 0 keeps none  "
        "[default: as much as the pool, at most 8, within 60 % of what is free]",
    ),
    _lanes(
        "--threads",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Threads of the worker  [default: the machine's cores]",
    ),
    _lanes(
        "--flash-attn",
        type=click.Choice(["auto", "off", "on"]),
        default="auto",
        show_default=True,
        help="The attention kernel; auto measures which is faster, for some seconds, when a model is first served.",
    ),
    _lanes(
        "--exact",
        is_flag=True,
        help="Every reply is the same to the last bit, whatever else is computed. What that takes is measured when a "
        "model is first served (one to some minutes); where nothing does, the daemon does not start.",
    ),
    _order(
        "--class-lanes",
        callback=_class_lanes,
        metavar="CLASS=N,...",
        help="Most lanes of a class: interactive, completion, agent or background. background=2,agent=6 keeps two of "
        "eight lanes for people  [default: all lanes for each]",
    ),
    _order(
        "--starvation-ticks",
        type=click.IntRange(min=1),
        default=options.STARVATION_TICKS,
        show_default=True,
        metavar="TICKS",
        help="A generation that waited so long counts as one class higher. A tick takes 100 to 250 ms.",
    ),
    _order(
        "--prefill-budget",
        type=click.IntRange(min=0),
        default=0,
        metavar="TOKENS",
        help="Prompt tokens computed in one tick: more finishes prompts sooner, fewer lets streams pause less; 0 goes "
        "by time  [default]",
    ),
    _order(
        "--tick-target-ms",
        type=click.IntRange(0, 10_000),
        default=0,
        metavar="MS",
        help="How long a tick should take while somebody could join: shorter is smoother, longer takes less of the "
        "cores; 0 is the built-in target  [default]",
    ),
    _order(
        "--speculate",
        type=click.Choice(options.SPECULATE),
        default="auto",
        show_default=True,
        help="Guess tokens from the session's own text and verify several in one step, where that pays. auto does so "
        "where it cannot change the reply (exact rows); prompt-lookup also where the last bits of a reply may differ.",
    ),
    _cache(
        "--pressure-high",
        type=_PERCENT,
        default=options.PRESSURE_HIGH_PCT,
        show_default=True,
        metavar="PERCENT",
        help="Filled so far, the pool begins to give up kept KV; never that of a running generation.",
    ),
    _cache(
        "--pressure-low",
        type=click.IntRange(0, 100),
        default=options.PRESSURE_LOW_PCT,
        show_default=True,
        metavar="PERCENT",
        help="How far it then goes down.",
    ),
    _cache(
        "--pin-budget-pct",
        type=click.IntRange(0, 100),
        default=options.PIN_BUDGET_PCT,
        show_default=True,
        metavar="PERCENT",
        help="Of the pool, what pinned sessions may hold together; the oldest pins yield to new ones.",
    ),
    _cache(
        "--coalesce-min",
        type=click.IntRange(min=0),
        default=options.COALESCE_MIN,
        show_default=True,
        metavar="TOKENS",
        help="A prompt that shares so many tokens with one being computed waits for them instead of computing them "
        "again; 0 never waits.",
    ),
    _park(
        "--park",
        is_flag=True,
        help="Seal the KV of finished generations to <sessions>/park, and go on from there.",
    ),
    _park(
        "--park-budget-gb",
        type=click.FloatRange(min=0),
        default=config.PARK_BUDGET_GB,
        show_default=True,
        metavar="GB",
        help="Of these files together, in 10^9 bytes; the oldest go first. 0 is unbounded.",
    ),
    _park(
        "--park-lossy", is_flag=True, help="About half the size, at the price of exactness. Implies --park."
    ),
    _process(
        "--drain-timeout",
        type=click.FloatRange(min=0),
        default=config.DEFAULT_DRAIN_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="How long running replies may finish after SIGINT or SIGTERM; a second signal ends the wait.",
    ),
    _process(
        "--runtime",
        type=click.Choice(["llamacpp"]),
        default="llamacpp",
        show_default=True,
        help="The engine.",
    ),
    _process(
        "--tui/--no-tui",
        default=False,
        hidden=True,
        help="Accepted for scripts; `superfluid top` shows what happens.",
    ),
    _process(
        "--log-filter",
        default=None,
        metavar="FILTER",
        help="Which log lines are written: a level, or target=level pairs: info,superfluid.sched=debug",
    ),
    _process("-v", "--verbose", is_flag=True, help="Write debug lines too."),
)


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function all of them, in this order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
