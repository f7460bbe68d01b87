"""Saving sequences to host memory and loading them, on every kind of model."""

import numpy as np
import pytest

from superfluid.core.plan import JobState, Plan
from superfluid.worker.engine import Engine, PlanError
from superfluid.worker.host import Entry
from superfluid.worker.llama.library import lib
from tests.worker.builders import (
    PROMPT_A,
    PROMPT_B,
    admit,
    clear,
    copy,
    drop,
    fresh,
    line,
    load,
    reply,
    restore,
    save,
)

LONG = [i % 250 for i in range(120)]
"""Longer than the window."""


def moves(engine, *moves):
    return engine.run(Plan(id=5000, moves=moves))


def hold(engine, seq, prompt):
    """Have *seq* hold exactly *prompt*."""
    reply(engine, 1 + 10 * seq, seq, prompt, limit=1)
    assert engine._context.length(seq) == len(prompt)


# -- there and back ---------------------------------------------------------------------------------


def test_a_loaded_sequence_goes_on_as_a_fresh_context_would(any_engine, any_model):
    """Also when the sequence went on beyond the save, was cleared, and others came and went."""
    engine, n = any_engine, len(LONG)
    hold(engine, 0, LONG)
    saved = moves(engine, save(0, 7, n))
    beyond = reply(engine, 2, 0, [9, 8, 7], start=n, limit=30)
    moves(engine, clear(0))
    reply(engine, 3, 0, PROMPT_B, limit=5)

    loaded = moves(engine, restore(7, 0, n), restore(7, 4, n))
    replies = [reply(engine, 4 + seq, seq, [9, 8, 7], start=n, limit=30) for seq in (0, 4)]

    assert saved.saved == ((7, n, len(engine.host.get(7).state)),)
    assert saved.positions == ((0, n),)
    assert loaded.positions == ((0, n), (4, n))
    assert replies == [beyond] * 2 == [fresh(any_model, [*LONG, 9, 8, 7], limit=30)] * 2


def test_a_loaded_state_is_the_saved_one_bit_for_bit(any_engine):
    hold(any_engine, 3, LONG)
    moves(any_engine, save(3, 1, len(LONG)), clear(3), restore(1, 3, len(LONG)), save(3, 2, len(LONG)))

    first, second = any_engine.host.get(1).state, any_engine.host.get(2).state
    assert first.any()
    assert first.tobytes() == second.tobytes()


def test_the_size_of_a_state_is_foretold(any_engine):
    for n in (3, 20, 120):
        hold(any_engine, 0, LONG[:n])
        ((_, _, size),) = moves(any_engine, save(0, n, n)).saved

        most = any_engine.ready.bytes_per_sequence + n * any_engine.ready.bytes_per_token
        assert size <= most
        assert size == most or (any_engine.ready.cuts, n) == ("window", 120)


def test_big_then_small_then_big(any_engine, any_model):
    """Field case: a smaller state loaded after a larger one aborted."""
    hold(any_engine, 0, LONG)
    hold(any_engine, 1, PROMPT_B[:5])
    moves(any_engine, save(0, 1, 120), save(1, 2, 5))

    moves(
        any_engine,
        restore(1, 2, 120),
        restore(2, 2, 5),
        restore(1, 2, 120),
        restore(2, 3, 5),
        restore(2, 2, 5),
    )

    expected = fresh(any_model, [*PROMPT_B[:5], 9, 8], limit=10)
    assert [reply(any_engine, 50 + seq, seq, [9, 8], start=5, limit=10) for seq in (2, 3)] == [expected] * 2


@pytest.mark.parametrize(("n", "cuts"), [(119, {"free", "window"}), (100, {"free"}), (1, {"free"})])
def test_a_prefix_of_an_entry_loads_where_the_model_can_cut(any_engine, any_model, n, cuts):
    hold(any_engine, 0, LONG)
    hold(any_engine, 1, PROMPT_B)

    loaded = moves(any_engine, save(0, 1, 120), restore(1, 1, n))

    held = n if any_engine.ready.cuts in cuts else 0
    assert dict(loaded.positions)[1] == held
    assert reply(any_engine, 60, 1, [*LONG[held:n], 9], start=held) == fresh(any_model, [*LONG[:n], 9])


def test_the_whole_prompt_again_costs_one_row_or_says_cold(any_engine, any_model):
    """Field case: a recurrent model cannot step back one position, and was asked for logits of none."""
    hold(any_engine, 0, LONG)
    moves(any_engine, save(0, 1, 120), restore(1, 2, 120))

    again = any_engine.run(Plan(id=1, admit=(admit(9, 2, LONG[-1:], start=119, limit=1),), prefill=((9, 1),)))

    if any_engine.ready.cuts == "none":
        assert (line(again, 9).state, again.positions) == (JobState.COLD, ((2, 0),))
        assert reply(any_engine, 10, 2, LONG, limit=9) == fresh(any_model, LONG, limit=9)
    else:
        assert (line(again, 9).prefilled, again.positions) == (1, ((2, 120),))


def test_a_checkpoint_one_position_back_serves_the_whole_prompt_again(any_engine, any_model):
    """Field case: restored was reported, and nothing could be reused."""
    hold(any_engine, 0, LONG[:-1])
    moves(any_engine, save(0, 1, 119))
    reply(any_engine, 2, 0, LONG[-1:], start=119, limit=20)

    moves(any_engine, restore(1, 0, 119))

    assert reply(any_engine, 3, 0, LONG[-1:], start=119, limit=20) == fresh(any_model, LONG, limit=20)


def test_a_running_lane_is_saved_and_goes_on(engine, tiny_model):
    engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A),), prefill=((1, 99),), decode_rounds=3))

    saved = engine.run(Plan(id=2, moves=(save(0, 4, 63),), decode_rounds=4))

    assert saved.saved[0][:2] == (4, 63)
    assert len(line(saved, 1).tokens) == 4 * 4


# -- what cannot be done ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 44, 46])
def test_a_save_of_other_positions_than_there_are_makes_no_entry(any_engine, n):
    hold(any_engine, 0, PROMPT_B)

    result = moves(any_engine, save(0, 1, n), restore(1, 0, 45))

    assert (result.saved, result.positions) == (((1, 0, 0),), ((0, 0),))


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(restore(99, 1, 45), id="no such entry"),
        pytest.param(restore(5, 1, 61), id="more than the entry holds"),
        pytest.param(restore(6, 1, 60), id="dropped"),
        pytest.param(restore(7, 1, 60), id="noise"),
        pytest.param(restore(8, 1, 60), id="half a state"),
        pytest.param(restore(9, 1, 60), id="bytes behind the state"),
        pytest.param(restore(10, 1, 60), id="of another number of sequences"),
        pytest.param(restore(11, 1, 60), id="nothing"),
        pytest.param(restore(12, 1, 60), id="a shorter state than it says"),
        pytest.param(copy(0, 1, 61), id="copy of more than there is"),
        pytest.param(copy(2, 1, 1), id="copy of nothing"),
    ],
)
def test_no_cell_of_a_stranger_is_left_when_a_load_or_copy_fails(any_engine, any_model, bad):
    """Field case: "no match" was reported as success, and the answer continued somebody else's conversation."""
    engine = any_engine
    hold(engine, 0, PROMPT_A)
    moves(engine, save(0, 5, 60), save(0, 6, 60), drop(6), drop(6))
    state = engine.host.get(5).state
    hold(engine, 3, PROMPT_B[:30])
    others = Engine.open(load(any_model, n_seq=3))
    hold(others, 0, PROMPT_A)
    for number, bytes_ in {
        7: np.random.default_rng(1).integers(0, 256, 5000, np.uint8),
        8: state[: len(state) // 2],
        9: np.concatenate([state, np.zeros(4, np.uint8)]),
        10: others._context.export(0)[:-1],
        11: state[:0],
        12: engine._context.export(3),
    }.items():
        assert engine.host.put(number, Entry(positions=60, state=bytes_))
    others.close()
    hold(engine, 1, PROMPT_B)

    result = moves(engine, bad)

    assert dict(result.positions)[1] == 0
    assert reply(engine, 70, 1, PROMPT_A[:9], limit=12) == fresh(any_model, PROMPT_A[:9], limit=12)


def test_a_state_cut_anywhere_loads_nothing(any_engine):
    hold(any_engine, 0, PROMPT_B[:6])
    state = any_engine._context.export(0)

    for end in range(0, len(state), max(1, len(state) // 300)):
        assert not any_engine._context.restore(1, state[:end], 6)
        assert any_engine._context.length(1) == 0


def test_a_save_without_memory_is_said_and_the_worker_lives(engine, monkeypatch):
    hold(engine, 0, PROMPT_A)
    hold(engine, 1, PROMPT_B)
    monkeypatch.setattr(engine._context, "export_size", lambda _seq: 1 << 60)

    result = moves(engine, save(0, 1, 60), copy(0, 1, 60))

    assert result.saved == ((1, 0, 0),)
    assert result.positions == ((0, 60), (1, 0))


def test_a_state_over_two_gigabytes_is_counted_in_full(engine, monkeypatch):
    """Field case: a 32-bit size went negative. No such state is made here: only its size is claimed, and passed on."""
    asked, huge = [], 5 << 30
    monkeypatch.setattr(lib, "llama_state_seq_get_size", lambda *_: huge)
    monkeypatch.setattr(lib, "llama_state_seq_get_data", lambda _c, _p, size, _s: asked.append(size) or size)

    state = engine._context.export(0)

    assert asked == [huge] == [len(state)]


def test_an_entry_outlives_its_drop_for_who_holds_it(engine):
    hold(engine, 0, PROMPT_A)
    moves(engine, save(0, 1, 60))
    entry = engine.host.get(1)
    before = entry.state.tobytes()

    moves(engine, drop(1), clear(0))
    reply(engine, 2, 0, PROMPT_B)

    assert engine.host.get(1) is None
    assert entry.state.tobytes() == before


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (Plan(id=1, moves=(save(6, 1, 1),)), "does not exist"),
        (Plan(id=1, moves=(restore(1, 6, 1),)), "does not exist"),
        (Plan(id=1, moves=(restore(1, 0, 1),)), "under a running job"),
        (Plan(id=1, moves=(save(0, 3, 60), save(1, 3, 1))), "entry 3 is there already"),
        (Plan(id=1, moves=(save(0, 2, 60),)), "entry 2 is there already"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_whole(engine, plan, match):
    engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A),), prefill=((1, 99),)))
    moves(engine, save(0, 2, 60))

    with pytest.raises(PlanError, match=match):
        engine.run(plan)
    assert engine.host.get(3) is None


# -- bursts -----------------------------------------------------------------------------------------


@pytest.fixture
def exports(engine, monkeypatch):
    """The sequences that were exported."""
    seen = []
    export = engine._context.export
    monkeypatch.setattr(engine._context, "export", lambda seq: seen.append(seq) or export(seq))
    return seen


def test_followers_of_one_prefix_cost_one_export(engine, exports, tiny_model):
    hold(engine, 0, PROMPT_A)

    result = moves(engine, *(copy(0, seq, 50) for seq in range(1, 6)), save(0, 1, 60))

    assert exports == [0]
    assert result.positions == ((0, 60), *((seq, 50) for seq in range(1, 6)))
    assert reply(engine, 90, 4, [9], start=50) == fresh(tiny_model, [*PROMPT_A[:50], 9])


def test_a_source_that_changed_is_exported_again(engine, exports, tiny_model):
    hold(engine, 0, PROMPT_A)
    hold(engine, 1, PROMPT_B)

    moves(engine, copy(0, 2, 20), copy(1, 0, 45), copy(0, 3, 20))

    assert exports == [0, 1, 0]
    assert reply(engine, 91, 2, [9], start=20) == fresh(tiny_model, [*PROMPT_A[:20], 9])
    assert reply(engine, 92, 3, [9], start=20) == fresh(tiny_model, [*PROMPT_B[:20], 9])


def test_an_export_is_not_kept_for_the_next_plan(engine, exports, tiny_model):
    hold(engine, 0, PROMPT_A)
    moves(engine, copy(0, 1, 60))
    reply(engine, 93, 0, PROMPT_B, limit=1)

    moves(engine, copy(0, 1, 45))

    assert exports == [0, 0]
    assert reply(engine, 94, 1, [9], start=45) == fresh(tiny_model, [*PROMPT_B, 9])
