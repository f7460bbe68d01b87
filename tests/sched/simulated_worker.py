"""A worker in memory that carries out plans as the real one does, on the test's clock, and dies when told to.

Its token at stream position p is p, so a test sees at once what was skipped or came twice.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import trio

from superfluid.core.errors import SuperfluidError, WorkerLost
from superfluid.core.plan import Admit, JobResult, JobState, MoveKind, Plan, Result
from superfluid.worker import park
from superfluid.worker.messages import Fetch, Filed, Load, Ready, Seal

N_CTX = 4096
TICK_SECONDS = 0.05


def write_park_file(seal: Seal) -> None:
    """The file that a worker would write, with a state of one byte a position."""
    header = park.Header(
        identity=seal.identity,
        digest=seal.digest,
        positions=seal.positions,
        encoding=park.Encoding.Q8 if seal.lossy else park.Encoding.RAW,
        state_bytes=seal.positions,
        stored_bytes=seal.positions,
    )
    with FileIO(seal.path, "w") as out:
        park.write(out, header, memoryview(bytes(seal.positions)))


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
            settings=workers.settings,
        )
        self.filings: list[Seal | Fetch] = []
        """Seals and fetches that wait for `file`."""
        self.host: dict[int, int] = {}
        """Positions of each entry."""
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

    def seal_nowait(self, request: Seal) -> None:
        # What is dropped meanwhile is written all the same.
        assert self.host.get(request.entry) == request.positions
        self.filings.append(request)
        self._workers.change()

    def fetch_nowait(self, request: Fetch) -> None:
        self.filings.append(request)
        self._workers.change()

    def file(self, *, ok: bool = True) -> Seal | Fetch:
        """Carry out the first of `filings`, with a real file, or fail on it."""
        request = self.filings.pop(0)
        if ok:
            if isinstance(request, Seal):
                write_park_file(request)
            else:
                header = park.read_header(Path(request.path))
                asked = (request.identity, request.digest, request.positions)
                ok = (header.identity, header.digest, header.positions) == asked
                if ok:
                    self.host[request.entry] = request.positions
        self._workers.on_filed(Filed(ticket=request.ticket, ok=ok, size=request.positions, detail="as told"))
        return request

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
        saved = []
        for move in plan.moves:
            match move.kind:
                case MoveKind.SAVE:
                    self.host[move.entry] = move.n
                    saved.append((move.entry, move.n, move.n))
                case MoveKind.DROP:
                    self.host.pop(move.entry, None)
                case MoveKind.LOAD:
                    assert self.host[move.entry] >= move.n
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
            decoding = [
                lane
                for job, lane in self._lanes.items()
                if not lane.to_prefill and not lane.full and job not in plan.hold
            ]
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
            saved=tuple(saved),
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

    `fail_starts` says how coming starts end, `die_at_plans` how many plans kill the worker that gets them, `settings`
    what decides whether the KV of coming ones can be read.
    """

    def __init__(self) -> None:
        self.started_at: list[float] = []
        self.links: list[SimulatedLink] = []
        self.load_seconds = 0.0
        self.fail_starts: list[SuperfluidError] = []
        self.die_at_plans = 0
        self.settings = "none"
        self.changed = trio.Event()

    async def start(
        self, load: Load, *, on_progress: Callable[[float], None], on_filed: Callable[[Filed], None]
    ) -> SimulatedLink:
        self.started_at.append(trio.current_time())
        self.on_filed = on_filed
        on_progress(0.5)
        await trio.sleep(self.load_seconds)
        if self.fail_starts:
            raise self.fail_starts.pop(0)
        self.links.append(SimulatedLink(self, 1000 + len(self.links), load))
        self.change()
        return self.links[-1]

    def change(self) -> None:
        """Let those who wait for a start or for a filing look again."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    @property
    def now(self) -> SimulatedLink:
        return self.links[-1]
