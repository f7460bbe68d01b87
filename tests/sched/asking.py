"""An engine that runs, and jobs that note what becomes of them."""

from array import array
from contextlib import asynccontextmanager

import trio

from superfluid.core.plan import FINISHED
from superfluid.core.schedule import Job
from tests.daemon import GREEDY


@asynccontextmanager
async def running(engine):
    """The engine runs inside, and is closed behind."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        try:
            yield
        except BaseException:
            nursery.cancel_scope.cancel()
            raise
        engine.close()


class Asked:
    """A job, and what became of it."""

    def __init__(self, engine, number, *, prompt=10, limit=100, qos=2):
        self.prompt = prompt
        self.updates = []
        self.begun, self.ended = trio.Event(), trio.Event()
        job = Job(id=number, prompt=array("I", range(prompt)), params=GREEDY, limit=limit, qos=qos)
        engine.submit(job, self.take)

    def take(self, update):
        assert not self.ended.is_set(), "nothing comes after the last update"
        self.updates.append(update)
        if update.tokens:
            self.begun.set()
        if update.state in FINISHED:
            self.ended.set()

    @property
    def tokens(self):
        return [token for update in self.updates for token in update.tokens]

    @property
    def state(self):
        return self.updates[-1].state

    async def wait(self):
        await self.ended.wait()
        return self

    async def wait_first(self):
        await self.begun.wait()
