"""How the scheduler and the prefix cache are to behave: what `superfluid serve` was asked for, as plain data."""

from dataclasses import dataclass
from typing import Final

from superfluid_protocol import numbers

NO_CAPS: Final = (0, 0, 0, 0)

STARVATION_TICKS: Final = 8
COALESCE_MIN: Final = 256
PRESSURE_HIGH_PCT: Final = 85
PRESSURE_LOW_PCT: Final = 70
PIN_BUDGET_PCT: Final = 50
SPECULATE: Final = ("auto", "prompt-lookup", "off")

URGENT: Final = numbers.Qos.COMPLETION
"""Classes up to this one take a lane from a lower one when all are busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One worker's scheduling and caching.

    Attributes:
        lanes: Most jobs that decode together.
        kept: Sequences of the pool beyond the lanes, which keep the KV of finished jobs.
        class_lanes: Most lanes of each class, by its number; 0 is no cap.
        starvation_ticks: A job that waited so many ticks counts as one class higher, and a prompt that got no row for so
            many goes first.
        prefill_budget: Most prompt rows of one tick; 0 leaves it to the time they take.
        tick_target_ms: Wanted length of a tick while a lane is free; 0 takes the default.
        pressure_high, pressure_low: Watermarks of the pool, in percent of its cells.
        pin_budget_pct: What pins hold together at most, in percent of the pool's cells.
        coalesce_min: A job waits for one that is prefilling the same beginning when that spares so many rows; 0 never
            waits.
        host_bytes: Host memory for KV that left the pool; None takes what the machine can spare.
        speculate: One of `SPECULATE`: whether replies may be guessed from their own text and verified in one step.
        park: Whether a finished session's KV goes to a file.
        park_bytes: What park files hold together at most; 0 is no bound.
        park_lossy: Whether park files may use the smaller, lossy encoding.
    """

    lanes: int
    kept: int = 0
    class_lanes: tuple[int, int, int, int] = NO_CAPS
    starvation_ticks: int = STARVATION_TICKS
    prefill_budget: int = 0
    tick_target_ms: int = 0
    pressure_high: int = PRESSURE_HIGH_PCT
    pressure_low: int = PRESSURE_LOW_PCT
    pin_budget_pct: int = PIN_BUDGET_PCT
    coalesce_min: int = COALESCE_MIN
    host_bytes: int | None = None
    speculate: str = "auto"
    park: bool = False
    park_bytes: int = 0
    park_lossy: bool = False

    @property
    def sequences(self) -> int:
        """Sequences of the pool."""
        return self.lanes + self.kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What a worker turned out to be.

    Attributes:
        n_ctx: Positions of one sequence.
        bytes_per_token: Of KV that is exported.
        bytes_per_sequence: The same, whatever the sequence holds.
        cuts_freely: A sequence can be cut back to any position. Otherwise KV is good for exactly what it holds.
        exact: Every row is computed exactly here, whether or not a job asks for it.
        host_bytes: Host memory for entries.
    """

    n_ctx: int
    bytes_per_token: int = 0
    bytes_per_sequence: int = 0
    cuts_freely: bool = True
    exact: bool = False
    host_bytes: int = 0

    def size(self, positions: int) -> int:
        """Bytes of a sequence's exported KV, about."""
        return self.bytes_per_sequence + positions * self.bytes_per_token
