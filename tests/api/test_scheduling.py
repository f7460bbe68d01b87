"""Classes, exactness, pins and tiers, between a real log and an engine that only takes notes."""

from types import SimpleNamespace

import pytest
import trio

from superfluid.api.scheduling import Scheduling
from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.errors import BadRequest, LostError, NoSuchSession, NotSupported, PinBudget
from superfluid.core.limits import MAX_BACKGROUND_DIVISOR, MAX_PIN_MS
from superfluid_protocol import event, request, types
from tests.daemon import GREEDY
from tests.store.conftest import serving
from tests.store.faulty_files import FaultyFiles

NOW = 1_000_000
BUDGET = 10


class NotedEngine:
    """Takes pins up to ``budget`` tokens."""

    def __init__(self):
        self.budget = BUDGET
        self.pins = {}
        self.divisor = 1
        self.place = ("", 0, 0)
        self.ready = trio.Event()
        self.ready.set()

    async def context_size(self):
        await self.ready.wait()
        return 512

    def pin(self, session, stream, deadline_ms):
        if deadline_ms == 0:
            self.pins.pop(session, None)
            return
        if len(stream) > self.budget:
            raise PinBudget(len(stream), self.budget)
        self.pins[session] = (list(stream), deadline_ms)

    def where(self, _session, stream):
        assert len(stream) > 0
        return self.place

    def set_background_rate(self, divisor):
        self.divisor = divisor


class Stack:
    def __init__(self, store, files):
        self.store = store
        self.files = files
        self.engine = NotedEngine()
        self.reclassed = []
        self.batch_invariant = True
        self.asked = 0
        self.now = NOW
        self.scheduling = self.another()

    def another(self):
        """The part under test, over the same log: what a restart makes."""

        async def exactness():
            self.asked += 1
            await trio.lowlevel.checkpoint()
            return SimpleNamespace(batch_invariant=self.batch_invariant)

        return Scheduling(
            store=self.store,
            engine=self.engine,
            generations=SimpleNamespace(reclass=self.reclassed.append),
            exactness=exactness,
            now_ms=lambda: self.now,
        )

    async def session(self, *span):
        store = self.store
        records = await store.submit(None, lambda s: decide.create(s, store.new_id(), None, GREEDY))
        session = records[0].session
        if span:
            await self.append(session, *span)
        return session

    async def append(self, session, *span):
        store = self.store
        await store.submit(session, lambda s: decide.append(s, store.busy, session, None, span, n_vocab=99))

    def of(self, session):
        return tree.get(self.store.state, session)


@pytest.fixture
async def stack(tmp_path):
    files = FaultyFiles()
    async with serving(tmp_path, files) as store:
        yield Stack(store, files)
        files.release()


def qos(session, class_=0, *, exact=False):
    return request.SetQos(session=session, class_=class_, batch_invariant=exact)


class TestQos:
    async def test_is_recorded_and_taken_at_once(self, stack):
        session = await stack.session()

        records = await stack.scheduling.set_qos(qos(session, 3))

        assert records[-1].body == event.QosSet(class_=3, batch_invariant=False)
        assert stack.of(session).qos_class == 3
        assert stack.reclassed == [session]
        assert stack.asked == 0, "nothing is measured for who does not ask for it"

    async def test_may_change_while_the_session_generates(self, stack):
        session = await stack.session(1)
        stack.store.busy.add(session)

        await stack.scheduling.set_qos(qos(session, 0))

        assert stack.of(session).qos_class == 0

    async def test_an_exact_session_where_the_model_can(self, stack):
        session = await stack.session()

        await stack.scheduling.set_qos(qos(session, exact=True))

        assert stack.of(session).batch_invariant

    async def test_an_exact_session_where_the_model_cannot(self, stack):
        session = await stack.session()
        stack.batch_invariant = "rows depend on what is computed beside them"

        with pytest.raises(
            NotSupported, match=r"^exact replies are not supported here: rows depend .*; start with --exact"
        ):
            await stack.scheduling.set_qos(qos(session, exact=True))

        assert stack.of(session).length == 1, "nothing was written"
        assert stack.reclassed == []

    @pytest.mark.parametrize("exact", [False, True])
    async def test_what_is_refused_anyway_is_not_measured(self, stack, exact):
        session = await stack.session()

        with pytest.raises(BadRequest, match="class 9 is unknown"):
            await stack.scheduling.set_qos(qos(session, 9, exact=exact))
        with pytest.raises(NoSuchSession):
            await stack.scheduling.set_qos(qos(99, exact=exact))
        assert stack.asked == 0


class TestBackgroundRate:
    @pytest.mark.parametrize("divisor", [0, 1, MAX_BACKGROUND_DIVISOR])
    async def test_is_handed_on(self, stack, divisor):
        stack.scheduling.set_background_rate(divisor)

        assert stack.engine.divisor == divisor

    async def test_is_bounded(self, stack):
        with pytest.raises(BadRequest, match="0 pauses"):
            stack.scheduling.set_background_rate(MAX_BACKGROUND_DIVISOR + 1)
        assert stack.engine.divisor == 1


class TestPin:
    async def test_is_recorded_and_held(self, stack):
        session = await stack.session(1, 2, 3)

        assert await stack.scheduling.pin(session, 500) == NOW + 500

        assert stack.engine.pins == {session: ([1, 2, 3], NOW + 500)}
        assert stack.of(session).pin_deadline_unix_ms == NOW + 500

    async def test_0_lets_go(self, stack):
        session = await stack.session(1)
        await stack.scheduling.pin(session, 500)

        assert await stack.scheduling.pin(session, 0) == 0

        assert stack.engine.pins == {}
        assert stack.of(session).pin_deadline_unix_ms == 0

    async def test_one_that_never_fits_is_refused_before_anything_is_written(self, stack):
        session = await stack.session(*range(BUDGET + 1))
        length = stack.of(session).length

        with pytest.raises(PinBudget):
            await stack.scheduling.pin(session, 500)

        assert stack.of(session).length == length
        assert stack.engine.pins == {}

    async def test_what_the_disk_did_not_take_is_not_held(self, stack):
        session = await stack.session(1)
        await stack.scheduling.pin(session, 100)
        await stack.append(session, 2)
        stack.files.fail_next()

        with pytest.raises(LostError):
            await stack.scheduling.pin(session, 500)

        assert stack.engine.pins == {session: ([1], NOW + 100)}, "the pin that there was"

    async def test_what_the_disk_did_not_take_does_not_revive_a_pin_that_is_over(self, stack):
        session = await stack.session(1)
        await stack.scheduling.pin(session, 100)
        stack.now += 100
        stack.files.fail_next()

        with pytest.raises(LostError):
            await stack.scheduling.pin(session, 500)

        assert stack.engine.pins == {}

    async def test_is_refused_at_once_where_it_is_wrong(self, stack):
        stack.engine.ready = trio.Event()  # no worker yet, and none is waited for
        session = await stack.session(1)

        with pytest.raises(BadRequest, match="is too long"):
            await stack.scheduling.pin(session, MAX_PIN_MS + 1)
        with pytest.raises(NoSuchSession):
            await stack.scheduling.pin(99, 1)

    async def test_pins_of_the_log_are_held_again_after_a_restart(self, stack):
        first, second, over = [await stack.session(1, 2) for _ in range(3)]
        await stack.scheduling.pin(over, 100)
        await stack.scheduling.pin(second, 2000)
        await stack.scheduling.pin(first, 1000)
        await stack.append(second, 3)
        stack.engine.pins.clear()
        stack.now += 500

        await stack.another().restore_pins()

        assert stack.engine.pins == {first: ([1, 2], NOW + 1000), second: ([1, 2], NOW + 2000)}, (
            "as they were pinned"
        )

    async def test_a_pin_that_does_not_fit_after_a_restart_is_left_out(self, stack):
        large, small = await stack.session(1, 2), await stack.session(1)
        await stack.scheduling.pin(large, 1000)
        await stack.scheduling.pin(small, 2000)
        stack.engine.pins.clear()
        stack.engine.budget = 1

        await stack.another().restore_pins()

        assert list(stack.engine.pins) == [small]

    async def test_without_pins_a_restart_restores_none(self, stack):
        await stack.session(1)

        await stack.another().restore_pins()

        assert stack.engine.pins == {}


class TestTier:
    @pytest.mark.parametrize(
        ("place", "tier"),
        [
            (("pool", 3, 0), types.Resident()),
            (("host", 3, 0), types.Resident()),
            (("park", 2, 2), types.Parked(covered=2, encoding=2)),
            (("", 0, 0), types.Cold()),
        ],
    )
    async def test_says_where_the_kv_is(self, stack, place, tier):
        session = await stack.session(1, 2, 3)
        stack.engine.place = place

        assert stack.scheduling.tier(session) == tier

    async def test_a_session_without_tokens_is_cold(self, stack):
        assert stack.scheduling.tier(await stack.session()) == types.Cold()

    async def test_a_session_that_is_not_there(self, stack):
        with pytest.raises(NoSuchSession):
            stack.scheduling.tier(99)
