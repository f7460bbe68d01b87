"""Arrivals over time, served by the scheduler and the fake engine on a clock of their own.

What costs time costs it here as it was measured on two cores with a small model: a prompt row, a decode step, a copied
position, and each tick by itself. A job that comes may end the tick in flight, as the daemon's loop does it, and a
prefill that is cut short has lost its rows.
"""

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

from superfluid.core.job import Job
from superfluid.core.options import Options, Pool
from superfluid.core.plan import FINISHED, JobState
from superfluid.core.schedule import Scheduler
from tests.core.builders import PARAMS
from tests.core.fake_engine import FakeEngine, Trouble, expected_reply

ROW_US = 7_000
STEP_US = 14_000
TICK_US = 2_000
SECOND = 1_000_000


@dataclass
class Request:
    """A job that will come, and what became of it."""

    at_us: int
    prompt: list[int]
    limit: int = 20
    qos: int = 2
    exact: bool = False
    cancel_us: int | None = None
    updates: list = field(default_factory=list)
    came: list[tuple[int, int]] = field(default_factory=list)
    """When how many tokens came."""
    end: JobState | None = None
    end_us: int = 0
    lost: bool = False

    @property
    def tokens(self):
        return [token for update in self.updates for token in update.tokens]

    @property
    def first_us(self):
        """From its arrival to its first token."""
        return self.came[0][0] - self.at_us

    @property
    def longest_pause_us(self):
        times = [at for at, _ in self.came]
        return max((b - a for a, b in pairwise(times)), default=0)

    def is_whole(self):
        return self.tokens == expected_reply(self.prompt, self.limit)


class Simulation:
    """Args: `requests` by their numbers from 1 on, in the order in which they come."""

    def __init__(
        self, requests, *, n_ctx=8192, host=1 << 30, cuts=True, divisor=1, lose_at_us=None, **options
    ):
        self.requests = dict(enumerate(requests, 1))
        self.options = Options(**options)
        self.pool = Pool(n_ctx=n_ctx, bytes_per_token=1, host_bytes=host, cuts_freely=cuts)
        self.scheduler = Scheduler(options=self.options)
        self.scheduler.background_divisor = divisor
        self.history = []
        """What was done to the scheduler, for `replayed`."""
        self.plans = []
        self.lose_at_us = lose_at_us
        self._prompts = {number: request.prompt for number, request in self.requests.items()}
        self._coming = sorted(self.requests, key=lambda n: (self.requests[n].at_us, n))
        self._leaving = sorted(
            (request.cancel_us, number)
            for number, request in self.requests.items()
            if request.cancel_us is not None
        )
        self.engine = self._spawn()

    def _spawn(self, clock_us=0):
        self.scheduler.open(self.pool)
        engine = FakeEngine(
            self.options.sequences, self._prompts, pool=self.pool, row_us=ROW_US, step_us=STEP_US
        )
        engine.clock_us = clock_us
        return engine

    def come(self, number, request):
        """One more request, after all others."""
        self.requests[number], self._prompts[number] = request, request.prompt
        self._coming.append(number)

    def job(self, number):
        request = self.requests[number]
        return Job(
            id=number,
            prompt=array("I", request.prompt),
            params=PARAMS,
            limit=request.limit,
            qos=request.qos,
            exact=request.exact,
        )

    def run(self):
        while True:
            self._arrive()
            plan = self.scheduler.plan()
            self.history.append(("plan", None))
            if plan is None:
                assert not len(self.scheduler.queues), "somebody waits for nothing"
                if not self._coming:
                    return self
                self.engine.clock_us = self.requests[self._coming[0]].at_us
                continue
            self._check(plan)
            self.plans.append(plan)
            self.engine.clock_us += TICK_US
            trouble = Trouble(
                on_step=self._arrive, loses_rows=True, cancel=dict.fromkeys(self.scheduler.cancelled, 1)
            )
            self._trouble = trouble
            result = self.engine.run(plan, trouble)
            if self.lose_at_us is not None and self.engine.clock_us >= self.lose_at_us:
                self._lose()
                continue
            self.history.append(("settle", result))
            for update in self.scheduler.settle(result):
                self._take(update)

    def _arrive(self):
        """Whether somebody came for whom the tick in flight ends."""
        now, joins = self.engine.clock_us, False
        while self._coming and self.requests[self._coming[0]].at_us <= now:
            number = self._coming.pop(0)
            joins |= self.scheduler.joinable(self.requests[number].qos)
            self.scheduler.submit(self.job(number))
            self.history.append(("submit", number))
        while self._leaving and self._leaving[0][0] <= now:
            number = self._leaving.pop(0)[1]
            if self.requests[number].end is None and self.scheduler.cancel(number):
                self.requests[number].end = JobState.CANCELLED
            else:
                self._trouble.cancel[number] = 0
            self.history.append(("cancel", number))
        return joins

    def _check(self, plan):
        for number in self.scheduler.running:
            caps = self.options.class_lanes
            qos = self.requests[number].qos
            running = [n for n in self.scheduler.running if self.requests[n].qos == qos]
            assert not caps[qos] or len(running) <= caps[qos]
        assert len(self.scheduler.running) <= self.options.lanes

    def _take(self, update):
        request = self.requests[update.job]
        assert request.end is None, "nothing comes behind the end"
        request.updates.append(update)
        if update.tokens:
            request.came.append((self.engine.clock_us, len(update.tokens)))
        if update.state in FINISHED:
            request.end, request.end_us = update.state, self.engine.clock_us

    def _lose(self):
        self.lose_at_us = None
        self.history.append(("reset", None))
        for number in self.scheduler.reset():
            self.requests[number].end, self.requests[number].lost = JobState.ERROR, True
        self.engine = self._spawn(self.engine.clock_us)

    def replayed(self):
        """The plans that a fresh scheduler makes of the same history."""
        scheduler, plans = Scheduler(options=self.options), []
        scheduler.background_divisor = self.scheduler.background_divisor
        scheduler.open(self.pool)
        for call, argument in self.history:
            match call:
                case "submit":
                    scheduler.submit(self.job(argument))
                case "cancel":
                    scheduler.cancel(argument)
                case "plan":
                    plan = scheduler.plan()
                    plans += [] if plan is None else [plan]
                case "settle":
                    scheduler.settle(argument)
                case "reset":
                    scheduler.reset()
        return plans
