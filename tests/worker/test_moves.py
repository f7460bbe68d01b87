"""Sequence operations on tiny random models through the real llama.cpp: what goes on from a copied, saved, loaded or cut
sequence is what a fresh context gives."""

import pytest

from superfluid.core.plan import JobState, Plan
from superfluid.worker.engine import Engine
from tests.worker.builders import PROMPT_A, PROMPT_B, admit, copy, fresh, ids, line, load, reply


def test_a_kept_sequence_goes_on_as_a_fresh_context_would(any_engine, any_model):
    first = reply(any_engine, 1, 0, PROMPT_A, limit=10)
    stream = PROMPT_A + first
    held = len(stream) - 1

    more = reply(any_engine, 2, 0, stream[held:] + PROMPT_B, start=held, limit=15)

    assert more == fresh(any_model, stream + PROMPT_B, limit=15)


def test_a_copy_is_exact_and_leaves_its_source_alone(any_engine, any_model):
    """The chained copies and the reuse of their source come before any row is computed."""
    reply(any_engine, 1, 0, PROMPT_A, limit=1)
    reply(any_engine, 2, 1, PROMPT_B, limit=1)
    n = len(PROMPT_A)

    moved = any_engine.run(Plan(id=50, moves=(copy(0, 1, n), copy(1, 4, n))))
    assert moved.positions == ((0, n), (1, n), (4, n))
    # Straight after, the source is used for something else before any copy has been read.
    other = reply(any_engine, 3, 0, PROMPT_B, limit=10)
    copied = [reply(any_engine, 4 + seq, seq, [9, 8, 7], start=n, limit=10) for seq in (1, 4)]

    assert other == fresh(any_model, PROMPT_B, limit=10)
    assert copied == [fresh(any_model, [*PROMPT_A, 9, 8, 7], limit=10)] * 2


def kv_bytes(engine, seq):
    """The KV values of a sequence as the engine exports them.

    An export names its sequence in front, and behind the values it has an empty count for each later sequence.
    """
    state = engine._context.export(seq)
    end = len(state) - 4 * (engine.ready.n_seq - 1 - seq)
    return state[end - 256 * engine._context.length(seq) : end]


def test_a_copy_is_complete_when_it_returns(engine):
    """llama.cpp's own copy is carried out at the next decode: what is exported before that is zeros."""
    reply(engine, 1, 0, PROMPT_A, limit=5)
    engine.run(Plan(id=50, moves=(copy(0, 1, engine._context.length(0)),)))

    assert kv_bytes(engine, 0).any()
    assert kv_bytes(engine, 1).tobytes() == kv_bytes(engine, 0).tobytes()


def test_a_short_state_goes_where_a_long_one_was_and_back(engine, tiny_model):
    """Field case: a smaller state restored after a larger one aborted."""
    reply(engine, 1, 0, PROMPT_A, limit=1)
    reply(engine, 2, 1, PROMPT_B[:5], limit=1)

    moves = (copy(0, 2, 60), copy(1, 2, 5), copy(0, 2, 60), copy(1, 2, 5))
    engine.run(Plan(id=50, moves=moves))

    assert reply(engine, 3, 2, [9, 8], start=5, limit=10) == fresh(
        tiny_model, [*PROMPT_B[:5], 9, 8], limit=10
    )


def test_a_copy_of_a_running_lane_is_its_prefix_and_the_lane_goes_on(engine, tiny_model):
    expected = fresh(tiny_model, PROMPT_A, limit=12)
    started = engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A),), prefill=((1, 99),), decode_rounds=3))

    result = engine.run(
        Plan(
            id=2,
            moves=(copy(0, 1, 40),),
            admit=(admit(2, 1, PROMPT_A[40:], start=40, limit=12),),
            prefill=((2, 99),),
            decode_rounds=11,
        )
    )

    assert ids(started, 1) + ids(result, 1)[:8] == expected
    assert ids(result, 2) == expected


def test_a_move_to_the_same_sequence_is_a_trim(engine):
    reply(engine, 1, 0, PROMPT_A, limit=5)

    result = engine.run(Plan(id=1, moves=(copy(0, 0, 12),)))

    assert result.positions == ((0, 12),)


@pytest.mark.parametrize("move", [copy(0, 1, 61), copy(2, 1, 1), copy(1, 1, 46)])
def test_a_move_of_more_than_there_is_leaves_the_sequence_cleared(engine, move):
    """Field case: "no match" left a stranger's cells, and the answer continued somebody else's
    conversation."""
    reply(engine, 1, 0, PROMPT_A, limit=1)
    reply(engine, 2, 1, PROMPT_B, limit=1)

    result = engine.run(Plan(id=1, moves=(move,)))

    assert dict(result.positions)[1] == 0


def test_copying_nothing_clears(engine):
    reply(engine, 1, 1, PROMPT_B, limit=1)

    assert dict(engine.run(Plan(id=1, moves=(copy(0, 1, 0),))).positions) == {0: 0, 1: 0}


def test_a_trimmed_sequence_forgets_what_was_cut(engine, tiny_model):
    reply(engine, 1, 0, PROMPT_A, limit=8)

    trimmed = engine.run(Plan(id=1, moves=(copy(0, 0, 20),)))
    answer = reply(engine, 2, 0, PROMPT_B, start=20, limit=10)

    assert trimmed.positions == ((0, 20),)
    assert answer == fresh(tiny_model, PROMPT_A[:20] + PROMPT_B, limit=10)


def test_a_job_that_starts_at_0_takes_nothing_from_its_sequence(engine, tiny_model):
    reply(engine, 1, 0, PROMPT_A, limit=8)

    assert reply(engine, 2, 0, PROMPT_B, limit=10) == fresh(tiny_model, PROMPT_B, limit=10)


def test_a_job_whose_prefix_is_not_there_is_cold_and_its_sequence_cleared(engine):
    reply(engine, 1, 0, PROMPT_A, limit=1)

    result = engine.run(
        Plan(id=1, admit=(admit(2, 0, PROMPT_B, start=61),), prefill=((2, 99),), decode_rounds=2)
    )

    assert (line(result, 2).state, ids(result, 2)) == (JobState.COLD, [])
    assert result.positions == ((0, 0),)


def test_a_whole_prompt_hit_computes_exactly_one_row(engine):
    first = reply(engine, 1, 0, PROMPT_A, limit=10)

    again = engine.run(
        Plan(
            id=1,
            admit=(admit(2, 0, PROMPT_A[-1:], start=len(PROMPT_A) - 1, limit=10),),
            prefill=((2, 99),),
            decode_rounds=9,
        )
    )

    assert (again.prefill_rows, ids(again, 2)) == (1, first)


@pytest.mark.parametrize(
    ("start", "state"),
    # The copy holds positions 168 to 199, and a row attends to the 31 before it.
    [(100, JobState.COLD), (180, JobState.COLD), (198, JobState.COLD), (199, JobState.RUNNING)],
)
def test_a_window_that_is_gone_is_not_cut_into(tiny_window_model, start, state):
    """A copied window holds its last positions only: a cut before them must be cold, not wrong."""
    engine = Engine.open(load(tiny_window_model))
    try:
        reply(engine, 1, 0, [i % 250 for i in range(200)], limit=1)
        copied = engine.run(Plan(id=1, moves=(copy(0, 1, 200),)))
        result = engine.run(Plan(id=2, admit=(admit(2, 1, [9], start=start),), prefill=((2, 1),)))
    finally:
        engine.close()

    assert dict(copied.positions)[1] == 200
    assert line(result, 2).state is state
    assert result.positions == ((1, 0 if state is JobState.COLD else start + 1),)


def test_a_retired_job_leaves_its_sequence_to_the_scheduler(engine):
    engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A),), prefill=((1, 99),), decode_rounds=3))

    result = engine.run(Plan(id=2, retire=(1,), admit=(admit(2, 0, [5], start=63),), prefill=((2, 1),)))

    assert [entry.job for entry in result.jobs] == [2]
    assert result.positions == ((0, 64),)
