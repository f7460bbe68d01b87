"""The loop that keeps one worker busy: ask the scheduler for a plan, hand it over, settle the result.

It also keeps the worker alive. One that is lost fails the jobs that were on its lanes, each with an error that says
so, and is respawned with back-off; jobs that still waited for a lane wait on.

One that cannot load its model ends the engine if it is the first: the daemon cannot start as configured. Later the same
may pass (memory that whoever took it gives back, a file that is being replaced), so the start is tried again, ever more
rarely, and until it works every job is refused at once with the reason of the last failure.

    loading -> ready -> (lost -> loading)* -> closed
        \\-> failed         \\-> unstartable -> loading
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import structlog
import trio

from superfluid.core.errors import ShuttingDown, StartError, WorkerLost, WorkerStartFailed
from superfluid.core.ids import TokenIds, common_prefix
from superfluid.core.plan import FINISHED, JobState, Plan
from superfluid.core.schedule import Job, Scheduler, Update
from superfluid.sched.histogram import Histogram
from superfluid.worker.link import WorkerLink
from superfluid.worker.messages import Load

RESPAWN_FIRST_SECONDS: Final = 0.1
RESPAWN_MOST_SECONDS: Final = 10.0
"""Back-off between respawns: the first is at once for a client, and a worker that dies at every start does not keep
two cores busy with loading. One that carried out a plan starts the back-off anew: what killed it was no fault of
the start, and a job that kills its worker costs one respawn each time somebody asks for it."""

UNSTARTABLE_MOST_SECONDS: Final = 60.0
"""Back-off between starts that fail for a reason of their own, which costs the loading of a model each time. Somebody who
asks meanwhile shortens it to ``RESPAWN_MOST_SECONDS``."""

HEALTHY_SECONDS: Final = 30.0
"""A worker that lived this long, without anything to do, starts the back-off anew too."""

TTFT_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds to the first token that are told apart: from a warm session to a long prompt behind a queue."""

TICKS_A_LINE: Final = 100
"""A debug line tells of every so many ticks: some seconds of work."""

Sink = Callable[[Update], None]

_log = structlog.get_logger(target=__name__)


@dataclass(slots=True)
class Statistics:
    """Counts since the start."""

    ticks: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    warm_prefix_tokens: int = 0
    respawns: int = 0
    worker_losses: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    """Seconds from a job's arrival to its first token."""


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
    changed: trio.Event = field(default_factory=trio.Event)


class Engine:
    """One worker and the scheduler in front of it.

    Args:
        load: What each worker is to load.
        lanes: Most jobs that decode together; the rest of the pool's sequences keep KV.
    """

    def __init__(self, load: Load, *, lanes: int) -> None:
        self._load = load
        self._lanes = lanes
        self._scheduler = Scheduler(lanes=lanes, sequences=load.n_seq)
        self._sinks: dict[int, Sink] = {}
        self._arrivals: dict[int, float] = {}
        """When each job came that has no token yet."""
        self._refusal: StartError | None = None
        """Why the last start failed; None once one worked, or was lost on the way."""
        self._wanted = trio.Event()
        """Somebody asked for what was refused."""
        self._link: WorkerLink | None = None
        self._work = trio.lowlevel.ParkingLot()
        self._closed = trio.Event()
        self.status = Status()
        self.statistics = Statistics()

    def submit(self, job: Job, sink: Sink) -> None:
        """Queue a job; *sink* gets its updates, the last one with a finished state.

        Raises:
            WorkerStartFailed: No worker can be had.
            TooManyInFlight: The queue is full.
        """
        self._check_open()
        self._scheduler.submit(job)
        self._sinks[job.id] = sink
        self._arrivals[job.id] = trio.current_time()
        self._work.unpark_all()
        if self._link is not None and self._scheduler.joinable():
            self._link.interrupt_nowait()

    def cancel(self, job_id: int) -> None:
        """End a job: at once while it waits, at the worker's next step when it runs. Unknown jobs are ignored."""
        if job_id not in self._sinks:
            return
        if self._scheduler.cancel(job_id):
            self._deliver(Update(job=job_id, tokens=array("I"), state=JobState.CANCELLED, warm=0))
        elif self._link is not None:
            self._link.cancel_nowait(job_id)

    async def context_size(self) -> int:
        """Positions of one sequence; waits for the first worker.

        Raises:
            WorkerStartFailed: No worker can be had.
        """
        while self.status.n_ctx is None:
            self._check_open()
            await self.status.changed.wait()
        return self.status.n_ctx

    def holds(self, stream: TokenIds) -> bool:
        """Whether the pool holds *stream*, all but the last token of a reply (which was never computed)."""
        need = max(1, len(stream) - 1)
        return any(
            slot.held >= need and common_prefix(slot.stream, stream, need) == need
            for slot in self._scheduler.slots
        )

    def gauges(self) -> dict[str, int]:
        """Counts of the moment."""
        slots = self._scheduler.slots
        return {
            "lanes_active": len(self._scheduler.running),
            "queue_depth": len(self._scheduler.queue),
            "pool_tokens": sum(slot.held for slot in slots),
            "pool_cells": len(slots) * (self.status.n_ctx or 0),
        }

    async def run(self) -> None:
        """Spawn, serve, respawn; returns after `close`.

        Raises:
            StartError: The first worker cannot load the model. Waiting jobs have failed.
        """
        delay = RESPAWN_FIRST_SECONDS
        while not self._closed.is_set():
            self._change(Phase.LOADING)
            self._wanted = trio.Event()
            started, ticks = trio.current_time(), self.statistics.ticks
            _log.debug("starting a worker", respawns=self.statistics.respawns)
            try:
                await self._serve_one()
            except WorkerLost as loss:
                self._lost(loss)
                if self.statistics.ticks > ticks or trio.current_time() - started > HEALTHY_SECONDS:
                    delay = RESPAWN_FIRST_SECONDS
            except StartError as failure:
                if self.status.n_ctx is None:
                    self._change(Phase.FAILED, reason=str(failure))
                    self._refuse(failure)
                    raise
                self._change(Phase.UNSTARTABLE, reason=str(failure))
                self._refuse(failure)
            if self._closed.is_set():
                break
            # Jobs wait for the successor of a lost worker, so what failing starts made of the pause is not for them.
            delay = min(delay, RESPAWN_MOST_SECONDS if self._refusal is None else UNSTARTABLE_MOST_SECONDS)
            await self._pause(delay)
            delay *= 2
            self.statistics.respawns += 1
        self._change(Phase.CLOSED)

    def close(self) -> None:
        """End `run` once no job is left; the caller cancels the jobs it does not want to wait for."""
        self._closed.set()
        self._wanted.set()
        self._work.unpark_all()
        self._wake()

    async def _serve_one(self) -> None:
        """The life of one worker."""
        link = await WorkerLink.start(self._load, on_progress=self._progress)
        try:
            await self._serve(link)
        finally:
            await link.aclose()

    async def _pause(self, seconds: float) -> None:
        """Wait before the next start, at most *seconds*."""
        with trio.move_on_after(min(seconds, RESPAWN_MOST_SECONDS)):
            await self._closed.wait()
        if seconds > RESPAWN_MOST_SECONDS:
            with trio.move_on_after(seconds - RESPAWN_MOST_SECONDS):
                await self._wanted.wait()

    async def _serve(self, link: WorkerLink) -> None:
        """Tick after tick, until the engine closes.

        Raises:
            WorkerLost: The worker is gone.
        """
        self._link = link
        self.status.n_ctx = link.ready.n_ctx
        # A successor gets the same size, whatever memory is free by then: a session that fitted has to fit again.
        self._load = replace(self._load, n_ctx=link.ready.n_ctx)
        if self._refusal is not None:
            _log.info("a worker could be started again", worker=link.pid)
            self._refusal = None
        self._change(Phase.READY, worker_pid=link.pid)
        try:
            while True:
                plan = self._scheduler.plan()
                if plan is not None:
                    self._tell(plan)
                    result = await link.run(plan)
                    self.statistics.ticks += 1
                    self.statistics.prefill_tokens += result.prefill_rows
                    self.statistics.decode_tokens += result.decode_rows
                    for update in self._scheduler.settle(result):
                        self._deliver(update)
                elif self._closed.is_set():
                    return
                else:
                    await self._rest(link)
        finally:
            self._link = None

    async def _rest(self, link: WorkerLink) -> None:
        """Wait for work, and notice a worker that dies meanwhile: its next job should not be the one to find out."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await link.wait_lost()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self._work.park()
            nursery.cancel_scope.cancel()
        if link.lost is not None:
            raise WorkerLost(link.lost)

    def _deliver(self, update: Update) -> None:
        finished = update.state in FINISHED
        sink = self._sinks.pop(update.job, None) if finished else self._sinks.get(update.job)
        arrived = self._arrivals.pop(update.job, None) if finished or update.tokens else None
        if arrived is not None and update.tokens:
            self.statistics.ttft.observe(trio.current_time() - arrived)
        if finished:
            self.statistics.warm_prefix_tokens += max(update.warm, 0)
        if sink is not None:
            sink(update)

    def _lost(self, loss: WorkerLost) -> None:
        self.statistics.worker_losses += 1
        jobs = self._scheduler.reset()
        _log.error("worker lost", reason=str(loss), jobs=len(jobs), waiting=len(self._scheduler.queue))
        self._change(Phase.LOST, reason=str(loss))
        # What the start fails for, if it still does, is for the next one to say; until then jobs wait.
        self._refusal = None
        detail = f"the worker was lost ({loss}); what it made is recorded, generate again to continue"
        self._fail_jobs(jobs, detail)

    def _refuse(self, failure: StartError) -> None:
        """Fail what waits, and what comes until a worker could be started."""
        if self._refusal is None or str(self._refusal) != str(failure):
            _log.error("no worker can be started", reason=str(failure))
        self._refusal = failure
        waiting = list(self._scheduler.queue)
        self._scheduler.queue.clear()
        self._fail_jobs(waiting, self._why_refused())

    def _tell(self, plan: Plan) -> None:
        """Debug lines: whom a plan admits, and now and then how large one is."""
        for admit in plan.admit:
            _log.debug(
                "admitted",
                job=admit.job,
                sequence=admit.seq,
                warm=admit.start,
                cold=len(admit.tokens) // 4,
                limit=admit.limit,
            )
        if self.statistics.ticks % TICKS_A_LINE == 0:
            _log.debug(
                "tick",
                plan=plan.id,
                moves=len(plan.moves),
                prefill_rows=sum(rows for _job, rows in plan.prefill),
                decode_rounds=plan.decode_rounds,
                lanes=len(self._scheduler.running),
                waiting=len(self._scheduler.queue),
            )

    def _fail_jobs(self, jobs: list[int], detail: str) -> None:
        for job in jobs:
            self._deliver(Update(job=job, tokens=array("I"), state=JobState.ERROR, warm=0, detail=detail))

    def _check_open(self) -> None:
        if self._refusal is not None:
            self._wanted.set()
            kind = self._refusal.kind if isinstance(self._refusal, WorkerStartFailed) else "engine"
            raise WorkerStartFailed(kind, self._why_refused()) from self._refusal
        if self._closed.is_set():
            raise ShuttingDown("the daemon is ending; try again after its restart")

    def _why_refused(self) -> str:
        if self.status.n_ctx is None:
            return str(self._refusal)
        return f"no worker can be started now: {self._refusal}; it is tried again by itself"

    def _progress(self, fraction: float) -> None:
        self.status.fraction = fraction
        self._change(Phase.LOADING, fraction=fraction)

    def _change(
        self, phase: Phase, *, reason: str = "", worker_pid: int | None = None, fraction: float = 0.0
    ) -> None:
        status = self.status
        status.phase, status.reason, status.worker_pid, status.fraction = phase, reason, worker_pid, fraction
        self._wake()

    def _wake(self) -> None:
        """Let those who wait for a change look again."""
        changed, self.status.changed = self.status.changed, trio.Event()
        changed.set()
