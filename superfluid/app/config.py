"""What `superfluid serve` was asked for, as plain data with the defaults in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from superfluid.core.options import (
    COALESCE_MIN,
    PIN_BUDGET_PCT,
    PRESSURE_HIGH_PCT,
    PRESSURE_LOW_PCT,
    STARVATION_TICKS,
)
from superfluid_protocol.numbers import Qos

DEFAULT_LANES: Final = 8
DEFAULT_DRAIN_SECONDS: Final = 5.0

KEPT_SEQUENCES: Final = 8
"""Sequences of the pool beyond the lanes, which keep the KV of finished generations."""

PARK_BUDGET_GB: Final = 20.0
"""Of park files: some hundred long sessions of a small model."""

GB: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One daemon.

    Attributes:
        model: Name of the embedded model, or the path of a GGUF file.
        sessions: Directory of the log.
        max_batch: Generations that decode together.
        kept_sequences: Sequences of the pool beyond the lanes.
        max_context: Tokens of one session on the model; 0 takes what the model was trained with, within what memory
            allows.
        threads: Of the worker; 0 takes the machine's cores.
        flash_attn: ``off``, ``on``, or ``auto`` for the one that is measured to be faster.
        exact: Serve every session exactly; refuse to start where that cannot be.
        class_lanes: Most lanes of a class; one that is not named may take all of them.
        starvation_ticks: After so many ticks a waiting job counts as one class higher.
        prefill_budget: Prompt tokens computed in one tick; 0 goes by time.
        tick_target_ms: How long a tick should take while somebody could join; 0 is the built-in target.
        pressure_high, pressure_low: Percent of the pool at which eviction begins, and to which it goes.
        pin_budget_pct: Percent of the pool that pins may hold together.
        coalesce_min: Shared tokens from which a job waits for another's prefill; 0 never waits.
        speculate: ``off``, ``prompt-lookup`` or ``auto``.
        host_memory_gb: Of KV beside the pool, in 10^9 bytes; None chooses by what is free, 0 keeps none.
        park: Seal the KV of finished generations to files.
        park_budget_gb: Of these files together, in 10^9 bytes; 0 is unbounded.
        park_lossy: In half the size, where that is possible.
        drain_timeout: Seconds that running generations get to finish when the daemon is asked to end.
    """

    model: str
    sessions: Path
    socket: Path
    max_batch: int = DEFAULT_LANES
    kept_sequences: int = KEPT_SEQUENCES
    max_context: int = 0
    threads: int = 0
    flash_attn: str = "auto"
    exact: bool = False
    class_lanes: Mapping[Qos, int] = field(default_factory=dict)
    starvation_ticks: int = STARVATION_TICKS
    prefill_budget: int = 0
    tick_target_ms: int = 0
    pressure_high: int = PRESSURE_HIGH_PCT
    pressure_low: int = PRESSURE_LOW_PCT
    pin_budget_pct: int = PIN_BUDGET_PCT
    coalesce_min: int = COALESCE_MIN
    speculate: str = "auto"
    host_memory_gb: float | None = None
    park: bool = False
    park_budget_gb: float = PARK_BUDGET_GB
    park_lossy: bool = False
    drain_timeout: float = DEFAULT_DRAIN_SECONDS

    def class_caps(self) -> tuple[int, int, int, int]:
        """Most lanes of each class, in the order of `Qos`; never more than there are."""
        interactive, completion, agent, background = (
            min(self.class_lanes.get(qos, self.max_batch), self.max_batch) for qos in Qos
        )
        return interactive, completion, agent, background


def parse_class_lanes(text: str) -> dict[Qos, int]:
    """Read ``background=2,agent=6``.

    Raises:
        ValueError: It is not of this form; the text says what is wrong with which part.
    """
    names = {qos.name.lower(): qos for qos in Qos}
    caps: dict[Qos, int] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"{part.strip()!r} is not of the form class=lanes, such as background=2")
        if name not in names:
            raise ValueError(f"there is no class {name!r}; the classes are {', '.join(names)}")
        if names[name] in caps:
            raise ValueError(f"{name} is given twice")
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            raise ValueError(f"{number!r} is no number of lanes for {name}: 1 or more, or it could never run")
        caps[names[name]] = int(number)
    return caps
