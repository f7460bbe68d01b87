"""The lossy encoding: close to the state, the same everywhere else, and refused where the layout is not known."""

import queue
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.worker import quantize
from superfluid.worker.engine import Engine
from superfluid.worker.filer import Filing
from superfluid.worker.host import Entry
from superfluid.worker.messages import Fetch, Filed, Seal
from superfluid.worker.quantize import BLOCK, LayoutError, lossy_refusal, pack, spans, unpack
from tests.worker.builders import PROMPT_A, load, reply

LONG = [i % 250 for i in range(100)]


@pytest.fixture(params=["tiny_model", "tiny_window_model"])
def cutting_engine(request):
    with closing(Engine.open(load(request.getfixturevalue(request.param)))) as engine:
        yield engine


@pytest.fixture
def state(cutting_engine):
    reply(cutting_engine, 1, 2, LONG, limit=1)
    return cutting_engine._context.export(2)


@pytest.fixture(scope="module")
def small_state(tiny_model):
    with closing(Engine.open(load(tiny_model))) as engine:
        reply(engine, 1, 0, PROMPT_A[:3], limit=1)
        return engine._context.export(0)


def halves(state):
    return state.view(np.float16).astype(np.float64)


def test_a_state_comes_back_close_and_the_rest_of_it_equal(state):
    packed = pack(state)
    back = unpack(packed, len(state))

    assert len(packed) < 0.65 * len(state)
    assert len(back) == len(state)
    done = 0
    for start, size in spans(state):
        assert back[done:start].tobytes() == state[done:start].tobytes()
        was, now = halves(state[start : start + size]), halves(back[start : start + size])
        pad = -len(was) % BLOCK
        most = np.abs(np.pad(was, (0, pad))).reshape(-1, BLOCK).max(axis=1)
        error = np.abs(np.pad(was - now, (0, pad))).reshape(-1, BLOCK).max(axis=1)
        assert (error <= most / 200 + 1e-5).all()
        assert error.any()
        done = start + size
    assert back[done:].tobytes() == state[done:].tobytes()


def test_a_lossy_state_loads_and_what_follows_is_close(cutting_engine, state):
    """The rows after it are computed from all of it: a value in the wrong place would show in the logits."""
    context = cutting_engine._context
    rows = []
    for seq, each in ((3, state), (4, unpack(pack(state), len(state)))):
        assert context.restore(seq, each, len(LONG))
        context.decode_chunk(seq, len(LONG), np.array([9, 8], np.int32), logits=True)
        rows.append(context.logits(1).copy())

    assert rows[0].tobytes() != rows[1].tobytes()
    assert np.corrcoef(*rows)[0, 1] > 0.999


def test_models_whose_states_are_values_are_not_refused(cutting_engine):
    assert cutting_engine.ready.lossy_refusal == ""


def test_recurrent_layers_and_other_types_are_refused_with_the_reason(tiny_recurrent_model, tiny_model):
    reasons = []
    for model, changes in ((tiny_recurrent_model, {}), (tiny_model, {"kv_type": "f32"})):
        with closing(Engine.open(load(model, **changes))) as engine:
            reasons.append(engine.ready.lossy_refusal)

    assert all(reason.startswith("the state is not laid out as F16 keys and values") for reason in reasons)


def test_an_entry_is_sealed_lossily_and_fetched(cutting_engine, state, tmp_path):
    answers: queue.SimpleQueue[Filed] = queue.SimpleQueue()
    host, path = cutting_engine.host, tmp_path / "s.park"
    filing = Filing(host, answers.put)
    host.put(1, Entry(positions=100, state=state))
    names = {"path": str(path), "identity": "i", "digest": b"d", "positions": 100}
    filing.seal(Seal(ticket=1, entry=1, lossy=True, **names))
    sealed = answers.get(timeout=10)
    filing.fetch(Fetch(ticket=2, entry=2, **names))
    fetched = answers.get(timeout=10)

    assert [(answer.ok, answer.size) for answer in (sealed, fetched)] == [
        (True, path.stat().st_size),
        (True, len(state)),
    ]
    assert path.stat().st_size < 0.65 * len(state) + 200
    assert host.get(2).state.tobytes() == unpack(pack(state), len(state)).tobytes()


# -- what cannot be -----------------------------------------------------------------------------------


def test_a_state_cut_anywhere_is_refused(small_state):
    for end in range(len(small_state)):
        assert lossy_refusal(small_state[:end]) is not None


def test_a_state_with_more_behind_it_is_refused(small_state):
    more = np.concatenate([small_state, np.zeros(3, np.uint8)])

    assert "ends early" in str(lossy_refusal(more))


def test_an_empty_sequence_has_nothing_to_store(cutting_engine):
    assert lossy_refusal(cutting_engine._context.export(5)) == "the state holds no F16 values"


def test_values_that_are_not_finite_are_refused(small_state):
    broken = small_state.copy()
    start, _ = spans(broken)[0]
    broken[start : start + 2].view(np.float16)[0] = np.nan

    with pytest.raises(LayoutError, match="not finite"):
        pack(broken)


def test_values_too_small_for_a_scale_are_zero(small_state):
    tiny = small_state.copy()
    for start, size in spans(tiny):
        tiny[start : start + size].view(np.float16)[:] = 1e-7

    back = unpack(pack(tiny), len(tiny))

    assert all(not back[start : start + size].any() for start, size in spans(tiny))


def test_what_is_stored_cut_anywhere_is_refused(small_state):
    packed = pack(small_state)
    for end in range(len(packed)):
        with pytest.raises(LayoutError):
            unpack(packed[:end], len(small_state))


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_at_all_are_a_state_or_the_one_error(data, size):
    stored = np.frombuffer(data, np.uint8)
    try:
        state = unpack(stored, size)
    except LayoutError:
        return
    assert len(state) == size


@given(data=st.data())
def test_a_state_with_any_byte_changed_is_packed_or_refused(small_state, data):
    changed = small_state.copy()
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        packed = pack(changed)
    except LayoutError:
        return
    assert len(unpack(packed, len(changed))) == len(changed)


def test_the_steps_do_not_show(small_state, monkeypatch):
    whole = pack(small_state)
    monkeypatch.setattr(quantize, "_AT_ONCE", 5)

    assert pack(small_state).tobytes() == whole.tobytes()
    assert unpack(whole, len(small_state)).tobytes() == unpack(pack(small_state), len(small_state)).tobytes()
