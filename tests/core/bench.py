"""A scheduler and the fake engine, driven a tick at a time."""

from array import array

from superfluid.core.job import Job
from superfluid.core.options import Options, Pool
from superfluid.core.plan import JobState
from superfluid.core.schedule import Scheduler
from tests.core.builders import PARAMS
from tests.core.fake_engine import FakeEngine, Trouble, expected_reply

LONG = 1000


class Bench:
    def __init__(
        self, *, lanes, kept=2, cuts=True, step_us=10_000, row_us=1_000, n_ctx=1 << 20, host=0, **options
    ):
        self.prompts, self.limits, self.replies, self.ends = {}, {}, {}, {}
        self.options = Options(lanes=lanes, kept=kept, **options)
        self.pool = Pool(n_ctx=n_ctx, bytes_per_token=1, cuts_freely=cuts, host_bytes=host)
        self.scheduler = Scheduler(options=self.options)
        self.scheduler.open(self.pool)
        self.engine = FakeEngine(
            self.options.sequences, self.prompts, pool=self.pool, step_us=step_us, row_us=row_us
        )

    def submit(self, job, prompt, limit=5, **kwargs):
        self.prompts[job], self.limits[job], self.replies[job] = list(prompt), limit, []
        self.scheduler.submit(Job(id=job, prompt=array("I", prompt), params=PARAMS, limit=limit, **kwargs))

    def tick(self, **trouble):
        plan = self.scheduler.plan()
        assert plan is not None
        self.settle(self.engine.run(plan, Trouble(**trouble)))
        return plan

    def settle(self, result):
        updates = self.scheduler.settle(result)
        for update in updates:
            self.replies[update.job].extend(update.tokens)
            if update.state is not JobState.RUNNING:
                assert update.job not in self.ends
                self.ends[update.job] = update
        return updates

    def busy(self):
        return len(self.scheduler.queues) > 0 or bool(self.scheduler.running)

    def drain(self):
        plans = []
        while self.busy():
            plans.append(self.tick())
            assert len(plans) < 5000, "some job never ends"
        return plans

    def run(self, job, prompt, limit=5, **kwargs):
        """Serve one job to its end; its update."""
        self.submit(job, prompt, limit, **kwargs)
        self.drain()
        return self.ends[job]

    def waiting(self):
        """The jobs in the queues, the next one first."""
        return [job.id for job in self.scheduler.queues.order(self.scheduler.tick)]

    def is_whole(self, job):
        return self.replies[job] == expected_reply(self.prompts[job], self.limits[job])

    def stream(self, job):
        return [*self.prompts[job], *self.replies[job]]


def endless(length=3, first=1):
    """A prompt whose reply only its limit or a cancel ends. Another *first*, another prompt."""
    while len(expected_reply([first] * length, LONG)) < LONG:
        first += 1
    return [first] * length


ENDLESS = endless()
