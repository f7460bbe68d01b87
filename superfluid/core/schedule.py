"""The scheduler: `plan(now_ms)` and `settle(result)`, two pure turns around one tick of a worker.

Jobs wait in one queue a class; a lane is a job with a sequence of its own in a continuous batch. A tick admits what
fits, prefills some rows and decodes some rounds. All of it is bookkeeping over ids and counts: no clock, no text, no
engine.

Life of a job::

    queue -> lane (prefill -> decode) -> settled: end | limit | cancelled | context full | error
       ^--------- cold again, if its kept KV could not be cut where it was needed; or it gave its lane to an urgent one

While it is in the queue a job may wait for more than a lane: for a lane that is prefilling the same beginning, or for
its park file to be read.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from superfluid.core import checkpoints, lanes
from superfluid.core.cache import Cache
from superfluid.core.entry import Found
from superfluid.core.errors import ContextFull, TooManyInFlight
from superfluid.core.ids import TokenIds, packed
from superfluid.core.job import Counts, Job, Update
from superfluid.core.limits import MAX_ADMITTED_BYTES, MAX_QUEUED_GENERATIONS
from superfluid.core.options import URGENT, Options, Pool
from superfluid.core.orders import Order
from superfluid.core.parking import Parking
from superfluid.core.pins import Granted, Pins
from superfluid.core.plan import FINISHED, Admit, JobResult, JobState, Move, Plan, Result
from superfluid.core.queues import Queues
from superfluid.core.seeding import Seeding
from superfluid.core.sizing import Sizing
from superfluid_protocol import numbers

EXAMINED_JOBS: Final = 128
"""Waiting jobs that one tick looks at: each costs a search of the prefix index, 30 to 150 us. Those that are known to
wait for another's prefill cost none and do not count."""

PARKED_AFTER: Final = frozenset({JobState.END, JobState.LIMIT, JobState.CANCELLED, JobState.CONTEXT_FULL})
"""How a job ends whose session is worth a park file."""


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """The books of one worker.

    Attributes:
        running: Jobs on lanes.
        cancelled: Running jobs that were given up.
        retiring: Jobs that the worker still has and that have no lane any more; the next plan takes them from it.
    """

    options: Options
    queues: Queues = field(init=False)
    cache: Cache = field(init=False)
    parking: Parking = field(init=False)
    seeding: Seeding = field(init=False)
    sizing: Sizing = field(init=False)
    counts: Counts = field(default_factory=Counts)
    running: dict[int, Job] = field(default_factory=dict)
    tick: int = 0
    cancelled: set[int] = field(default_factory=set)
    retiring: list[int] = field(default_factory=list)
    background_divisor: int = 1
    _background_rests: bool = False
    _moves: list[Move] = field(default_factory=list)
    _room: int = 0
    _arrivals: int = 0

    def __post_init__(self) -> None:
        options = self.options
        assert options.lanes > 0, "nothing can run without a lane"
        self.queues = Queues(starvation_ticks=options.starvation_ticks)
        self.cache = Cache(sequences=options.sequences, pins=Pins(0))
        self.parking = Parking(cache=self.cache, budget=options.park_bytes, lossy=options.park_lossy)
        self.seeding = Seeding(
            cache=self.cache,
            parking=self.parking,
            running=self.running,
            counts=self.counts,
            coalesce_min=options.coalesce_min,
        )
        self.sizing = Sizing(options=options)

    def open(self, pool: Pool) -> None:
        """A worker is ready: this is what it turned out to be."""
        self.cache.pool = pool
        self.cache.pins.budget_tokens = self.cache.cells * self.options.pin_budget_pct // 100

    @property
    def orders(self) -> list[Order]:
        """What is to be done with park files; whoever does it takes them out."""
        return self.parking.orders

    # -- jobs come and go ---------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            TooManyInFlight: The queue is full.
            ContextFull: The prompt is larger than anything that can be handed to a worker.
        """
        if _size(job.prompt) > MAX_ADMITTED_BYTES:
            raise ContextFull(f"a prompt of {len(job.prompt)} tokens is beyond every context")
        if len(self.queues) >= MAX_QUEUED_GENERATIONS:
            raise TooManyInFlight(
                f"{MAX_QUEUED_GENERATIONS} generations are waiting already; try again later"
            )
        self._arrivals += 1
        job.arrival, job.since = self._arrivals, self.tick
        self.queues.push(job)

    def cancel(self, job_id: int) -> Job | None:
        """Give a job up.

        Returns:
            The job if it was still queued, and is simply gone. A running one ends with the tick in flight, which the
            caller may cut short; its last `Update` says ``CANCELLED`` whether or not the worker heard of it in time,
            unless it came to its own end first.
        """
        job = self.queues.remove(job_id)
        if job is not None:
            self.seeding.let_go(job)
        elif job_id in self.running:
            self.cancelled.add(job_id)
        return job

    def drain_queue(self) -> list[Job]:
        """Take all waiting jobs out."""
        jobs = self.queues.clear()
        for job in jobs:
            self.seeding.let_go(job)
        return jobs

    def reclass(self, job_id: int, qos: int) -> None:
        """Change a job's class, wherever it is. Unknown jobs are ignored."""
        job = self.queues.remove(job_id)
        if job is not None:
            job.qos = qos
            self.queues.push(job)
        elif job_id in self.running:
            self.running[job_id].qos = qos

    def joinable(self, qos: int = numbers.Qos.AGENT) -> bool:
        """Whether a job of that class that just came would gain if the tick in flight ended now.

        An urgent one does not wait for a prefill, although that loses rows; the others only end decode rounds.
        """
        free = len(self.running) < self.options.lanes
        if qos <= URGENT:
            return free or self._victim(qos) is not None
        return free and all(job.decoding for job in self.running.values())

    # -- a tick -------------------------------------------------------------------------------------

    def plan(self, now_ms: int = 0) -> Plan | None:
        """The next tick, or None when there is nothing to do.

        The books already show the plan as carried out; `settle` corrects them by what really happened.
        """
        self.cache.pins.expire(now_ms)
        self.cache.forget_pinned()
        self._room = MAX_ADMITTED_BYTES
        self._background_rests = lanes.background_rests(self.tick + 1, self.background_divisor)
        for job in self.running.values():
            job.urgency = job.qos
        self._pause_background()
        self._moves.extend(self.parking.save_wanted())
        self._moves.extend(checkpoints.save(self.cache, self.running.values()))
        admits = list(self._fill_lanes())
        admits.extend(self._take_lanes({admit.job for admit in admits}))
        self._moves.extend(self.cache.relieve(self.options.pressure_high, self.options.pressure_low))
        if not self.running and not self._moves:
            return None
        held = lanes.held_back(self.running.values(), rests=self._background_rests)
        jobs = [job for job in self.running.values() if job.id not in held]
        decoding = any(job.decoding for job in jobs)
        prefill = self.sizing.rows((job for job in jobs if not job.decoding), decoding=decoding)
        # The first token of a reply is shown as soon as it is there, not after a tick's worth of them.
        opens = any(self.running[job].to_prefill == rows for job, rows in prefill)
        self.tick += 1
        moves, self._moves = tuple(self._moves), []
        retired, self.retiring = tuple(self.retiring), []
        return Plan(
            id=self.tick,
            moves=moves,
            admit=tuple(admits),
            prefill=prefill,
            decode_rounds=1 if opens else self.sizing.rounds(jobs, waiting=len(self.queues) > 0),
            retire=retired,
            hold=tuple(sorted(held)),
        )

    def settle(self, result: Result) -> list[Update]:
        """Bring the books in line with what the worker did."""
        self.sizing.learn(result)
        cold = [self.running[line.job] for line in result.jobs if self._to_retry(line)]
        updates = [
            self._settle_job(self.running[line.job], line)
            for line in result.jobs
            if line.job in self.running and not self._to_retry(line)
        ]
        for job in cold:
            self._retry_cold(job)
        for seq, held in result.positions:
            self.cache.lower(seq, held)
        for key, held, size in result.saved:
            self.parking.saved(key, held, size)
        return updates

    def filed(self, ticket: int, *, ok: bool, size: int) -> None:
        """An order about a park file is done, or failed."""
        entry, moves = self.parking.filed(ticket, ok=ok, size=size)
        self._moves.extend(moves)
        waiting = [job for job in self.queues.order(self.tick) if job.fetching == ticket]
        for job in waiting:
            job.fetching = 0
            if entry is not None:
                self.seeding.promise(job, entry)
        if entry is not None:
            entry.promises -= 1  # that of the reading itself
            entry.used = self.tick

    def reset(self) -> list[int]:
        """The worker is gone with all its KV: forget every sequence, and return the jobs that were on lanes."""
        lost = list(self.running)
        self.running.clear()
        self.cancelled.clear()
        self.retiring.clear()
        self._moves.clear()
        self.parking.reset()
        self.cache.lose()
        for job in self.queues.order(self.tick):
            job.fetching = job.promised = job.source = job.behind = 0
        return lost

    # -- from outside, between ticks ----------------------------------------------------------------

    def pin(self, session: int, stream: TokenIds, deadline_ms: int, now_ms: int) -> Granted:
        """Keep a session's KV from being evicted as long as anything else can go. Raises `PinBudget`."""
        self.cache.forget_pinned()
        return self.cache.pins.put(session, stream, deadline_ms, now_ms)

    def drop_host(self, percent: int) -> bool:
        """Give up a share of host memory, for the sake of others. Whether anything goes, with the next plan."""
        self.cache.forget_pinned()
        moves = self.cache.shrink(percent)
        self._moves.extend(moves)
        return bool(moves)

    # -- admission ----------------------------------------------------------------------------------

    def _fill_lanes(self) -> Iterator[Admit]:
        """Jobs for the lanes that are free."""
        if len(self.running) >= self.options.lanes:
            return
        order = self.queues.order(self.tick, background_rests=self._background_rests)
        for job in self._first(order) | self._first(self.queues.urgent(URGENT)):
            if len(self.running) >= self.options.lanes:
                return
            found = self._ready(job)
            if found is not None:
                yield self._admit(job, found)

    def _take_lanes(self, admitted: set[int]) -> Iterator[Admit]:
        """Urgent jobs that found every lane busy: each takes that of the least urgent job. One that was *admitted* to it
        just now has waited so long that it comes first, at least for this tick. A background lane that would do nothing
        in this tick anyway goes to whoever waits."""
        least = numbers.Qos.AGENT if self._background_rests else URGENT
        for job in self._first(self.queues.urgent(least)):
            victim = self._victim(job.qos, admitted)
            if victim is None:
                return
            if self._ready(job) is not None:
                self._preempt(victim)
                admitted.add(job.id)
                # Looked for only now: what the victim held lies idle.
                yield self._admit(job, self.seeding.find(job, near=True))

    def _first(self, queued: Iterable[Job]) -> dict[Job, None]:
        """The first jobs that are worth a search of the prefix index: those that may not run, or wait for another's
        prefill, would hide the others."""
        candidates = (job for job in queued if self._may_run(job) and not self.seeding.waits(job))
        return dict.fromkeys(islice(candidates, EXAMINED_JOBS))

    def _may_run(self, job: Job) -> bool:
        cap = self.options.class_lanes[job.qos]
        return lanes.may_run(job, self.running.values(), cap, self.background_divisor)

    def _ready(self, job: Job) -> Found | None:
        """What is held of a job's prompt, if it can have a lane now."""
        # The first one always fits a plan: it was submitted.
        fits = self._room == MAX_ADMITTED_BYTES or _size(job.prompt) <= self._room
        if not fits or not self._may_run(job):
            return None
        found, moves = self.seeding.ready(job, self.tick)
        self._moves.extend(moves)
        return found

    def _admit(self, job: Job, found: Found) -> Admit:
        self.queues.remove(job.id)
        start, moves = self.seeding.seat(job, found, self.tick)
        self._moves.extend(moves)
        job.urgency = job.qos
        self.running[job.id] = job
        stream = job.stream
        self._room -= _size(stream)
        exact = job.exact or self.cache.pool.exact
        return lanes.admission(job, stream, start, draft=lanes.drafts(self.options.speculate, exact=exact))

    # -- lanes are taken and held back --------------------------------------------------------------

    def _victim(self, qos: int, spared: Collection[int] = ()) -> Job | None:
        if len(self.running) < self.options.lanes:
            return None
        spared = self.cancelled.union(spared)
        return lanes.victim((job for job in self.running.values() if job.id not in spared), qos)

    def _preempt(self, job: Job) -> None:
        """Take a job's lane. Its KV stays where it is, and the job waits at the head of its class to go on."""
        self.counts.preemptions += 1
        self._release(job)
        job.since = self.tick
        self.retiring.append(job.id)
        self.queues.push(job)

    def _pause_background(self) -> None:
        """Background jobs that are paused hold no lane."""
        if self.background_divisor == 0:
            for job in [job for job in self.running.values() if job.qos == numbers.Qos.BACKGROUND]:
                if job.id not in self.cancelled:
                    self._preempt(job)

    # -- how jobs end -------------------------------------------------------------------------------

    def _to_retry(self, line: JobResult) -> bool:
        job = self.running.get(line.job)
        return (
            job is not None
            and line.state is JobState.COLD
            and not job.cold
            and line.job not in self.cancelled
        )

    def _retry_cold(self, job: Job) -> None:
        """What a job was seeded with did not hold what the books said: it goes back to the head of its queue."""
        self.cache.clear(self.cache.slots[job.seq])
        self._release(job)
        source = self.cache.entries.get(job.source) if job.source else None
        if source is not None and not source.promises:
            self._moves.extend(self.cache.drop([source]))
        job.cold = True
        if not job.made:
            job.warm = -1  # nothing of its prompt came from kept KV after all
        self.queues.push(job)

    def _settle_job(self, job: Job, line: JobResult) -> Update:
        tokens = packed(line.tokens)
        job.to_prefill -= line.prefilled
        if job.decoding:
            job.cold = False  # what it goes on from if it loses its lane was all computed for it
        job.made.extend(tokens)
        exact = job.exact or self.cache.pool.exact
        self.cache.grow(self.cache.slots[job.seq], tokens, job.stored, exact=exact)
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
            if self.options.park and job.session and state in PARKED_AFTER:
                self.parking.want(job.session, job.seq)
        return Update(job=job.id, tokens=tokens, state=state, warm=job.warm, detail=line.detail)

    def _release(self, job: Job) -> None:
        del self.running[job.id]
        self.cancelled.discard(job.id)
        slot = self.cache.slots[job.seq]
        slot.job, slot.target, slot.used = None, 0, self.tick


def _size(stream: TokenIds) -> int:
    """Bytes of a stream."""
    return len(stream) * stream.itemsize


__all__ = ["Counts", "Job", "Options", "Pool", "Scheduler", "Update"]
