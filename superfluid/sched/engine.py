"""The loop that keeps one worker busy: ask the scheduler for a plan, hand it over, settle the result.

It also keeps the worker alive. One that is lost fails the jobs that were on its lanes, each with an error that says
so, and is respawned with back-off; jobs that still waited for a lane wait on.

One that cannot load its model ends the engine if it is the first: the daemon cannot start as configured. Later the same
may pass (memory that whoever took it gives back, a file that is being replaced), so the start is tried again, ever more
rarely, and until it works every job is refused at once with the reason of the last failure.

    loading -> ready -> (lost -> loading)* -> closed
        \\-> failed         \\-> unstartable -> loading
"""

import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog
import trio

from superfluid.core.entry import Place
from superfluid.core.errors import StartError, WorkerLost
from superfluid.core.ids import TokenIds
from superfluid.core.limits import EXACT_DUMMIES
from superfluid.core.plan import FINISHED, JobState, Plan
from superfluid.core.schedule import Job, Options, Pool, Scheduler, Update
from superfluid.sched.parker import Parker
from superfluid.sched.parkfiles import ParkFiles, StreamOf
from superfluid.sched.starts import HEALTHY_SECONDS, Starts
from superfluid.sched.status import Phase, Statistics, Status
from superfluid.worker.link import WorkerLink
from superfluid.worker.memory import available_bytes, host_budget
from superfluid.worker.messages import Filed, Load, Ready
from superfluid.worker.park import Encoding
from superfluid_protocol import numbers

TICKS_A_LINE: Final = 100
"""A debug line tells of every so many ticks: some seconds of work."""

Sink = Callable[[Update], None]

_log = structlog.get_logger(target=__name__)


class Engine:
    """One worker and the scheduler in front of it.

    Args:
        load: What each worker is to load.
        exact: Every job is served exactly.
        invariant: Rows are exact here by themselves, whoever asks for it.
        park: Where finished sessions' KV goes, with ``options.park``.
        now_ms: The time of day, for pins.
    """

    def __init__(
        self,
        load: Load,
        options: Options,
        *,
        exact: bool = False,
        invariant: bool = False,
        park: ParkFiles | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._load = load
        self._exact = exact
        self._invariant = invariant
        self._now_ms = now_ms
        self._scheduler = Scheduler(options=options)
        self._parker = None if park is None else Parker(park, self._scheduler)
        self._sinks: dict[int, Sink] = {}
        self._arrivals: dict[int, float] = {}
        """When each job came that has no token yet."""
        self._link: WorkerLink | None = None
        self._work = trio.lowlevel.ParkingLot()
        self._saved = trio.lowlevel.ParkingLot()
        """Those who wait for KV in host memory."""
        self.status = Status()
        self._starts = Starts(self.status)
        self.statistics = Statistics(self._scheduler)

    def submit(self, job: Job, sink: Sink) -> None:
        """Queue a job; *sink* gets its updates, the last one with a finished state.

        Raises:
            WorkerStartFailed: No worker can be had.
            TooManyInFlight: The queue is full.
        """
        self._starts.check_open()
        job.exact = job.exact or self._exact
        joinable = self._scheduler.joinable(job.qos)
        self._scheduler.submit(job)
        self._sinks[job.id] = sink
        self._arrivals[job.id] = trio.current_time()
        self._work.unpark_all()
        if self._link is not None and joinable:
            self._link.interrupt_nowait()

    def cancel(self, job_id: int) -> None:
        """End a job: at once while it waits, at the worker's next step when it runs. Unknown jobs are ignored."""
        if job_id not in self._sinks:
            return
        queued = self._scheduler.cancel(job_id)
        if queued is not None:
            # One that lost its lane may have begun warm.
            warm = max(queued.warm, 0)
            self._deliver(Update(job=job_id, tokens=array("I"), state=JobState.CANCELLED, warm=warm))
            self._work.unpark_all()  # the engine may be closing, and wait for this one
        elif self._link is not None:
            self._link.cancel_nowait(job_id)

    async def context_size(self) -> int:
        """Positions of one sequence; waits for the first worker.

        Raises:
            WorkerStartFailed: No worker can be had.
        """
        while self.status.n_ctx is None:
            self._starts.check_open()
            await self.status.changed.wait()
        return self.status.n_ctx

    def room(self, *, exact: bool) -> int:
        """Positions that a job can fill, once there is a context: the last rows of an *exact* one are filled up to what
        kernels take, and that needs cells."""
        assert self.status.n_ctx is not None, "nobody waited for the context"
        return self.status.n_ctx - (EXACT_DUMMIES if exact or self._exact else 0)

    def reclass(self, job_id: int, qos: int) -> None:
        """Change the class of a job that waits or runs. Unknown jobs are ignored."""
        self._scheduler.reclass(job_id, qos)
        self._work.unpark_all()

    def set_background_rate(self, divisor: int) -> None:
        """Beside other work, background jobs get rows in every *divisor*-th tick only; 0 pauses them."""
        self._scheduler.background_divisor = divisor
        self._work.unpark_all()

    def pin(self, session: int, stream: TokenIds, deadline_ms: int) -> None:
        """Keep the KV of a session's tokens from being evicted as long as anything else can go.

        Raises:
            PinBudget: They are more than all pins together may hold.
        """
        self._scheduler.pin(session, stream, deadline_ms, self._now_ms())

    async def wait_host_used(self) -> None:
        """Return when KV lies in host memory."""
        while not self._scheduler.cache.host_used:
            await self._saved.park()

    def drop_host(self, percent: int) -> None:
        """Give up a share of host memory, for the sake of other programs."""
        if self._scheduler.drop_host(percent):
            self._work.unpark_all()

    def identify(self, model: str, stream_of: StreamOf) -> None:
        """Say which model this is (the digest of its content), and how to get a session's tokens: with that the park
        files of earlier runs can be told apart."""
        if self._parker is not None:
            self._parker.identify(model, stream_of)

    def where(self, session: int, stream: TokenIds) -> tuple[str, int, int]:
        """Where the KV of *stream* lies, all but the last token of a reply (which was never computed).

        Returns:
            "pool" or "host" when it is in memory, "park" with the positions that the session's file covers and its
            encoding, or "cold".
        """
        need = max(1, len(stream) - 1)
        cache = self._scheduler.cache
        for entry, length in cache.where(stream):
            if entry.place is Place.PARK:
                break
            if length >= need:
                return entry.place.name.lower(), length, 0
        file = cache.parked_file(session, stream)
        if file is None:
            return "cold", 0, 0
        return "park", file.held, Encoding.Q8 if file.lossy else Encoding.RAW

    def gauges(self) -> dict[str, int]:
        """Counts of the moment."""
        scheduler = self._scheduler
        cache, queues = scheduler.cache, scheduler.queues
        cache.pins.expire(self._now_ms())  # nothing else looks at them while there is nothing to do
        return {
            "lanes_active": len(scheduler.running),
            "queue_depth": len(queues),
            **{f"queue_depth_{qos.name.lower()}": queues.depth(qos) for qos in numbers.Qos},
            "pool_tokens": cache.used_cells(),
            "pool_cells": cache.cells,
            "host_bytes": cache.host_used,
            "host_budget": cache.pool.host_bytes,
            "park_bytes": cache.park_used,
            "pins_held": len(cache.pins),
        }

    async def run(self) -> None:
        """Spawn, serve, respawn; returns after `close`.

        Raises:
            StartError: The first worker cannot load the model. Waiting jobs have failed.
        """
        while not self._starts.closed():
            self._change(Phase.LOADING)
            self._starts.begin()
            started, ticks = trio.current_time(), self.statistics.ticks
            _log.debug("starting a worker", respawns=self.statistics.respawns)
            try:
                await self._serve_one()
            except WorkerLost as loss:
                lived = trio.current_time() - started
                self._starts.lost(healthy=self.statistics.ticks > ticks or lived > HEALTHY_SECONDS)
                self._lost(loss)
            except StartError as failure:
                first = self.status.n_ctx is None
                self._change(Phase.FAILED if first else Phase.UNSTARTABLE, reason=str(failure))
                waiting = [job.id for job in self._scheduler.drain_queue()]
                self._fail_jobs(waiting, self._starts.failed(failure))
                if first:
                    raise
            if self._starts.closed():
                break
            await self._starts.pause()
            self.statistics.respawns += 1
        self._change(Phase.CLOSED)

    def configure(self, load: Load, *, exact: bool, invariant: bool) -> None:
        """Say what is to be loaded and how it is served, where that was found out after the engine was made; before
        `run`."""
        self._load, self._exact, self._invariant = load, exact, invariant

    def close(self) -> None:
        """End `run` once no job is left; the caller cancels the jobs it does not want to wait for."""
        self._starts.close()
        if self._parker is not None:
            self._parker.close()
        self._work.unpark_all()
        self._wake()

    async def _serve_one(self) -> None:
        """The life of one worker."""
        link = await WorkerLink.start(self._load, on_progress=self._progress, on_filed=self._filed)
        try:
            await self._serve(link)
        finally:
            await link.aclose()

    async def _serve(self, link: WorkerLink) -> None:
        """Tick after tick, until the engine closes.

        Raises:
            WorkerLost: The worker is gone.
        """
        self._scheduler.open(self._pool(link.ready))
        if self._parker is not None:
            await self._parker.open(self._load, link.ready)
        self._link = link
        self.status.n_ctx, self.status.description = link.ready.n_ctx, link.ready.description
        # A successor gets the same size, whatever memory is free by then: a session that fitted has to fit again.
        self._load = replace(self._load, n_ctx=link.ready.n_ctx)
        self._starts.worked(link.pid)
        self._change(Phase.READY, worker_pid=link.pid)
        try:
            while True:
                plan = self._scheduler.plan(self._now_ms())
                ordered = bool(self._scheduler.orders)
                if ordered:
                    assert self._parker is not None, "nothing is parked without a directory"
                    await self._parker.carry_out(link)
                if plan is not None:
                    self._tell(plan)
                    result = await link.run(plan)
                    self.statistics.count(result)
                    for update in self._scheduler.settle(result):
                        self._deliver(update)
                    if self._scheduler.cache.host_used:
                        self._saved.unpark_all()
                elif ordered:
                    continue  # somebody may have come meanwhile
                elif self._starts.closed() and not self._owes_anything():
                    return
                else:
                    await self._rest(link)
        finally:
            self._link = None

    def _owes_anything(self) -> bool:
        """Whether a job waits, or a park file is being written."""
        return len(self._scheduler.queues) > 0 or self._scheduler.parking.sealing

    def _pool(self, ready: Ready) -> Pool:
        options = self._scheduler.options
        host = options.host_bytes
        if host is None:
            host = host_budget(
                pool_cells=ready.n_ctx * ready.n_seq,
                bytes_per_token=ready.bytes_per_token,
                available=available_bytes(),
                fixed=ready.bytes_per_sequence * ready.n_seq,
            )
        return Pool(
            n_ctx=ready.n_ctx,
            bytes_per_token=ready.bytes_per_token,
            bytes_per_sequence=ready.bytes_per_sequence,
            cuts_freely=ready.cuts == "free",
            exact=self._exact or self._invariant,
            host_bytes=host,
        )

    def _filed(self, answer: Filed) -> None:
        if self._parker is not None:
            self._parker.filed(answer)
        self._work.unpark_all()

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
        _log.error("worker lost", reason=str(loss), jobs=len(jobs), waiting=len(self._scheduler.queues))
        self._change(Phase.LOST, reason=str(loss))
        detail = f"the worker was lost ({loss}); what it made is recorded, generate again to continue"
        self._fail_jobs(jobs, detail)

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
                waiting=len(self._scheduler.queues),
            )

    def _fail_jobs(self, jobs: list[int], detail: str) -> None:
        for job in jobs:
            self._deliver(Update(job=job, tokens=array("I"), state=JobState.ERROR, warm=0, detail=detail))

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
