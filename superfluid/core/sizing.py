"""How much a tick does: prompt rows and decode rounds, sized toward a target time by what the last ticks took."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from superfluid.core.job import Job
from superfluid.core.options import URGENT, Options
from superfluid.core.plan import Result

DECODE_TARGET_US: Final = 100_000
"""A tick's decode rounds take about this long while a lane is free or finishing: ten updates a second look continuous to
a reader, and each tick costs some 2 ms of both cores, whatever its length (measured at one lane: 4 to 5 % of 50 ms). A
newcomer does not wait for its end: the engine's loop interrupts it."""

BUSY_TARGET_US: Final = 250_000
"""The same while all lanes are busy and nobody could be admitted anyway."""

PREFILL_TARGET_US: Final = 100_000
"""Prefill of one tick beside decoding lanes: how long their streams pause."""

EFFICIENT_ROWS: Final = 128
"""Prompt rows of one tick while nothing decodes: enough for the engine to work at its best speed. A newcomer of a class
that does not wait interrupts it within a chunk, and what is lost by that is at most these."""

FIRST_GUESS_STEP_US: Final = 15_000
FIRST_GUESS_ROW_US: Final = 4_000
"""Cost of a decode step and of a prefill row before anything was measured; one tick corrects them."""

SMOOTHING: Final = 0.3
"""Weight of the latest tick in the running averages."""

MIN_PREFILL_ROWS: Final = 16
"""Prefill progresses by at least this many rows a tick, however slow the machine."""

ALIGNED_ROWS: Final = 8
"""Prompts are cut into multiples of so many rows: kernels take four or eight at a time, and the rows of exact jobs are
filled up to a multiple of as many."""

LEAST_US: Final = 1.0
"""What a step or a row is taken to cost at least, so that a clock that stands still makes no endless tick."""


@dataclass(slots=True, kw_only=True)
class Sizing:
    """What steps and rows cost, and what follows from it.

    Attributes:
        step_us, row_us: Running averages of what a decode step and a prompt row take.
    """

    options: Options
    step_us: float = FIRST_GUESS_STEP_US
    row_us: float = FIRST_GUESS_ROW_US

    def learn(self, result: Result) -> None:
        """Take a tick's times into the averages."""
        if result.decode_steps:
            self.step_us += SMOOTHING * (max(LEAST_US, result.decode_us / result.decode_steps) - self.step_us)
        if result.prefill_rows >= MIN_PREFILL_ROWS:
            self.row_us += SMOOTHING * (max(LEAST_US, result.prefill_us / result.prefill_rows) - self.row_us)

    def rows(self, waiting: Iterable[Job], *, decoding: bool) -> tuple[tuple[int, int], ...]:
        """Prompt rows of this tick: starving jobs first, then by class, then the shortest remaining prompt.

        Beside the prompt of an urgent class those of lower ones together get very few rows, and only if they starve: a
        tick's tokens are seen at its end, and eight agents that starve in turn would put off a chat for seconds.

        Args:
            waiting: The jobs on lanes whose prompts are not computed yet; what they wait is counted in them.
            decoding: Whether other lanes decode, and pause meanwhile.
        """
        order = sorted(
            waiting, key=lambda job: (not self._starves(job), job.counts_as, job.to_prefill, job.id)
        )
        budget = self._budget(decoding=decoding)
        first = min((job.counts_as for job in order), default=URGENT)
        hurry = first <= URGENT
        beside = MIN_PREFILL_ROWS
        rows: list[tuple[int, int]] = []
        for job in order:
            share = min(job.to_prefill, budget)
            if job.stops:
                share = min(share, job.stops[0] - job.stored)
            if hurry and job.counts_as > first:
                share = min(share, beside) if self._starves(job) else 0
                beside -= share
            if share < job.to_prefill and not job.stops and (rows or share > ALIGNED_ROWS):
                share -= share % ALIGNED_ROWS
            budget -= share
            job.waited = 0 if share else job.waited + 1
            if share:
                rows.append((job.id, share))
        return tuple(rows)

    def _starves(self, job: Job) -> bool:
        return job.waited >= self.options.starvation_ticks

    def _budget(self, *, decoding: bool) -> int:
        """Most prompt rows of this tick."""
        budget = max(MIN_PREFILL_ROWS, int(PREFILL_TARGET_US / self.row_us))
        if not decoding:
            budget = max(budget, EFFICIENT_ROWS)
        return min(budget, self.options.prefill_budget or budget)

    def rounds(self, jobs: Collection[Job], *, waiting: bool) -> int:
        """Decode rounds of this tick. One that nobody can join is long, but ends where a lane does that a waiting job
        needs.

        Args:
            jobs: All jobs on lanes that are not held back.
            waiting: Whether a job waits for a lane.
        """
        left = [job.left for job in jobs]
        full = len(left) == self.options.lanes and all(job.decoding for job in jobs)
        rounds = round((BUSY_TARGET_US if full else self._target_us) / self.step_us)
        return max(1, min(rounds, min(left) if full and waiting else max(left, default=1)))

    @property
    def _target_us(self) -> int:
        return self.options.tick_target_ms * 1000 or DECODE_TARGET_US
