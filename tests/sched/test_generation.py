"""From a tick's tokens to the log: one record a tick, fewer when the disk is slow, and none lost."""

from array import array

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.errors import LogUnknown, WorkerLost
from superfluid.core.plan import JobState
from superfluid.core.schedule import Update
from superfluid.sched.generation import Generation, record_reply
from superfluid_protocol import event, numbers
from tests.daemon import GREEDY
from tests.store.conftest import serving
from tests.store.faulty_files import FaultyFiles


class Spelling:
    """A detokenizer that spells ids; half of a letter waits for the other half, as bytes of an emoji do."""

    def __init__(self):
        self.held = ""

    def feed(self, ids):
        text, self.held = self.held + "".join(f"<{token}>" for token in ids), ""
        if text.endswith("<99>"):
            text, self.held = text.removesuffix("<99>"), "<99>"
        return text

    def finish(self):
        text, self.held = self.held, ""
        return text


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
async def store(tmp_path, files):
    async with serving(tmp_path, files) as store:
        yield store


@pytest.fixture
async def generation(store):
    records = await store.submit(None, lambda s: decide.create(s, store.new_id(), None, GREEDY))
    return Generation(session=records[0].session, job=1, request_id="1-1", first_event=1, prompt_tokens=3)


def tick(*tokens, state=JobState.RUNNING, detail=""):
    return Update(job=1, tokens=array("I", tokens), state=state, warm=2, detail=detail)


def replies(store, generation):
    session = tree.get(store.state, generation.session)
    return [m.body for m in tree.events(store.state, session) if isinstance(m.body, event.Generated)]


async def test_each_tick_is_one_record(store, generation):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record_reply, generation, store, Spelling())
        for number in range(3):
            generation.deliver(tick(number))
            while len(generation.records) <= number:
                await store.wait_for_change(generation.session)
                await wait_all_tasks_blocked()  # who wrote it has heard of it, too
        generation.deliver(tick(3, state=JobState.END))

    bodies = replies(store, generation)
    assert [body.span for body in bodies] == [(0,), (1,), (2,), (3,)]
    assert [body.finish for body in bodies] == [0, 0, 0, numbers.Finish.END_OF_TURN]
    assert [body.text for body in bodies] == ["<0>", "<1>", "<2>", "<3>"]
    assert [record.body for record in generation.records] == bodies
    assert (generation.tokens_generated, generation.warm, generation.finish) == (4, 2, 1)


async def test_ticks_that_a_slow_disk_keeps_waiting_go_into_one_record(store, generation, files):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record_reply, generation, store, Spelling())
        while files.entered.acquire(blocking=False):
            pass
        files.hold()
        generation.deliver(tick(0))
        await trio.to_thread.run_sync(files.entered.acquire)
        for number in range(1, 50):
            generation.deliver(tick(number))
        generation.deliver(tick(50, state=JobState.LIMIT))
        files.release()

    assert [body.span for body in replies(store, generation)] == [(0,), tuple(range(1, 51))]
    assert generation.finish == numbers.Finish.MAX_TOKENS


@pytest.mark.parametrize(
    ("state", "finish"),
    [
        (JobState.END, numbers.Finish.END_OF_TURN),
        (JobState.LIMIT, numbers.Finish.MAX_TOKENS),
        (JobState.CONTEXT_FULL, numbers.Finish.MAX_TOKENS),
        (JobState.CANCELLED, numbers.Finish.CANCELLED),
    ],
)
async def test_each_proper_end_has_its_finish(store, generation, state, finish):
    generation.deliver(tick(7, state=state))

    await record_reply(generation, store, Spelling())

    (body,) = replies(store, generation)
    assert (body.span, body.finish, generation.finish) == ((7,), finish, finish)


@pytest.mark.parametrize("state", [JobState.ERROR, JobState.COLD])
async def test_a_failed_engine_is_recorded_and_told_with_its_reason(store, generation, state):
    generation.deliver(tick(7))
    generation.deliver(tick(state=state, detail="the worker was lost"))

    with pytest.raises(WorkerLost, match="the worker was lost"):
        await record_reply(generation, store, Spelling())

    bodies = replies(store, generation)
    assert bodies[-1].finish == numbers.Finish.ERROR
    assert sum((body.span for body in bodies), ()) == (7,)


async def test_text_that_is_not_whole_waits_and_ends_with_the_reply(store, generation):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record_reply, generation, store, Spelling())
        generation.deliver(tick(1, 99))
        await store.wait_for_change(generation.session)
        generation.deliver(tick(2))
        await store.wait_for_change(generation.session)
        generation.deliver(tick(3, 99, state=JobState.CANCELLED))

    assert [body.text for body in replies(store, generation)] == ["<1>", "<99><2>", "<3><99>"]
    assert [body.span for body in replies(store, generation)] == [(1, 99), (2,), (3, 99)]


async def test_a_tick_of_a_prefill_writes_nothing(store, generation, files):
    before = store.statistics.commands
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record_reply, generation, store, Spelling())
        generation.deliver(tick())
        await wait_all_tasks_blocked()
        assert store.statistics.commands == before
        generation.deliver(tick(1, state=JobState.END))

    assert store.statistics.commands == before + 1


async def test_a_log_that_fails_ends_the_reply_with_what_was_committed(store, generation, files):
    async with trio.open_nursery() as nursery:
        failures = []

        async def record():
            with pytest.raises(LogUnknown) as failure:
                await record_reply(generation, store, Spelling())
            failures.append(failure.value)

        nursery.start_soon(record)
        generation.deliver(tick(1))
        await store.wait_for_change(generation.session)
        files.fail_next()
        generation.deliver(tick(2))

    assert len(failures) == 1
    assert [body.span for body in replies(store, generation)] == [(1,)]
    assert generation.tokens_generated == 1
