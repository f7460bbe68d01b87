"""How long a session may get before it is refused: what the engine has room for, which is less for exact replies."""

from types import SimpleNamespace

import pytest
import trio

from superfluid.api.generate import Generations
from superfluid.core import session as decide
from superfluid.core.errors import ContextFull
from superfluid.core.plan import JobState
from superfluid.core.schedule import Update
from tests.chat.fake_vocabulary import FakeVocabulary
from tests.daemon import GREEDY
from tests.store.conftest import serving

CONTEXT = 20
PADDING = 7


class NotedEngine:
    """Ends each job at once."""

    def __init__(self):
        self.jobs = []

    async def context_size(self):
        return CONTEXT

    def room(self, *, exact):
        return CONTEXT - PADDING if exact else CONTEXT

    def submit(self, job, sink):
        self.jobs.append(job)
        sink(Update(job=job.id, tokens=job.made, state=JobState.LIMIT, warm=0))

    def cancel(self, job):
        raise AssertionError(job)


class Model:
    async def text(self):
        return SimpleNamespace(vocabulary=FakeVocabulary(), fingerprint=7)


async def exactness():
    return SimpleNamespace(batch_invariant=True)


@pytest.fixture
async def stack(tmp_path):
    async with serving(tmp_path) as store, trio.open_nursery() as nursery:
        engine = NotedEngine()
        generations = Generations(
            store=store, model=Model(), engine=engine, exactness=exactness, nursery=nursery
        )
        yield SimpleNamespace(store=store, engine=engine, generations=generations)


async def session_of(store, tokens, *, exact):
    records = await store.submit(None, lambda s: decide.create(s, store.new_id(), None, GREEDY))
    session, span = records[0].session, tuple(range(tokens))
    await store.submit(session, lambda s: decide.append(s, store.busy, session, None, span, n_vocab=99))
    await store.submit(session, lambda s: decide.set_qos(s, session, 2, batch_invariant=exact))
    return session


@pytest.mark.parametrize(("exact", "room"), [(False, CONTEXT), (True, CONTEXT - PADDING)])
async def test_the_last_token_that_fits_is_generated_and_no_more(stack, exact, room):
    session = await session_of(stack.store, room - 1, exact=exact)

    await stack.generations.start(session, 5)

    (job,) = stack.engine.jobs
    assert (job.exact, job.limit) == (exact, 1)


@pytest.mark.parametrize(("exact", "room"), [(False, CONTEXT), (True, CONTEXT - PADDING)])
async def test_a_session_without_room_for_a_token_is_refused(stack, exact, room):
    session = await session_of(stack.store, room, exact=exact)

    with pytest.raises(ContextFull, match=f"fills the context of {room} tokens"):
        await stack.generations.start(session, 5)
    assert stack.engine.jobs == []
