"""A worker in memory that carries out plans as the real one does, on the test's clock, and dies when told to.

Its token at stream position p is p, so a test sees at once what was skipped or came twice.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from superfluid.core.errors import SuperfluidError, WorkerLost
from superfluid.core.plan import Admit, JobResult, JobState, Plan, Result
from superfluid.worker.messages import Load, Ready

N_CTX = 4096
TICK_SECONDS = 0.05


@dataclass(slots=True)
class _Lane:
    admit: Admit
    to_prefill: int
    position: int
    generated: int = 0
    new: array = field(default_factory=lambda: array("I"))

    def sample(self) -> None:
        self.new.append(self.position)
        self.position += 1
        self.generated += 1

    @property
    def full(self) -> bool:
        return self.generated >= self.admit.limit


class SimulatedLink:
    """Stands for `WorkerLink`."""

    def __init__(self, workers: "SimulatedWorkers", pid: int, load: Load) -> None:
        self.pid = pid
        self._workers = workers
        self.lost: str | None = None
        self.closed = False
        self.plans: list[Plan] = []
        self.ready = Ready(
            n_vocab=N_CTX,
            n_ctx=N_CTX,
            n_ctx_train=N_CTX,
            n_seq=load.n_seq,
            bytes_per_token=1,
            description="simulated",
            library="none",
            threads=1,
            cuts="free",
            settings="none",
        )
        self._lanes: dict[int, _Lane] = {}
        self._cancelled: set[int] = set()
        self._died = trio.Event()
        self._woken = trio.Event()
        self.interrupts = 0

    def die(self, reason: str = "was killed by SIGKILL") -> None:
        self.lost = f"the worker {reason}"
        self._died.set()
        self._woken.set()

    async def run(self, plan: Plan) -> Result:
        self.plans.append(plan)
        self._woken = trio.Event()
        if self._workers.die_at_plans:
            self._workers.die_at_plans -= 1
            self.die()
        if self.lost is None:
            with trio.move_on_after(TICK_SECONDS):
                await self._woken.wait()
        if self.lost is not None:
            raise WorkerLost(self.lost)
        return self._carry_out(plan)

    def interrupt_nowait(self) -> None:
        self.interrupts += 1
        self._woken.set()

    def cancel_nowait(self, job: int) -> None:
        self._cancelled.add(job)

    async def wait_lost(self) -> str:
        await self._died.wait()
        assert self.lost is not None
        return self.lost

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()

    def _carry_out(self, plan: Plan) -> Result:
        for job in plan.retire:
            self._lanes.pop(job, None)
        for admit in plan.admit:
            rows = len(admit.tokens) // 4
            self._lanes[admit.job] = _Lane(admit, rows, admit.start + rows)
        prefilled = dict.fromkeys(self._lanes, 0)
        for job, rows in plan.prefill:
            lane = self._lanes[job]
            prefilled[job] = min(rows, lane.to_prefill)
            lane.to_prefill -= prefilled[job]
            if lane.to_prefill == 0:
                lane.sample()
        steps = 0
        for _ in range(plan.decode_rounds):
            decoding = [lane for lane in self._lanes.values() if not lane.to_prefill and not lane.full]
            steps += bool(decoding)
            for lane in decoding:
                lane.sample()
        jobs = tuple(self._settle(job, lane, prefilled[job]) for job, lane in list(self._lanes.items()))
        return Result(
            plan_id=plan.id,
            jobs=jobs,
            positions=(),
            prefill_rows=sum(prefilled.values()),
            prefill_us=sum(prefilled.values()),
            decode_steps=steps,
            decode_us=steps * 10_000,
        )

    def _settle(self, job: int, lane: _Lane, prefilled: int) -> JobResult:
        tokens, lane.new = lane.new.tobytes(), array("I")
        state = JobState.RUNNING
        if job in self._cancelled:
            state = JobState.CANCELLED
        elif lane.full:
            state = JobState.LIMIT
        if state is not JobState.RUNNING:
            del self._lanes[job]
        return JobResult(job=job, prefilled=prefilled, tokens=tokens, state=state)


class SimulatedWorkers:
    """Starts links in the place of `WorkerLink`.

    `fail_starts` says how coming starts end, `die_at_plans` how many plans kill the worker that gets them.
    """

    def __init__(self) -> None:
        self.started_at: list[float] = []
        self.links: list[SimulatedLink] = []
        self.load_seconds = 0.0
        self.fail_starts: list[SuperfluidError] = []
        self.die_at_plans = 0

    async def start(self, load: Load, *, on_progress: Callable[[float], None]) -> SimulatedLink:
        self.started_at.append(trio.current_time())
        on_progress(0.5)
        await trio.sleep(self.load_seconds)
        if self.fail_starts:
            raise self.fail_starts.pop(0)
        self.links.append(SimulatedLink(self, 1000 + len(self.links), load))
        return self.links[-1]

    @property
    def now(self) -> SimulatedLink:
        return self.links[-1]
