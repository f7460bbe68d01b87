"""The scheduler: `plan(now)` and `settle(result, now)`, two pure turns around one tick of a worker.

Jobs wait in one queue, in order of arrival; a lane is a job with a sequence of its own in a continuous batch. A tick
admits what fits, prefills some rows and decodes some rounds; it is sized toward a target time by what the last ticks
took. All of it is bookkeeping over ids and counts: no clock, no text, no engine.

Life of a job::

    queue -> lane (prefill -> decode) -> settled: end | limit | cancelled | context full | error
       ^--------- cold again, if its kept KV could not be cut where it was needed
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from superfluid.core import places
from superfluid.core.errors import TooManyInFlight
from superfluid.core.ids import TokenIds, packed
from superfluid.core.limits import MAX_QUEUED_GENERATIONS
from superfluid.core.plan import FINISHED, Admit, JobResult, JobState, Move, Plan, Result
from superfluid_protocol import GenParams

DECODE_TARGET_US: Final = 50_000
"""A tick's decode rounds take about this long while a lane is free or finishing: a newcomer waits no longer, and
twenty updates a second look continuous to a reader."""

BUSY_TARGET_US: Final = 250_000
"""The same while all lanes are busy and nobody could be admitted anyway."""

PREFILL_TARGET_US: Final = 100_000
"""Prefill of one tick beside decoding lanes: how long their streams pause."""

FIRST_GUESS_STEP_US: Final = 15_000
FIRST_GUESS_ROW_US: Final = 4_000
"""Cost of a decode step and of a prefill row before anything was measured; one tick corrects them."""

SMOOTHING: Final = 0.3
"""Weight of the latest tick in the running averages."""

MIN_PREFILL_ROWS: Final = 16
"""Prefill progresses by at least this many rows a tick, however slow the machine."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One generation, from its prompt to its last token.

    Attributes:
        prompt: The session's whole token stream when the job was made.
        limit: Most tokens to generate.
        warm: Prompt tokens that came from kept KV; -1 until the job is first admitted.
    """

    id: int
    prompt: TokenIds
    params: GenParams
    limit: int
    warm: int = -1
    cold: bool = False
    seq: int = -1
    to_prefill: int = 0
    generated: int = 0

    @property
    def decoding(self) -> bool:
        return self.to_prefill == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a tick did for one job; the last one of a job has a finished state."""

    job: int
    tokens: TokenIds
    state: JobState
    warm: int
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """The books of one worker.

    Args:
        lanes: Most jobs that decode together.
        sequences: Sequences of the pool, lanes included; those beyond keep the KV of finished jobs.
    """

    lanes: int
    sequences: int
    queue: OrderedDict[int, Job] = field(default_factory=OrderedDict)
    running: dict[int, Job] = field(default_factory=dict)
    slots: list[places.Slot] = field(init=False)
    tick: int = 0
    step_us: float = FIRST_GUESS_STEP_US
    row_us: float = FIRST_GUESS_ROW_US
    cancelled: set[int] = field(default_factory=set)
    retiring: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [places.Slot(seq=seq) for seq in range(self.sequences)]

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            TooManyInFlight: The queue is full.
        """
        if len(self.queue) >= MAX_QUEUED_GENERATIONS:
            raise TooManyInFlight(
                f"{MAX_QUEUED_GENERATIONS} generations are waiting already; try again later"
            )
        self.queue[job.id] = job

    def cancel(self, job_id: int) -> bool:
        """Give a job up.

        Returns:
            True if it was still queued and is simply gone. A running one ends with the tick in flight, which the
            caller may cut short; its last `Update` says ``CANCELLED`` whether or not the worker heard of it in time.
        """
        if self.queue.pop(job_id, None) is not None:
            return True
        if job_id in self.running:
            self.cancelled.add(job_id)
        return False

    def plan(self) -> Plan | None:
        """The next tick, or None when there is nothing to do.

        The books already show the plan as carried out; `settle` corrects them by what really happened.
        """
        moves: list[Move] = []
        admits: list[Admit] = []
        while self.queue and len(self.running) < self.lanes:
            _id, job = self.queue.popitem(last=False)
            placement = places.place(self.slots, job.prompt, cold=job.cold)
            places.carry_out(self.slots, placement.moves)
            moves.extend(placement.moves)
            admits.append(self._admit(job, placement))
        if not self.running:
            return None
        self.tick += 1
        retired, self.retiring = tuple(self.retiring), []
        return Plan(
            id=self.tick,
            moves=tuple(moves),
            admit=tuple(admits),
            prefill=self._prefill(),
            decode_rounds=self._decode_rounds(),
            retire=retired,
        )

    def settle(self, result: Result) -> list[Update]:
        """Bring the books in line with what the worker did."""
        self._learn(result)
        updates = [update for job in result.jobs if (update := self._settle_job(job)) is not None]
        for seq, held in result.positions:
            slot = self.slots[seq]
            slot.held = min(held, len(slot.stream))
            if held > len(slot.stream):
                # The worker holds positions whose ids the books do not know: nothing may ever match them.
                slot.clear()
        return updates

    def reset(self) -> list[int]:
        """The worker is gone with all its KV: forget every sequence, and return the jobs that were on lanes."""
        lost = list(self.running)
        self.running.clear()
        self.cancelled.clear()
        self.retiring.clear()
        self.slots = [places.Slot(seq=seq) for seq in range(self.sequences)]
        return lost

    def _admit(self, job: Job, placement: places.Placement) -> Admit:
        slot = self.slots[placement.seq]
        slot.stream = array("I", job.prompt)
        slot.held = placement.start
        slot.job = job.id
        slot.used = self.tick
        job.seq = placement.seq
        job.to_prefill = len(job.prompt) - placement.start
        job.warm = placement.start
        self.running[job.id] = job
        params = job.params
        return Admit(
            job=job.id,
            seq=placement.seq,
            start=placement.start,
            tokens=job.prompt[placement.start :].tobytes(),
            limit=job.limit,
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k,
            seed=params.seed,
        )

    def _prefill(self) -> tuple[tuple[int, int], ...]:
        """Rows of prompts this tick, shortest remaining prompt first."""
        waiting = sorted(
            (j for j in self.running.values() if not j.decoding), key=lambda j: (j.to_prefill, j.id)
        )
        alone = len(waiting) == len(self.running) == self.lanes
        target = BUSY_TARGET_US if alone else PREFILL_TARGET_US
        budget = max(MIN_PREFILL_ROWS, int(target / self.row_us))
        rows: list[tuple[int, int]] = []
        for job in waiting:
            if budget <= 0:
                break
            share = min(job.to_prefill, budget)
            rows.append((job.id, share))
            budget -= share
        return tuple(rows)

    def _decode_rounds(self) -> int:
        full = len(self.running) == self.lanes and all(job.decoding for job in self.running.values())
        target = BUSY_TARGET_US if full else DECODE_TARGET_US
        return max(1, round(target / self.step_us))

    def _settle_job(self, result: JobResult) -> Update | None:
        job = self.running.get(result.job)
        if job is None:
            return None
        slot = self.slots[job.seq]
        state = result.state
        if state is JobState.COLD and not job.cold and job.id not in self.cancelled:
            self._release(job, slot)
            slot.clear()
            job.cold = True
            self.queue[job.id] = job
            self.queue.move_to_end(job.id, last=False)
            return None
        tokens = packed(result.tokens)
        job.to_prefill -= result.prefilled
        job.generated += len(tokens)
        slot.stream.extend(tokens)
        if state is JobState.RUNNING and job.id in self.cancelled:
            # The worker finished the tick before it heard of the cancel: it learns with the next plan.
            state = JobState.CANCELLED
            self.retiring.append(job.id)
        if state in FINISHED:
            self._release(job, slot)
        return Update(job=job.id, tokens=tokens, state=state, warm=job.warm, detail=result.detail)

    def _release(self, job: Job, slot: places.Slot) -> None:
        del self.running[job.id]
        self.cancelled.discard(job.id)
        slot.job = None
        slot.used = self.tick

    def _learn(self, result: Result) -> None:
        if result.decode_steps:
            self.step_us += SMOOTHING * (result.decode_us / result.decode_steps - self.step_us)
        if result.prefill_rows >= MIN_PREFILL_ROWS:
            self.row_us += SMOOTHING * (result.prefill_us / result.prefill_rows - self.row_us)
