"""The engine on tiny random models through the real llama.cpp, in this process."""

import numpy as np
import pytest

from superfluid.core.errors import ModelError
from superfluid.core.plan import JobState, Plan
from superfluid.worker.engine import Engine, PlanError
from superfluid.worker.llama.context import Outcome, lib
from tests.tiny_gguf import END_OF_TEXT, IM_END, N_VOCAB
from tests.worker.builders import (
    PROMPT_A,
    PROMPT_B,
    admit,
    clear,
    copy,
    ids,
    line,
    load,
    reply,
)

# -- one job ----------------------------------------------------------------------------------------


def test_ready_tells_what_was_loaded(engine):
    ready = engine.ready

    assert (ready.n_vocab, ready.n_ctx, ready.n_ctx_train, ready.n_seq) == (N_VOCAB, 512, 4096, 6)
    # 2 layers, 2 heads, 16 wide, keys and values, two bytes each; and the position's place in the export.
    assert ready.bytes_per_token == 2 * 2 * 16 * 2 * 2 + 12
    assert ready.library.startswith("llama-cpp-python ")


def test_a_prompt_is_prefilled_over_several_plans_and_then_decoded(engine):
    first = engine.run(Plan(id=1, admit=(admit(5, 0, PROMPT_A, limit=4),), prefill=((5, 40),)))
    second = engine.run(Plan(id=2, prefill=((5, 40),)))
    third = engine.run(Plan(id=3, decode_rounds=10))

    assert (line(first, 5).prefilled, ids(first, 5), line(first, 5).state) == (40, [], JobState.RUNNING)
    assert first.positions == ((0, 40),)
    assert (line(second, 5).prefilled, len(ids(second, 5))) == (20, 1)
    assert (len(ids(third, 5)), line(third, 5).state) == (3, JobState.LIMIT)
    # The last token of a reply is sampled and not computed.
    assert third.positions == ((0, len(PROMPT_A) + 3),)
    assert (first.prefill_rows, second.prefill_rows, third.decode_steps, third.decode_rows) == (40, 20, 3, 3)


def test_a_job_that_completes_its_prompt_decodes_in_the_same_plan(engine):
    plan = Plan(id=1, admit=(admit(5, 0, PROMPT_A),), prefill=((5, 1000),), decode_rounds=6)

    result = engine.run(plan)

    assert len(ids(result, 5)) == 7
    assert result.positions == ((0, len(PROMPT_A) + 6),)
    assert line(result, 5).state is JobState.RUNNING


def test_prompt_rows_are_chunked_without_any_change_of_the_reply(engine):
    whole = reply(engine, 1, 0, PROMPT_A, limit=30)
    engine.run(Plan(id=1, admit=(admit(2, 1, PROMPT_A, limit=30),)))
    for step in range(len(PROMPT_A) // 5):
        engine.run(Plan(id=10 + step, prefill=((2, 5),)))
    cut = engine.run(Plan(id=100, decode_rounds=30))

    assert ids(cut, 2) == whole[1:]


def test_the_end_of_generation_id_is_part_of_the_reply(engine):
    plan = Plan(
        id=1,
        admit=(admit(5, 0, PROMPT_A, temperature=2.0, seed=3),),
        prefill=((5, 1000),),
        decode_rounds=450,
    )

    result = engine.run(plan)

    assert line(result, 5).state is JobState.END
    *before, last = ids(result, 5)
    assert last in {END_OF_TEXT, IM_END}
    assert not {END_OF_TEXT, IM_END} & set(before)


def test_a_full_context_ends_the_job_and_no_other(engine):
    long = [i % 250 for i in range(510)]
    plan = Plan(
        id=1,
        admit=(admit(1, 0, long), admit(2, 1, PROMPT_B)),
        prefill=((1, 1000), (2, 1000)),
        decode_rounds=2,
    )

    result = engine.run(plan)
    after = engine.run(Plan(id=2, decode_rounds=6))

    # Cells 510 and 511 take two sampled tokens; the third has no cell to be computed in, which is told with
    # it.
    assert (len(ids(result, 1)), line(result, 1).state) == (3, JobState.CONTEXT_FULL)
    assert (len(ids(result, 2)), line(result, 2).state) == (3, JobState.RUNNING)
    assert result.positions == ((0, 512), (1, len(PROMPT_B) + 2))
    assert (len(ids(after, 2)), after.positions) == (6, ((1, len(PROMPT_B) + 8),))


def test_a_prompt_that_cannot_fit_is_refused_before_any_row(engine):
    result = engine.run(Plan(id=1, admit=(admit(1, 0, [1] * 513),), prefill=((1, 513),)))

    assert line(result, 1).state is JobState.CONTEXT_FULL
    assert "512" in line(result, 1).detail
    assert (result.prefill_rows, result.positions) == (0, ((0, 0),))


@pytest.mark.parametrize(
    ("prompt", "changes"),
    [([], {}), ([N_VOCAB], {}), ([2**32 - 1], {}), ([1], {"limit": 0})],
    ids=["no row", "id just outside", "largest id", "no token to generate"],
)
def test_a_job_that_would_break_the_engine_is_an_error_of_its_own(engine, prompt, changes):
    plan = Plan(
        id=1,
        admit=(admit(1, 0, prompt, **changes), admit(2, 1, PROMPT_B)),
        prefill=((1, 10), (2, 100)),
    )

    result = engine.run(plan)

    assert line(result, 1).state is JobState.ERROR
    assert len(ids(result, 2)) == 1


def test_broken_logits_are_an_error_and_never_a_token(engine, monkeypatch):
    # Real weights with NaN in them would need a broken model file of each kind; the row is what matters.
    broken = np.full(N_VOCAB, np.nan, np.float32)
    monkeypatch.setattr(engine._context, "logits", lambda _row: broken)

    result = engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A),), prefill=((1, 100),), decode_rounds=3))

    assert (line(result, 1).state, ids(result, 1)) == (JobState.ERROR, [])
    assert result.positions == ((0, 0),)


def test_a_plan_for_a_job_that_is_not_there_says_so(engine):
    result = engine.run(Plan(id=1, prefill=((77, 5),), decode_rounds=2, retire=(78,)))

    assert [entry.job for entry in result.jobs] == [77]
    assert (line(result, 77).state, line(result, 77).detail) == (JobState.ERROR, "no such job")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(id=2, moves=(clear(6),)),
        Plan(id=2, moves=(copy(0, 9, 5),)),
        Plan(id=2, moves=(copy(9, 0, 5),)),
        Plan(id=2, moves=(copy(1, 0, 5),)),
        Plan(id=2, moves=(copy(0, 0, 5),)),
        Plan(id=2, admit=(admit(2, 0, [1]),)),
        Plan(id=2, admit=(admit(1, 1, [1]),)),
        Plan(id=2, admit=(admit(2, 6, [1]),)),
        Plan(id=2, admit=(admit(2, 1, [1]), admit(3, 1, [1]))),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_whole(engine, plan):
    engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A),), prefill=((1, 100),)))

    with pytest.raises(PlanError):
        engine.run(plan)
    assert engine.run(Plan(id=3, decode_rounds=1)).positions == ((0, len(PROMPT_A) + 1),)


# -- many jobs --------------------------------------------------------------------------------------


def test_lanes_do_not_disturb_each_other(engine):
    alone = [reply(engine, 1, 0, PROMPT_A), reply(engine, 2, 3, PROMPT_B)]

    result = engine.run(
        Plan(
            id=1,
            # Not in the order of their sequences: the engine sorts what it passes on.
            admit=(admit(4, 3, PROMPT_B, limit=20), admit(3, 0, PROMPT_A, limit=20)),
            prefill=((4, 100), (3, 100)),
            decode_rounds=20,
        )
    )

    assert [ids(result, 3), ids(result, 4)] == alone
    assert result.decode_rows == 2 * result.decode_steps


def test_rows_of_a_batch_ascend_in_their_sequences(engine, monkeypatch):
    """Any other order runs as one graph a row."""
    seen = []
    decode = engine._context.decode_rows
    monkeypatch.setattr(
        engine._context,
        "decode_rows",
        lambda seqs, *rest, **exact: seen.append(seqs) or decode(seqs, *rest, **exact),
    )

    admits = tuple(admit(job, seq, PROMPT_A) for job, seq in ((1, 2), (2, 0), (3, 1)))
    engine.run(Plan(id=1, admit=admits, prefill=((1, 99), (2, 99), (3, 99)), decode_rounds=2))

    assert seen == [[0, 1, 2]] * 2


def test_a_batch_that_fails_costs_only_the_job_that_cannot_go_on(engine, monkeypatch):
    """Field case: cells run out for one sequence, and every lane of the batch failed with it."""
    expected = reply(engine, 1, 2, PROMPT_B, limit=6)
    engine.run(Plan(id=1, admit=(admit(2, 0, PROMPT_A), admit(3, 2, PROMPT_B)), prefill=((2, 100), (3, 100))))
    decode = engine._context.decode_rows

    def full_for_sequence_0(seqs, positions, tokens, *, exact):
        return Outcome.FULL if 0 in seqs else decode(seqs, positions, tokens, exact=exact)

    # Sequences have buffers of their own here, and a full one is seen beforehand; other memories may refuse a
    # row.
    monkeypatch.setattr(engine._context, "decode_rows", full_for_sequence_0)
    result = engine.run(Plan(id=2, decode_rounds=5))

    assert line(result, 2).state is JobState.CONTEXT_FULL
    assert (ids(result, 3), line(result, 3).state) == (expected[1:], JobState.RUNNING)
    assert result.positions == ((0, len(PROMPT_A)), (2, len(PROMPT_B) + 5))


def test_a_row_the_engine_refuses_is_an_error_of_its_job(engine):
    engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A), admit(2, 1, PROMPT_B)), prefill=((1, 99), (2, 99))))
    # Something removes cells behind the job's back: the next row is no longer the memory's next position.
    engine._context.trim(0, 30)

    result = engine.run(Plan(id=2, decode_rounds=4))

    assert line(result, 1).state is JobState.ERROR
    assert (len(ids(result, 2)), line(result, 2).state) == (4, JobState.RUNNING)
    assert result.positions == ((0, 0), (1, len(PROMPT_B) + 4))


# -- draws ------------------------------------------------------------------------------------------


def test_seeded_draws_do_not_depend_on_how_the_reply_is_cut(engine):
    whole = reply(engine, 1, 0, PROMPT_A, limit=40, temperature=0.9, seed=11)
    half, rest = whole[:17], []

    # Cut after 17 tokens and continued on another sequence, as after a kill; beside a neighbour; a token a
    # plan.
    stream = PROMPT_A + half
    engine.run(
        Plan(
            id=1,
            admit=(
                admit(2, 2, stream, temperature=0.9, seed=11, limit=23),
                admit(3, 1, PROMPT_B, temperature=0.9, seed=11),
            ),
        )
    )
    for step in range(40):
        result = engine.run(Plan(id=2 + step, prefill=((2, 20), (3, 20)), decode_rounds=1))
        rest += [token for entry in result.jobs if entry.job == 2 for token in ids(result, 2)]

    assert half + rest == whole


def test_seeds_draw_differently_and_greedy_does_not(engine):
    replies = [
        reply(engine, job, 0, PROMPT_A, limit=12, temperature=temperature, seed=job)
        for job, temperature in ((1, 0.9), (2, 0.9), (3, 0.0), (4, 0.0))
    ]

    assert replies[0] != replies[1]
    assert replies[2] == replies[3]


# -- load -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flash_attn", "kv_type"), [("on", "f16"), ("on", "q8_0"), ("off", "f32"), ("auto", "bf16")]
)
def test_every_kernel_and_kv_type_loads_and_answers(tiny_model, flash_attn, kv_type):
    # A quantized block holds 32 values and the tiny heads are 16 wide: llama.cpp refuses that pair by name.
    if kv_type == "q8_0":
        with pytest.raises(ModelError) as refused:
            Engine.open(load(tiny_model, flash_attn=flash_attn, kv_type=kv_type))
        assert refused.value.kind == "engine"
        return
    engine = Engine.open(load(tiny_model, flash_attn=flash_attn, kv_type=kv_type))
    try:
        assert len(reply(engine, 1, 0, PROMPT_A, limit=5)) == 5
    finally:
        engine.close()


def test_n_ctx_0_takes_what_the_model_was_trained_with(tiny_model):
    engine = Engine.open(load(tiny_model, n_ctx=0, n_seq=1))
    try:
        assert engine.ready.n_ctx == 4096
    finally:
        engine.close()


def test_a_context_that_cannot_fit_is_refused_with_its_size(tiny_model):
    with pytest.raises(ModelError, match="MiB of KV cache") as refused:
        Engine.open(load(tiny_model, n_ctx=1 << 30))

    assert refused.value.kind == "memory"


def test_a_context_of_more_cells_than_the_engine_counts_is_refused(tiny_model, monkeypatch):
    monkeypatch.setattr("superfluid.worker.llama.context.available_bytes", lambda: None)

    with pytest.raises(ModelError, match="more than the engine can count"):
        Engine.open(load(tiny_model, n_ctx=1 << 30))


def test_a_context_that_shares_its_cells_is_refused_at_the_start(tiny_model, monkeypatch):
    """Field case F27: what copies of a part mean, and whether they abort the process, depends on how the library was
    asked for its memory. What this is written for is asserted before the first row (`test_moves` copies parts)."""
    make = lib.llama_init_from_model

    def unified(model, params):
        params.kv_unified = True
        return make(model, params)

    monkeypatch.setattr(lib, "llama_init_from_model", unified)

    with pytest.raises(ModelError, match="shares one KV buffer between sequences") as refused:
        Engine.open(load(tiny_model))
    assert refused.value.kind == "engine"


def test_progress_of_loading_rises_to_the_whole(tiny_model):
    seen = []
    Engine.open(load(tiny_model), seen.append).close()

    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
