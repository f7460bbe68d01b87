"""Generations between the store and the engine: moments that a client cannot aim at from outside."""

from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.api.generate import Generations
from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.errors import NotSupported, SessionBusy, ShuttingDown
from superfluid.core.schedule import Options
from superfluid.sched import engine as engine_module
from superfluid.sched.engine import Engine
from superfluid.worker.messages import Load
from superfluid_protocol import event, numbers
from tests.daemon import GREEDY
from tests.sched.simulated_worker import N_CTX, SimulatedWorkers
from tests.store.conftest import serving
from tests.store.faulty_files import FaultyFiles

LONG = 3000


class StubModel:
    """A text side for raw sessions: no template, and ids that are no text."""

    async def text(self):
        await trio.lowlevel.checkpoint()
        vocabulary = SimpleNamespace(piece=lambda _token: b"x", eog_ids=frozenset(), special_tokens={})
        return SimpleNamespace(fingerprint=7, vocabulary=vocabulary)


class Exact:
    """What was measured of the model."""

    def __init__(self):
        self.batch_invariant = True

    async def ask(self):
        await trio.lowlevel.checkpoint()
        return self


class Stack:
    """Store, engine and generations, as a daemon puts them together; one session with three tokens."""

    def __init__(self, store, engine, generations, files, session, exact):
        self.store = store
        self.engine = engine
        self.generations = generations
        self.files = files
        self.session = session
        self.exact = exact

    def bodies(self, kind):
        session = tree.get(self.store.state, self.session)
        return [m.body for m in tree.events(self.store.state, session) if isinstance(m.body, kind)]

    async def ended(self, generation):
        while not generation.done:
            await self.generations.wait(generation)
        return generation


@pytest.fixture
async def stack(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "WorkerLink", SimulatedWorkers())
    files = FaultyFiles()
    async with serving(tmp_path, files) as store, trio.open_nursery() as nursery:
        engine = Engine(Load(model_path="/model", n_ctx=N_CTX, n_seq=4), Options(lanes=2, kept=2))
        nursery.start_soon(engine.run)
        exact = Exact()
        generations = Generations(
            store=store, model=StubModel(), engine=engine, exactness=exact.ask, nursery=nursery
        )
        records = await store.submit(None, lambda s: decide.create(s, store.new_id(), None, GREEDY))
        session = records[0].session
        await store.submit(
            session, lambda s: decide.append(s, store.busy, session, None, (0, 1, 2), n_vocab=N_CTX)
        )
        yield Stack(store, engine, generations, files, session, exact)
        files.release()
        generations.cancel_all()
        engine.close()


@pytest.fixture
async def opening(stack):
    """A start whose first record is on its way to the disk and no further; its outcome comes in `started`."""
    while stack.files.entered.acquire(blocking=False):
        pass
    stack.files.hold()
    started = []
    async with trio.open_nursery() as nursery:

        async def start():
            started.append(await stack.generations.start(stack.session, LONG))

        nursery.start_soon(start)
        await trio.to_thread.run_sync(stack.files.entered.acquire)
        yield started
        stack.files.release()


async def test_a_generation_is_busy_from_its_decision_to_its_last_record(stack):
    generation = await stack.generations.start(stack.session, 100)
    with pytest.raises(SessionBusy):
        await stack.generations.start(stack.session, 100)

    await stack.ended(generation)

    assert generation.error is None
    assert generation.finish == numbers.Finish.MAX_TOKENS
    assert sum(len(body.span) for body in stack.bodies(event.Generated)) == 100
    assert stack.session not in stack.store.busy


async def test_a_session_is_busy_while_its_opening_is_written(stack, opening):
    with pytest.raises(SessionBusy):
        await stack.generations.start(stack.session, 100)


async def test_a_cancel_while_the_opening_is_written_is_kept(stack, opening):
    stack.generations.cancel(stack.session)
    stack.files.release()
    while not opening:
        await trio.lowlevel.checkpoint()

    with trio.fail_after(10):
        generation = await stack.ended(opening[0])

    assert generation.finish == numbers.Finish.CANCELLED
    assert sum(len(body.span) for body in stack.bodies(event.Generated)) < LONG


async def test_the_end_of_the_daemon_meets_a_generation_in_its_opening(stack, opening):
    stack.generations.refuse_new()
    stack.generations.cancel_all()
    stack.files.release()

    with trio.fail_after(10):
        await stack.generations.wait_idle()

    assert isinstance(opening[0].error, ShuttingDown)
    with pytest.raises(ShuttingDown):
        await stack.generations.start(stack.session, 5)


async def test_a_generation_that_waits_to_be_decided_is_not_begun_at_the_end(stack):
    other = (await stack.store.submit(None, lambda s: decide.create(s, stack.store.new_id(), None, GREEDY)))[
        0
    ]
    while stack.files.entered.acquire(blocking=False):
        pass
    stack.files.hold()
    async with trio.open_nursery() as nursery:

        async def start():
            with pytest.raises(ShuttingDown):
                await stack.generations.start(stack.session, 5)

        nursery.start_soon(
            stack.store.submit, other.session, lambda s: decide.set_meta(s, other.session, 0, "title", None)
        )
        await trio.to_thread.run_sync(stack.files.entered.acquire)
        nursery.start_soon(start)
        await wait_all_tasks_blocked(0.01)
        stack.generations.refuse_new()
        stack.files.release()

    assert stack.bodies(event.GenerationFingerprint) == []


async def test_a_generation_that_is_abandoned_ends(stack):
    generation = await stack.generations.start(stack.session, LONG)
    stack.generations.abandon(generation)

    with trio.fail_after(10):
        await stack.ended(generation)

    assert generation.finish == numbers.Finish.CANCELLED
    stack.generations.abandon(generation)  # it is nothing any more


async def test_a_caller_that_leaves_before_the_opening_leaves_no_trace(stack):
    before = stack.store.statistics.commands
    with trio.CancelScope() as scope:
        scope.cancel()
        await stack.generations.start(stack.session, 5)

    assert scope.cancelled_caught
    assert stack.session not in stack.store.busy
    assert stack.store.statistics.commands == before
    assert (await stack.ended(await stack.generations.start(stack.session, 5))).tokens_generated == 5


async def test_an_exact_session_is_refused_where_the_model_cannot_be_exact(stack):
    await stack.store.submit(
        stack.session, lambda s: decide.set_qos(s, stack.session, 2, batch_invariant=True)
    )
    stack.exact.batch_invariant = "rows depend on others"

    with pytest.raises(NotSupported, match=r"^exact replies are not supported here: rows depend"):
        await stack.generations.start(stack.session, 5)

    assert stack.session not in stack.store.busy
    stack.exact.batch_invariant = True
    assert (await stack.ended(await stack.generations.start(stack.session, 5))).tokens_generated == 5


async def test_a_generation_is_queued_with_what_its_session_asks_for(stack, monkeypatch):
    jobs = []
    submit = stack.engine.submit
    monkeypatch.setattr(stack.engine, "submit", lambda job, sink: (jobs.append(job), submit(job, sink))[1])
    await stack.store.submit(
        stack.session, lambda s: decide.set_qos(s, stack.session, 1, batch_invariant=True)
    )

    await stack.ended(await stack.generations.start(stack.session, 5))

    (job,) = jobs
    assert (job.qos, job.exact, job.session) == (1, True, stack.session)
    assert job.boundaries == (3,)


async def test_a_new_class_reaches_the_generation_in_flight(stack, monkeypatch):
    taken = []
    monkeypatch.setattr(stack.engine, "reclass", lambda job, qos: taken.append((job, qos)))
    generation = await stack.generations.start(stack.session, LONG)
    await stack.store.submit(
        stack.session, lambda s: decide.set_qos(s, stack.session, 0, batch_invariant=False)
    )

    stack.generations.reclass(stack.session)
    stack.generations.cancel(stack.session)
    await stack.ended(generation)
    stack.generations.reclass(stack.session)  # it has none any more

    assert taken == [(generation.job, 0)]
