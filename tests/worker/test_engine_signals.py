"""Cancel, interrupt and abort: they come at any step, end what they are meant for, and leave no wrong
cell."""

from contextlib import closing

import llama_cpp.llama_cpp as lib
import pytest

from superfluid.core.plan import JobState, Plan
from superfluid.worker.engine import Engine
from tests.worker.builders import PROMPT_A, PROMPT_B, admit, ids, line, load, reply

LONG = [(3 * i + 1) % 250 for i in range(256)]


@pytest.fixture
def at_step(engine, monkeypatch):
    """Run an action just before the engine's n-th call of llama.cpp (counted from 1)."""

    def arrange(n, action):
        calls = 0

        def counted(call):
            def wrapper(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls == n:
                    action()
                return call(*args, **kwargs)

            return wrapper

        for name in ("decode_chunk", "decode_rows"):
            monkeypatch.setattr(engine._context, name, counted(getattr(engine._context, name)))

    return arrange


def two_lanes(**changes):
    return Plan(
        id=7,
        admit=(admit(1, 0, PROMPT_A, limit=20), admit(2, 1, PROMPT_B, limit=20)),
        prefill=((1, 100), (2, 100)),
        **changes,
    )


def test_cancelling_a_job_never_touches_another(engine, at_step):
    """Field case: cancelling one request stopped somebody else's decode."""
    expected = reply(engine, 90, 1, PROMPT_B, limit=20)
    at_step(6, lambda: engine.signals.cancel(1))

    first = engine.run(two_lanes(decode_rounds=19))
    second = engine.run(Plan(id=8, decode_rounds=19))

    assert line(first, 1).state is JobState.CANCELLED
    assert first.interrupted
    # The step that ran when the signal came is the last one: two prefill chunks, then four decode steps.
    assert first.decode_steps == 4
    assert [entry.job for entry in second.jobs] == [2]
    assert ids(first, 2) + ids(second, 2) == expected


def test_a_cancel_between_plans_ends_the_job_before_any_row(engine):
    engine.run(two_lanes())
    engine.signals.cancel(1)

    result = engine.run(Plan(id=8, decode_rounds=3))

    assert (line(result, 1).state, ids(result, 1)) == (JobState.CANCELLED, [])
    assert len(ids(result, 2)) == 3
    assert not result.interrupted


def test_a_job_cancelled_before_its_admission_is_never_computed(engine):
    engine.signals.cancel(1)

    result = engine.run(two_lanes(decode_rounds=2))

    assert (line(result, 1).state, line(result, 1).prefilled) == (JobState.CANCELLED, 0)
    assert len(ids(result, 2)) == 3


def test_a_cancel_of_a_job_that_is_gone_is_forgotten(engine):
    engine.signals.cancel(4711)
    engine.run(Plan(id=1))

    assert not engine.signals.cancelled(4711)


def test_a_cancelled_sequence_still_holds_what_was_computed(engine, at_step):
    at_step(4, lambda: engine.signals.cancel(1))
    result = engine.run(two_lanes(decode_rounds=10))
    held = dict(result.positions)[0]

    again = reply(engine, 5, 0, PROMPT_A[-1:], start=len(PROMPT_A) - 1, limit=5)

    assert held == len(PROMPT_A) + 2
    assert again == reply(engine, 6, 2, PROMPT_A, limit=5)


def test_an_interrupt_ends_the_plan_and_no_job(engine, at_step):
    expected = reply(engine, 90, 0, PROMPT_A, limit=20)
    at_step(5, lambda: engine.signals.interrupt(7))

    first = engine.run(two_lanes(decode_rounds=19))
    second = engine.run(Plan(id=8, decode_rounds=19))

    assert (first.interrupted, first.decode_steps) == (True, 3)
    assert {entry.state for entry in first.jobs} == {JobState.RUNNING}
    assert not second.interrupted
    assert ids(first, 1) + ids(second, 1) == expected


def test_an_interrupt_of_another_plan_is_not_noticed(engine):
    engine.signals.interrupt(6)

    assert not engine.run(two_lanes(decode_rounds=3)).interrupted


def test_moves_and_admits_of_an_interrupted_plan_are_carried_out(engine):
    engine.signals.interrupt(7)

    result = engine.run(two_lanes(decode_rounds=3))
    after = engine.run(Plan(id=8, prefill=((1, 100), (2, 100))))

    assert (result.interrupted, result.prefill_rows) == (True, 0)
    assert [len(ids(after, job)) for job in (1, 2)] == [1, 1]


def test_an_interrupt_between_two_chunks_leaves_the_first(engine, at_step):
    expected = reply(engine, 90, 1, LONG, limit=5)
    at_step(2, lambda: engine.signals.interrupt(7))

    cut = engine.run(Plan(id=7, admit=(admit(1, 0, LONG, limit=5),), prefill=((1, 1000),)))
    rest = engine.run(Plan(id=8, prefill=((1, 1000),), decode_rounds=4))

    # The second chunk had begun, with its abort flag set before its first node.
    assert (cut.interrupted, cut.prefill_rows, cut.positions) == (True, 64, ((0, 64),))
    assert rest.prefill_rows == len(LONG) - 64
    assert ids(rest, 1) == expected


@pytest.fixture
def recurrent(tiny_recurrent_model):
    with closing(Engine.open(load(tiny_recurrent_model))) as engine:
        yield engine


@pytest.fixture
def at_second_chunk(recurrent, monkeypatch):
    """Do something as the second chunk of a prompt begins."""

    def arrange(action):
        def signalled(seq, start, *args, **kwargs):
            if start == 64:
                action()
            return decode_chunk(seq, start, *args, **kwargs)

        decode_chunk = recurrent._context.decode_chunk
        monkeypatch.setattr(recurrent._context, "decode_chunk", signalled)

    return arrange


def test_a_chunk_of_a_model_that_cannot_be_cut_is_not_aborted(recurrent, at_second_chunk):
    """Field case: after an abort the memory claims rows that were never computed. A recurrent model has no earlier state
    to go back to, so the chunk is finished, and the plan ends behind it."""
    expected = reply(recurrent, 90, 1, LONG, limit=5)
    at_second_chunk(lambda: recurrent.signals.interrupt(7))

    cut = recurrent.run(Plan(id=7, admit=(admit(1, 0, LONG, limit=5),), prefill=((1, 1000),)))
    rest = recurrent.run(Plan(id=8, prefill=((1, 1000),), decode_rounds=4))

    assert (cut.interrupted, cut.prefill_rows, cut.positions) == (True, 128, ((0, 128),))
    assert rest.prefill_rows == len(LONG) - 128
    assert ids(rest, 1) == expected
    assert len(expected) > 1


def test_what_a_cancelled_job_of_such_a_model_leaves_is_whole(recurrent, at_second_chunk):
    expected = reply(recurrent, 90, 1, LONG, limit=5)
    at_second_chunk(lambda: recurrent.signals.cancel(1))

    cut = recurrent.run(Plan(id=7, admit=(admit(1, 0, LONG, limit=5),), prefill=((1, 1000),)))

    assert line(cut, 1).state is JobState.CANCELLED
    assert cut.positions == ((0, 128),)
    assert reply(recurrent, 2, 0, LONG[128:], start=128, limit=5) == expected


def test_a_stop_ends_everything(engine, at_step):
    at_step(5, engine.signals.stop)

    first = engine.run(two_lanes(decode_rounds=19))
    second = engine.run(Plan(id=8, decode_rounds=19))

    assert (first.interrupted, first.decode_steps) == (True, 2)
    assert (second.interrupted, second.decode_steps) == (True, 0)


@pytest.fixture
def abort_after(engine):
    """Let llama.cpp's own abort callback answer true once, after a number of graph nodes."""
    kept = []

    def arrange(nodes):
        seen = 0

        @lib.ggml_abort_callback
        def callback(_data):
            nonlocal seen
            seen += 1
            return seen == nodes

        kept.append(callback)
        lib.llama_set_abort_callback(engine._context.handle, callback, None)

    return arrange


@pytest.mark.parametrize("nodes", [1, 90, 150, 210, 300])
def test_a_prefill_aborted_in_a_micro_batch_keeps_only_real_rows(engine, abort_after, nodes):
    """Field case: abort in micro-batch 3 of 8, then a prompt that shares the first rows is built on wrong
    cells."""
    expected = reply(engine, 90, 1, LONG, limit=10)
    abort_after(nodes)

    cut = engine.run(Plan(id=7, admit=(admit(1, 0, LONG, limit=10),), prefill=((1, 1000),)))
    rest = engine.run(Plan(id=8, prefill=((1, 1000),), decode_rounds=9))

    held = cut.prefill_rows
    assert held % 32 == 0  # whole micro-batches
    assert cut.prefill_rows < len(LONG)
    assert cut.positions == ((0, held),)
    assert rest.prefill_rows == len(LONG) - held
    assert ids(rest, 1) == expected


def test_rows_of_an_aborted_prefill_can_be_shared(engine, abort_after, tiny_model):
    abort_after(200)
    cut = engine.run(Plan(id=7, admit=(admit(1, 0, LONG),), prefill=((1, 1000),)))
    assert cut.prefill_rows > 9

    shared = LONG[:9] + PROMPT_B
    engine.run(Plan(id=8, retire=(1,)))
    answer = reply(engine, 2, 0, shared[9:], start=9, limit=10)

    fresh = Engine.open(load(tiny_model))
    try:
        assert answer == reply(fresh, 1, 0, shared, limit=10)
    finally:
        fresh.close()


def test_a_decode_round_that_is_aborted_is_done_again(engine, abort_after):
    expected = reply(engine, 90, 0, PROMPT_A, limit=12)
    engine.run(two_lanes())
    abort_after(200)

    first = engine.run(Plan(id=8, decode_rounds=11))
    second = engine.run(Plan(id=9, decode_rounds=11))

    assert first.interrupted
    assert 0 < first.decode_steps < 11
    assert dict(first.positions)[0] == len(PROMPT_A) + first.decode_steps
    assert (expected[:1] + ids(first, 1) + ids(second, 1))[:12] == expected
