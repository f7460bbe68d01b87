"""What others may know of an engine: where it is, and what it did."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import trio

from superfluid.core.entry import Place
from superfluid.core.plan import Result
from superfluid.core.schedule import Scheduler
from superfluid.sched.histogram import Histogram

TTFT_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds to the first token that are told apart: from a warm session to a long prompt behind a queue."""


@dataclass(slots=True)
class Statistics:
    """Counts since the start."""

    scheduler: Scheduler
    ticks: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    warm_prefix_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    respawns: int = 0
    worker_losses: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    """Seconds from a job's arrival to its first token."""

    def count(self, result: Result) -> None:
        """Take a tick in."""
        self.ticks += 1
        self.prefill_tokens += result.prefill_rows
        self.decode_tokens += result.decode_rows
        self.drafted += result.drafted
        self.accepted += result.accepted

    @property
    def cold_admissions(self) -> int:
        """Jobs that found nothing of their prompt."""
        return self.scheduler.counts.cold_admissions

    @property
    def coalesced(self) -> int:
        """Jobs that waited for another's prefill of the same beginning."""
        return self.scheduler.counts.coalesced

    @property
    def preemptions(self) -> int:
        """Lanes that were taken from a job for an urgent one."""
        return self.scheduler.counts.preemptions

    @property
    def resumes(self) -> dict[str, int]:
        """Jobs that were seeded, by where the KV came from."""
        return {place: self.scheduler.counts.resumes[place] for place in ("pool", "host", "park")}

    @property
    def evictions(self) -> dict[str, int]:
        """Entries that went for lack of room, by where they lay."""
        evictions = self.scheduler.cache.evictions
        return {place.name.lower(): evictions[place] for place in Place}

    @property
    def parks(self) -> int:
        """Park files written."""
        return self.scheduler.parking.parks

    @property
    def pins_yielded(self) -> int:
        """Pins that gave way to newer ones."""
        return self.scheduler.cache.pins.yielded

    @property
    def pins_expired(self) -> int:
        """Pins that ended by their deadline."""
        return self.scheduler.cache.pins.expired


class Phase(Enum):
    """Where the engine is."""

    LOADING = "loading"
    READY = "ready"
    LOST = "lost"
    """A worker that was ready or loading is gone; jobs wait for the next one."""
    UNSTARTABLE = "unstartable"
    """The last start failed after an earlier one had worked; it is tried again, and jobs are refused meanwhile."""
    FAILED = "failed"
    """The first worker could not start: the engine has ended."""
    CLOSED = "closed"


@dataclass(slots=True, kw_only=True)
class Status:
    """What others may know of the engine."""

    phase: Phase = Phase.LOADING
    fraction: float = 0.0
    reason: str = ""
    worker_pid: int | None = None
    n_ctx: int | None = None
    description: str = ""
    changed: trio.Event = field(default_factory=trio.Event)
