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
from superfluid.core.errors import ContextFull, TooManyInFlight
from superfluid.core.ids import TokenIds, packed
from superfluid.core.limits import MAX_ADMITTED_BYTES, MAX_QUEUED_GENERATIONS
from superfluid.core.plan import FINISHED, Admit, JobResult, JobState, Move, Plan, Result
from superfluid_protocol import GenParams

DECODE_TARGET_US: Final = 100_000
"""A tick's decode rounds take about this long while a lane is free or finishing: ten updates a second look continuous to
a reader, and each tick costs some 2 ms of both cores, whatever its length (measured at one lane: 4 to 5 % of 50 ms). A
newcomer does not wait for its end: the engine's loop interrupts it."""

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

STARVING_TICKS: Final = 8
"""A prompt that got no row for so many ticks goes first, before shorter ones that came later."""

LEAST_US: Final = 1.0
"""What a step or a row is taken to cost at least, so that a clock that stands still makes no endless tick."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One generation, from its prompt to its last token.

    Attributes:
        prompt: The session's whole token stream when the job was made.
        limit: Most tokens to generate.
        warm: Prompt tokens that came from kept KV; -1 until the job is first admitted.
        cold: Use no kept KV: it could not be cut where this job needed it.
        to_prefill: Prompt rows still to compute.
        waited: Ticks in a row in which it was to prefill and got no row.
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
    waited: int = 0

    @property
    def decoding(self) -> bool:
        """Whether a running job's prompt is computed."""
        return self.to_prefill == 0

    @property
    def stored(self) -> int:
        """Positions of a running job that lie in its sequence: the last token generated is not computed yet."""
        return len(self.prompt) - self.to_prefill + max(0, self.generated - 1)


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

    Attributes:
        step_us, row_us: Running averages of what a decode step and a prompt row take.
        cancelled: Running jobs that were given up.
        retiring: Given-up jobs that the worker still has; the next plan takes them from it.
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
        assert 0 < self.lanes <= self.sequences, "every lane needs a sequence"
        self.slots = [places.Slot(seq=seq) for seq in range(self.sequences)]

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            TooManyInFlight: The queue is full.
            ContextFull: The prompt is larger than anything that can be handed to a worker.
        """
        if _size(job.prompt) > MAX_ADMITTED_BYTES:
            raise ContextFull(f"a prompt of {len(job.prompt)} tokens is beyond every context")
        if len(self.queue) >= MAX_QUEUED_GENERATIONS:
            raise TooManyInFlight(
                f"{MAX_QUEUED_GENERATIONS} generations are waiting already; try again later"
            )
        self.queue[job.id] = job

    def cancel(self, job_id: int) -> bool:
        """Give a job up.

        Returns:
            True if it was still queued and is simply gone. A running one ends with the tick in flight, which the
            caller may cut short; its last `Update` says ``CANCELLED`` whether or not the worker heard of it in time,
            unless it came to its own end first.
        """
        if self.queue.pop(job_id, None) is not None:
            return True
        if job_id in self.running:
            self.cancelled.add(job_id)
        return False

    def joinable(self) -> bool:
        """Whether a job that just came would get a lane if the tick in flight ended now, and nothing but time would be
        lost by that: a prefill that is cut loses rows."""
        return len(self.running) < self.lanes and all(job.decoding for job in self.running.values())

    def plan(self) -> Plan | None:
        """The next tick, or None when there is nothing to do.

        The books already show the plan as carried out; `settle` corrects them by what really happened.
        """
        moves: list[Move] = []
        admits: list[Admit] = []
        room = MAX_ADMITTED_BYTES
        while self.queue and len(self.running) < self.lanes:
            job = next(iter(self.queue.values()))
            placement = places.place(self.slots, job.prompt, cold=job.cold)
            room -= _size(job.prompt) - placement.start * job.prompt.itemsize
            if room < 0:
                break  # the first one always fits: it was submitted
            del self.queue[job.id]
            places.carry_out(self.slots, placement.moves)
            moves.extend(placement.moves)
            admits.append(self._admit(job, placement))
        if not self.running:
            return None
        self.tick += 1
        prefill = self._prefill()
        # The first token of a reply is shown as soon as it is there, not after a tick's worth of them.
        opens = any(self.running[job].to_prefill == rows for job, rows in prefill)
        retired, self.retiring = tuple(self.retiring), []
        return Plan(
            id=self.tick,
            moves=tuple(moves),
            admit=tuple(admits),
            prefill=prefill,
            decode_rounds=1 if opens else self._decode_rounds(),
            retire=retired,
        )

    def settle(self, result: Result) -> list[Update]:
        """Bring the books in line with what the worker did."""
        self._learn(result)
        cold = [self.running[line.job] for line in result.jobs if self._to_retry(line)]
        updates = [
            self._settle_job(self.running[line.job], line)
            for line in result.jobs
            if line.job in self.running and not self._to_retry(line)
        ]
        for job in reversed(cold):  # back to the head of the queue, in the order in which they came
            self._retry_cold(job)
        for seq, held in result.positions:
            # A report only ever lowers a claim: the worker may hold more, but what, only the books know.
            self.slots[seq].held = min(held, self.slots[seq].held)
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
        """Rows of prompts this tick: starving ones first, then the shortest remaining prompt."""
        waiting = [job for job in self.running.values() if not job.decoding]
        waiting.sort(key=lambda job: (job.waited < STARVING_TICKS, job.to_prefill, job.id))
        alone = len(waiting) == len(self.running) == self.lanes
        target = BUSY_TARGET_US if alone else PREFILL_TARGET_US
        budget = max(MIN_PREFILL_ROWS, int(target / self.row_us))
        rows: list[tuple[int, int]] = []
        for job in waiting:
            share = min(job.to_prefill, budget)
            job.waited = 0 if share else job.waited + 1
            if share:
                rows.append((job.id, share))
                budget -= share
        return tuple(rows)

    def _decode_rounds(self) -> int:
        """Rounds of this tick. One that nobody can join is long, but ends where a lane does that a waiting job needs."""
        left = [job.limit - job.generated for job in self.running.values()]
        full = len(left) == self.lanes and all(job.decoding for job in self.running.values())
        rounds = round((BUSY_TARGET_US if full else DECODE_TARGET_US) / self.step_us)
        return max(1, min(rounds, min(left) if full and self.queue else max(left)))

    def _to_retry(self, line: JobResult) -> bool:
        job = self.running.get(line.job)
        return (
            job is not None
            and line.state is JobState.COLD
            and not job.cold
            and line.job not in self.cancelled
        )

    def _retry_cold(self, job: Job) -> None:
        self.slots[job.seq].clear()
        self._release(job)
        job.cold = True
        self.queue[job.id] = job
        self.queue.move_to_end(job.id, last=False)

    def _settle_job(self, job: Job, line: JobResult) -> Update:
        tokens = packed(line.tokens)
        job.to_prefill -= line.prefilled
        job.generated += len(tokens)
        slot = self.slots[job.seq]
        slot.stream.extend(tokens)
        slot.held = job.stored
        state = line.state
        if job.id in self.cancelled and state in {JobState.RUNNING, JobState.COLD}:
            if state is JobState.RUNNING:
                # The worker finished the tick before it heard of the cancel: it learns with the next plan.
                self.retiring.append(job.id)
            state = JobState.CANCELLED
        elif state is JobState.COLD:
            # From position 0 there is nothing to cut, so it makes no sense to ask a third time.
            state = JobState.ERROR
        if state in FINISHED:
            self._release(job)
        return Update(job=job.id, tokens=tokens, state=state, warm=job.warm, detail=line.detail)

    def _release(self, job: Job) -> None:
        del self.running[job.id]
        self.cancelled.discard(job.id)
        slot = self.slots[job.seq]
        slot.job = None
        slot.used = self.tick

    def _learn(self, result: Result) -> None:
        if result.decode_steps:
            self.step_us += SMOOTHING * (max(LEAST_US, result.decode_us / result.decode_steps) - self.step_us)
        if result.prefill_rows >= MIN_PREFILL_ROWS:
            self.row_us += SMOOTHING * (max(LEAST_US, result.prefill_us / result.prefill_rows) - self.row_us)


def _size(stream: TokenIds) -> int:
    """Bytes of a stream."""
    return len(stream) * stream.itemsize
