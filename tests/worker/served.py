"""The scheduler over the real engine in this process: jobs are served as a daemon serves them, without a link between."""

from array import array
from contextlib import closing, contextmanager
from dataclasses import replace

from superfluid.core.job import Job
from superfluid.core.options import Options, Pool
from superfluid.core.plan import JobState
from superfluid.core.schedule import Scheduler
from superfluid.worker.engine import Engine
from tests.daemon import GREEDY
from tests.worker.builders import load


class Served:
    """One engine and its scheduler.

    Attributes:
        rows: Prompt rows that were computed so far.
        ends: The last update of each job that is over.
    """

    def __init__(self, engine, options, *, host):
        ready = engine.ready
        self.engine = engine
        self.scheduler = Scheduler(options=options)
        self.scheduler.open(
            Pool(
                n_ctx=ready.n_ctx,
                bytes_per_token=ready.bytes_per_token,
                bytes_per_sequence=ready.bytes_per_sequence,
                cuts_freely=ready.cuts == "free",
                host_bytes=host,
            )
        )
        self.rows = 0
        self.replies, self.ends = {}, {}

    def submit(self, number, prompt, *, limit=5, params=None, **kwargs):
        params = GREEDY if params is None else replace(GREEDY, **params)
        self.replies[number] = []
        job = Job(id=number, prompt=array("I", prompt), params=params, limit=limit, **kwargs)
        self.scheduler.submit(job)

    def drain(self):
        while (plan := self.scheduler.plan()) is not None:
            result = self.engine.run(plan)
            self.rows += result.prefill_rows
            for update in self.scheduler.settle(result):
                self.replies[update.job].extend(update.tokens)
                if update.state is not JobState.RUNNING:
                    self.ends[update.job] = update

    def ask(self, number, prompt, **kwargs):
        """Serve one job to its end; its reply and how many tokens of its prompt were warm."""
        self.submit(number, prompt, **kwargs)
        self.drain()
        return self.replies[number], self.ends[number].warm


@contextmanager
def serving(model, *, lanes=1, kept=0, host=1 << 30, **options):
    """Serve a model with so many lanes and kept sequences."""
    settings = Options(lanes=lanes, kept=kept, **options)
    with closing(Engine.open(load(model, n_seq=settings.sequences))) as engine:
        yield Served(engine, settings, host=host)
