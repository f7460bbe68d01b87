"""The scheduler and its cache under random traffic and trouble (`traffic`): by Hypothesis, which shrinks what fails, and
by plain random walks, which go further."""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from superfluid.core import checkpoints, seeding
from superfluid.core.options import Options, Pool
from tests.core.fake_engine import Trouble
from tests.core.traffic import Traffic

PICK = st.integers(0, 2**32)
CLASSES = [0, 1, 2, 2, 3]
NAMESPACES = [0, 0, 0, 1]

OPTIONS = {
    "lanes": [1, 2, 3, 4],
    "kept": [0, 1, 2, 4],
    "class_lanes": [(0, 0, 0, 0), (0, 0, 2, 1), (1, 1, 1, 1)],
    "starvation_ticks": [1, 8],
    "prefill_budget": [0, 24],
    "pin_budget_pct": [5, 50],
    "pressure_high": [40, 85],
    "pressure_low": [20, 40],
    "coalesce_min": [0, 4, 20],
    "speculate": ["auto", "prompt-lookup", "off"],
    "park": [True, False],
    "park_bytes": [0, 150],
    "park_lossy": [True, False],
}
POOL = {
    "n_ctx": [90, 1000],
    "bytes_per_sequence": [0, 5],
    "cuts_freely": [True, True, False],
    "exact": [True, False, False],
    "host_bytes": [0, 60, 200, 100_000],
}


@pytest.fixture(autouse=True, scope="module")
def _short_streams_matter():
    """Sessions here are a hundred tokens long: what is worth it for them is set by that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "LEAST_FETCHED", 8)
        patch.setattr(checkpoints, "LEAST_DISTANCE", 6)
        yield


class Machine(RuleBasedStateMachine):
    @initialize(
        options=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in OPTIONS.items()}),
        pool=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in POOL.items()}),
        slow=st.booleans(),
    )
    def start(self, options, pool, slow):
        self.traffic = Traffic(Options(**options), Pool(bytes_per_token=1, **pool), slow=slow)

    @rule(
        which=PICK,
        cut=st.none() | PICK,
        new=st.lists(st.integers(1, 9), min_size=1, max_size=40),
        limit=st.integers(1, 30),
        qos=st.sampled_from(CLASSES),
        exact=st.booleans(),
        namespace=st.sampled_from(NAMESPACES),
        ticks=st.integers(0, 3),
    )
    def submit(self, ticks, **job):
        self.traffic.submit(**job)
        self.traffic.plain_ticks(ticks)

    @rule(
        in_flight=st.lists(st.tuples(PICK, st.none() | st.integers(0, 60)), max_size=2),
        fails=st.none() | st.none() | PICK,
        answer=st.none() | st.booleans(),
        interrupt=st.none() | st.integers(1, 60),
        loses_rows=st.booleans(),
        saves_fail=st.booleans(),
        loads_fail=st.booleans(),
    )
    def troubled_tick(self, in_flight, fails, answer, **trouble):
        self.traffic.tick(in_flight, fails, answer, Trouble(**trouble))

    @rule(ticks=st.integers(1, 10))
    def plain_ticks(self, ticks):
        self.traffic.plain_ticks(ticks)

    @precondition(lambda self: self.traffic.queued())
    @rule(which=PICK)
    def cancel_a_queued_job(self, which):
        self.traffic.cancel_a_queued_job(which)

    @precondition(lambda self: self.traffic.prompts)
    @rule(which=PICK, qos=st.sampled_from(CLASSES))
    def reclass(self, which, qos):
        self.traffic.reclass(which, qos)

    @rule(divisor=st.sampled_from([0, 1, 1, 3]))
    def slow_the_background_down(self, divisor):
        self.traffic.slow_the_background_down(divisor)

    @rule(percent=st.sampled_from([10, 50, 100]))
    def memory_is_short(self, percent):
        self.traffic.memory_is_short(percent)

    @precondition(lambda self: self.traffic.sessions)
    @rule(which=PICK, hold=st.integers(0, 20))
    def pin(self, which, hold):
        self.traffic.pin(which, hold)

    @precondition(lambda self: self.traffic.idle_sessions())
    @rule(which=PICK)
    def purge(self, which):
        self.traffic.purge(which)

    @precondition(lambda self: self.traffic.seals or self.traffic.fetches)
    @rule(ok=st.booleans(), fetch=st.booleans())
    def answer_an_order(self, ok, fetch):
        self.traffic.answer_an_order(ok, fetch)

    @rule(in_flight=st.booleans(), written=st.booleans())
    def lose_the_worker(self, in_flight, written):
        self.traffic.lose_the_worker(in_flight, written)

    @invariant()
    def books(self):
        if hasattr(self, "traffic"):
            self.traffic.check()

    def teardown(self):
        if hasattr(self, "traffic"):
            self.traffic.drain()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = pytest.mark.slow(Machine.TestCase)


class Walk:
    """A random walk: mostly jobs and ticks, and now and then each kind of trouble."""

    def __init__(self, seed):
        self.random = random = Random(seed)
        options = {name: random.choice(values) for name, values in OPTIONS.items()}
        pool = {name: random.choice(values) for name, values in POOL.items()}
        slow = random.random() < 0.5
        self.traffic = Traffic(Options(**options), Pool(bytes_per_token=1, **pool), slow=slow)
        self.troubles = random.choice([0.0, 0.1, 0.5])

    def step(self):
        random, traffic = self.random, self.traffic
        kind = random.random()
        if kind < 0.25:
            self.submit()
        elif kind < 0.75:
            traffic.plain_ticks(random.randint(1, 3))
        elif kind < 0.9:
            traffic.answer_an_order(ok=not self.now(), fetch=random.random() < 0.5)
        elif random.random() < 0.5:
            traffic.tick(*self.trouble(), meanwhile=random.choice([None, self.submit, self.act_in_flight]))
        else:
            self.act()
        traffic.check()

    def now(self):
        return self.random.random() < self.troubles

    def pick(self):
        return self.random.randrange(2**32)

    def submit(self):
        random = self.random
        self.traffic.submit(
            which=self.pick(),
            cut=self.pick() if random.random() < 0.3 else None,
            new=[random.randint(1, 9) for _ in range(random.randint(1, 40))],
            limit=random.randint(1, 30),
            qos=random.choice(CLASSES),
            exact=random.random() < 0.3,
            namespace=random.choice(NAMESPACES),
        )

    def trouble(self):
        random = self.random
        cancels = [(self.pick(), random.choice([None, random.randint(0, 60)])) for _ in range(self.now())]
        return (
            cancels,
            self.pick() if self.now() else None,
            random.choice([None, True, not self.now()]),
            Trouble(
                interrupt=random.randint(1, 60) if self.now() else None,
                loses_rows=random.random() < 0.5,
                saves_fail=self.now(),
                loads_fail=self.now(),
            ),
        )

    def act_in_flight(self):
        """What may come between a plan and its result."""
        random, traffic = self.random, self.traffic
        match random.randrange(4):
            case 0 if traffic.queued():
                traffic.cancel_a_queued_job(self.pick())
            case 1:
                traffic.reclass(self.pick(), random.choice(CLASSES))
            case 2:
                traffic.memory_is_short(random.choice([10, 50, 100]))
            case 3 if traffic.idle_sessions():
                traffic.purge(self.pick())

    def act(self):
        random, traffic = self.random, self.traffic
        match random.randrange(8):
            case 0 if traffic.queued():
                traffic.cancel_a_queued_job(self.pick())
            case 1 if traffic.prompts:
                traffic.reclass(self.pick(), random.choice(CLASSES))
            case 2:
                traffic.slow_the_background_down(random.choice([0, 1, 1, 3]))
            case 3 if self.now():
                traffic.memory_is_short(random.choice([10, 50, 100]))
            case 4 | 5 if traffic.sessions:
                traffic.pin(self.pick(), random.randint(0, 20))
            case 6 if traffic.idle_sessions() and self.now():
                traffic.purge(self.pick())
            case 7 if self.now():
                traffic.lose_the_worker(random.random() < 0.5, random.random() < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_walk_of_many_steps(seed):
    walk = Walk(seed)
    for _ in range(150):
        walk.step()
    walk.traffic.drain()
