"""Live state is what replay gives, after any storm of commands, and however they shared batches."""

import random
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from superfluid.core import session as decide
from superfluid.core.errors import ClientError
from tests.daemon import GREEDY
from tests.store.conftest import replay, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

N_VOCAB = 100

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["create", "append", "message", "fork", "title", "reply", "bad"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=30,
)


async def carry_out(store, operation, which, value):
    """One client's command on one of the first sessions; refusals are part of the storm."""
    target = 1 + which

    def decision(state):
        match operation:
            case "create":
                return decide.create(state, store.new_id(), None, GREEDY)
            case "append":
                return decide.append(state, store.busy, target, f"{value}", (value,) * value, n_vocab=N_VOCAB)
            case "message":
                return decide.message(state, store.busy, target, 1, f"{value}", (value,))
            case "fork":
                return decide.fork(state, store.new_id(), target, value, None)
            case "title":
                return decide.set_meta(state, target, value // 4, f"title {value}", value > 5)
            case "reply":
                return decide.generated(target, (value,), "text", 0, value % 5)
        return decide.append(state, store.busy, target, None, (N_VOCAB,), n_vocab=N_VOCAB)

    try:
        await store.submit(None if operation in {"create", "fork"} else target, decision)
    except ClientError:
        return


async def storm(directory, operations, seed):
    """All commands at once, in several runs of a daemon; the live state at the end of each is compared."""
    dice = random.Random(seed)
    rest = [("create", 0, 0), ("create", 0, 0), *operations]
    while rest:
        cut = dice.randint(1, len(rest))
        now, rest = rest[:cut], rest[cut:]
        async with serving(directory) as store, trio.open_nursery() as nursery:
            for operation in now:
                nursery.start_soon(carry_out, store, *operation)
                if dice.random() < 0.5:
                    await trio.lowlevel.checkpoint()
        assert replay(directory) == store.state
        for session in store.state.sessions.values():
            assert [m.event_id for m in session.own] == list(range(session.fork_at, session.length))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=OPERATIONS, seed=st.integers(0, 2**16))
def test_live_state_is_the_fold_of_the_log(operations, seed):
    with tempfile.TemporaryDirectory() as directory:
        trio.run(storm, Path(directory), operations, seed)
