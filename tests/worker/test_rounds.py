"""Decode rounds through the real llama.cpp: held jobs, exact rows, guesses; what they hold afterwards."""

from contextlib import closing

import pytest

from superfluid.core.limits import EXACT_DUMMIES, MAX_DRAFT
from superfluid.core.plan import JobState, Plan
from superfluid.worker.engine import Engine
from superfluid.worker.llama.context import Outcome
from tests.tiny_gguf import IM_END, N_VOCAB, write_tiny_gguf
from tests.worker.builders import PROMPT_A, PROMPT_B, admit, ids, line, load, pack, reply

ROWS = 4
CONTEXT = 256


@pytest.fixture
def padded(tiny_model):
    """Exact rows in fours; a micro-batch holds those of two lanes."""
    with closing(Engine.open(load(tiny_model, n_ctx=CONTEXT, n_ubatch=11, exact_rows=ROWS))) as engine:
        yield engine


@pytest.fixture(params=["llama", "gemma3"])
def any_padded(request, tmp_path):
    """The same for every kind of model that can be cut, with replies that only a limit ends."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", architecture=request.param, endless=True)
    with closing(Engine.open(load(path, exact_rows=ROWS))) as engine:
        yield engine


@pytest.fixture
def calls(padded, monkeypatch):
    """The rows of each call of the engine, as (sequence, position, wanted)."""
    seen = []
    decode = padded._context._decode

    def note(n):
        batch = padded._context._batch
        seen.append(list(zip(batch.seqs[:n], batch.positions[:n], batch.outputs[:n], strict=True)))
        return decode(n)

    monkeypatch.setattr(padded._context, "_decode", note)
    return seen


@pytest.fixture
def guesses(monkeypatch):
    """Make drafters guess what a test says, whatever it would cost."""
    made = []

    def arrange(guess):
        def propose(drafter, most):
            made.append(guess(drafter)[:most])
            return made[-1]

        monkeypatch.setattr("superfluid.core.draft.Drafter.propose", propose)
        return made

    return arrange


def run_two(engine, first, second, *, rounds, plan_id=1):
    """Admit two jobs, prefill both, decode."""
    plan = Plan(
        id=plan_id, admit=(first, second), prefill=((first.job, 999), (second.job, 999)), decode_rounds=rounds
    )
    return engine.run(plan)


# -- held jobs --------------------------------------------------------------------------------------


def test_a_held_job_decodes_nothing_and_goes_on_later(engine):
    whole = reply(engine, 1, 0, PROMPT_A, limit=12)
    run_two(engine, admit(2, 0, PROMPT_A, limit=12), admit(3, 1, PROMPT_B), rounds=3)

    held = engine.run(Plan(id=2, decode_rounds=4, hold=(2,)))
    after = engine.run(Plan(id=3, decode_rounds=8))

    assert [entry.job for entry in held.jobs] == [3]
    assert held.positions == ((1, len(PROMPT_B) + 7),)
    assert ids(after, 2) == whole[4:]


def test_a_plan_that_holds_all_decodes_nothing(engine):
    run_two(engine, admit(2, 0, PROMPT_A), admit(3, 1, PROMPT_B), rounds=1)

    result = engine.run(Plan(id=2, decode_rounds=4, hold=(2, 3)))

    assert (result.jobs, result.decode_steps, result.positions) == ((), 0, ())


# -- exact rows -------------------------------------------------------------------------------------


def test_rows_of_an_exact_job_are_filled_up_and_the_dummies_cut_off_again(padded, calls):
    first = padded.run(Plan(id=1, admit=(admit(1, 2, PROMPT_A[:10], exact=True),), prefill=((1, 99),)))
    assert first.positions == ((2, 10),)
    second = padded.run(Plan(id=2, decode_rounds=2))

    # Chunks of at most a micro-batch, the last one filled up; then the token and three dummies behind it.
    assert [len(call) for call in calls] == [8, 4, 4, 4]
    assert [position for _, position, _ in calls[1]] == [8, 9, 10, 11]
    assert [wanted for _, _, wanted in calls[1]] == [0, 1, 0, 0]
    assert [position for _, position, _ in calls[3]] == [11, 12, 13, 14]
    assert [wanted for _, _, wanted in calls[3]] == [1, 0, 0, 0]
    assert second.positions == ((2, 12),)


def test_a_prefill_of_too_few_rows_still_gets_on(padded, calls):
    plan = Plan(id=1, admit=(admit(1, 0, PROMPT_A[:14], exact=True),), prefill=((1, 3),))
    short = padded.run(plan)
    longer = padded.run(Plan(id=2, prefill=((1, 7),)))

    assert (line(short, 1).prefilled, short.positions) == (3, ((0, 3),))
    # Seven are a whole chunk of four, and three that are filled up.
    assert (line(longer, 1).prefilled, longer.positions) == (7, ((0, 10),))
    assert [len(call) for call in calls] == [4, 4, 4]


def test_exact_and_plain_jobs_never_share_a_call(padded, calls):
    admits = tuple(
        admit(job, seq, PROMPT_A[:8], exact=exact)
        for job, seq, exact in ((1, 0, True), (2, 1, False), (3, 2, True), (4, 3, False), (5, 4, True))
    )
    padded.run(Plan(id=1, admit=admits, prefill=tuple((job, 8) for job in (1, 2, 3, 4, 5))))
    calls.clear()

    result = padded.run(Plan(id=2, decode_rounds=1))

    # Two exact lanes of four rows fit a micro-batch of eleven, a third does not.
    sequences = [[int(seq) for seq, _, _ in call] for call in calls]
    assert sequences == [[1, 3], [0] * ROWS + [2] * ROWS, [4] * ROWS]
    assert result.positions == tuple((seq, 9) for seq in range(5))
    assert (result.decode_steps, result.decode_rows) == (3, 5)


def test_with_one_row_exact_jobs_are_computed_like_any_other(engine, monkeypatch):
    seen = []
    decode = engine._context.decode_rows
    monkeypatch.setattr(
        engine._context,
        "decode_rows",
        lambda seqs, *rest, **how: seen.append((seqs, how)) or decode(seqs, *rest, **how),
    )

    run_two(engine, admit(1, 0, PROMPT_A, exact=True), admit(2, 1, PROMPT_B), rounds=1)

    assert seen == [([0, 1], {"exact": False})]


def test_an_exact_reply_is_the_same_beside_others_and_in_any_chunks(any_padded):
    alone = reply(any_padded, 1, 0, PROMPT_A, limit=30, exact=True, temperature=0.9)
    run_two(
        any_padded,
        admit(2, 1, PROMPT_A, limit=30, exact=True, temperature=0.9),
        admit(3, 2, PROMPT_B),
        rounds=0,
    )
    beside = any_padded.run(Plan(id=2, decode_rounds=29))
    for step in range(20):
        new = (admit(4, 4, PROMPT_A, limit=30, exact=True, temperature=0.9),) if step == 0 else ()
        cut = any_padded.run(Plan(id=10 + step, admit=new, prefill=((4, 3),), hold=(3,)))
        assert cut.positions == ((4, 3 * step + 3),)
    cut = any_padded.run(Plan(id=99, decode_rounds=29, hold=(3,)))

    assert ids(beside, 2) == alone[1:]
    assert ids(cut, 4) == alone[1:]


def test_an_exact_job_ends_where_its_dummies_would_not_fit(padded, calls):
    """Always there, so that where a reply ends does not depend on how it was computed."""
    room = CONTEXT - EXACT_DUMMIES
    long = [i % 250 for i in range(room - 2)]
    plan = Plan(id=1, admit=(admit(1, 0, long, exact=True),), prefill=((1, 999),), decode_rounds=9)

    result = padded.run(plan)

    assert (len(ids(result, 1)), line(result, 1).state) == (3, JobState.CONTEXT_FULL)
    assert result.positions == ((0, room),)
    assert max(position for call in calls for _, position, _ in call) == room + ROWS - 2


@pytest.mark.parametrize(("exact", "fits"), [(True, CONTEXT - EXACT_DUMMIES), (False, CONTEXT)])
def test_a_prompt_that_leaves_no_room_for_dummies_is_refused(padded, exact, fits):
    for job, n, state in ((1, fits, JobState.CONTEXT_FULL), (2, fits + 1, JobState.CONTEXT_FULL)):
        prompt = [i % 250 for i in range(n)]
        result = padded.run(
            Plan(id=job, admit=(admit(job, 0, prompt, exact=exact),), prefill=((job, 999),), retire=())
        )
        assert line(result, job).state is state
        assert len(ids(result, job)) == (n == fits)


def test_a_call_of_exact_rows_that_fails_leaves_no_dummies(padded, monkeypatch):
    expected = reply(padded, 1, 1, PROMPT_B, limit=9, exact=True)
    run_two(
        padded,
        admit(2, 0, PROMPT_A, exact=True),
        admit(3, 1, PROMPT_B, limit=9, exact=True),
        rounds=2,
        plan_id=2,
    )
    decode = padded._context._decode
    failures = iter([True])

    def stored_and_then_failed(n):
        outcome = decode(n)
        return Outcome.FAILED if next(failures, False) else outcome

    monkeypatch.setattr(padded._context, "_decode", stored_and_then_failed)
    result = padded.run(Plan(id=3, decode_rounds=6))
    padded.run(Plan(id=4, retire=(2,)))

    # Both were tried again, each in a call of its own, and with all its rows.
    assert ids(result, 3) == expected[3:]
    assert result.positions == ((0, len(PROMPT_A) + 8), (1, len(PROMPT_B) + 8))


def test_an_exact_prefill_that_is_cut_leaves_no_dummies(padded, monkeypatch):
    expected = reply(padded, 1, 0, PROMPT_A[:30], limit=6, exact=True)
    decode = padded._context._decode
    outcomes = iter([Outcome.OK, Outcome.ABORTED, Outcome.OK, Outcome.ABORTED])

    def stored_and_then_aborted(n):
        decode(n)
        return next(outcomes, Outcome.OK)

    monkeypatch.setattr(padded._context, "_decode", stored_and_then_aborted)
    new = (admit(2, 1, PROMPT_A[:30], limit=6, exact=True),)
    first = padded.run(Plan(id=1, admit=new, prefill=((2, 99),)))
    second = padded.run(Plan(id=2, prefill=((2, 99),)))
    third = padded.run(Plan(id=3, prefill=((2, 99),), decode_rounds=9))

    # The rows of the chunk that was cut are there; the prompt's last row is not, since its logits were not seen.
    assert (first.positions, second.positions) == (((1, 16),), ((1, 29),))
    assert ids(third, 2) == expected


# -- guesses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_right_and_wrong_guesses_change_nothing_but_the_number_of_calls(
    any_padded, guesses, exact, temperature
):
    how = {"limit": 60, "exact": exact, "temperature": temperature}
    plain = reply(any_padded, 1, 0, PROMPT_A, **how)
    script = iter(range(10**6))

    def sometimes_right(drafter):
        done = len(drafter._lookup) - len(PROMPT_A)
        turn = next(script) % 4
        right = plain[done : done + 6]
        wrong = [(token + 1) % 250 for token in right]
        return (right, wrong, right[:2] + wrong[2:], [])[turn]

    made = guesses(sometimes_right)
    result = any_padded.run(
        Plan(
            id=2,
            admit=(admit(2, 1, PROMPT_A, draft=True, **how),),
            prefill=((2, 999),),
            decode_rounds=60,
        )
    )

    assert ids(result, 2) == plain
    assert result.positions == ((1, len(PROMPT_A) + len(plain) - 1),)
    assert result.drafted == sum(map(len, made)) > 0
    assert 0 < result.accepted < result.drafted
    assert result.decode_rows == len(plain) - 1
    assert result.decode_steps == result.decode_rows - result.accepted


def test_rows_with_guesses_are_filled_up_too(padded, calls, guesses):
    guesses(lambda drafter: [1, 2, 3, 4])
    new = admit(1, 0, PROMPT_A[:8], exact=True, draft=True)
    padded.run(Plan(id=1, admit=(new,), prefill=((1, 8),)))
    calls.clear()

    padded.run(Plan(id=2, decode_rounds=1))

    assert [wanted for _, _, wanted in calls[0]] == [1] * 5 + [0] * 3


def test_a_guess_never_passes_the_limit(engine, guesses):
    plain = reply(engine, 1, 0, PROMPT_A, limit=7)
    made = guesses(lambda drafter: plain[len(drafter._lookup) - len(PROMPT_A) :] + [1] * 9)

    assert reply(engine, 2, 1, PROMPT_A, limit=7, draft=True) == plain
    assert made == [plain[1:6]]


@pytest.mark.parametrize("exact", [False, True])
def test_a_guess_never_passes_the_context(padded, guesses, exact):
    made = guesses(lambda drafter: [1] * 9)
    room = CONTEXT - (EXACT_DUMMIES if exact else 0)
    new = admit(1, 0, [i % 250 for i in range(room - 2)], draft=True, exact=exact)

    result = padded.run(Plan(id=1, admit=(new,), prefill=((1, 999),), decode_rounds=9))

    assert line(result, 1).state is JobState.CONTEXT_FULL
    assert (len(ids(result, 1)), result.positions) == (3, ((0, room),))
    assert made[0] == [1]


def test_nothing_is_said_after_an_end_among_the_guesses(engine, guesses):
    how = {"limit": 400, "temperature": 2.0, "seed": 3}
    plain = reply(engine, 1, 0, PROMPT_A, **how)
    assert plain[-1] >= IM_END - 2
    guesses(lambda drafter: [*plain[len(drafter._lookup) - len(PROMPT_A) :][:9], 5, 6])

    plan = Plan(
        id=2, admit=(admit(2, 1, PROMPT_A, draft=True, **how),), prefill=((2, 999),), decode_rounds=400
    )
    result = engine.run(plan)

    assert (ids(result, 2), line(result, 2).state) == (plain, JobState.END)
    assert result.positions == ((1, len(PROMPT_A) + len(plain) - 1),)


def test_jobs_that_decode_together_are_not_guessed_for(engine, guesses):
    made = guesses(lambda drafter: [1])
    run_two(engine, admit(1, 0, PROMPT_A, draft=True), admit(2, 1, PROMPT_B, draft=True), rounds=3)
    assert made == []

    engine.run(Plan(id=2, decode_rounds=1, hold=(2,)))
    assert made == [[1]]


def test_a_job_that_may_not_be_guessed_for_is_not(engine, guesses):
    made = guesses(lambda drafter: [1])
    reply(engine, 1, 0, PROMPT_A, limit=5)

    assert made == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_failed_call_with_guesses_is_made_again_without(engine, guesses, monkeypatch, stored):
    plain = reply(engine, 1, 0, PROMPT_A, limit=12)
    guesses(lambda drafter: [1, 2, 3])
    verify = engine._context.decode_guesses

    def fail(*args, **how):
        if stored:
            verify(*args, **how)
        return Outcome.FAILED if stored else Outcome.FULL

    monkeypatch.setattr(engine._context, "decode_guesses", fail)
    plan = Plan(
        id=2, admit=(admit(2, 1, PROMPT_A, limit=12, draft=True),), prefill=((2, 99),), decode_rounds=11
    )
    result = engine.run(plan)

    assert ids(result, 2) == plain
    assert (result.drafted, result.decode_steps) == (0, 11)


def test_a_stop_in_a_call_with_guesses_leaves_none(engine, guesses, monkeypatch):
    guesses(lambda drafter: [1, 2, 3])
    verify = engine._context.decode_guesses
    monkeypatch.setattr(
        engine._context, "decode_guesses", lambda *args, **how: (verify(*args, **how), Outcome.ABORTED)[1]
    )
    plan = Plan(id=2, admit=(admit(2, 1, PROMPT_A, draft=True),), prefill=((2, 99),), decode_rounds=11)

    result = engine.run(plan)

    assert result.interrupted
    assert (len(ids(result, 2)), result.positions) == (1, ((1, len(PROMPT_A)),))


def test_broken_logits_among_guesses_end_the_job(engine, guesses, monkeypatch):
    guesses(lambda drafter: [1, 2, 3])
    logits = engine._context.logits
    monkeypatch.setattr(engine._context, "logits", lambda row: logits(row) * (float("nan") if row < 3 else 1))
    new = admit(1, 0, PROMPT_A, draft=True)
    result = engine.run(Plan(id=1, admit=(new,), prefill=((1, 999),), decode_rounds=3))

    assert (line(result, 1).state, len(ids(result, 1))) == (JobState.ERROR, 1)
    assert result.positions == ((0, 0),)


def test_guesses_come_from_the_history_that_a_job_was_admitted_with(engine):
    text = [(5 * i) % 240 for i in range(60)]
    engine.run(Plan(id=1, admit=(admit(1, 0, text),), prefill=((1, 60),)))
    new = admit(2, 0, text[40:], start=40, history=pack(text[:40]), draft=True)
    engine.run(Plan(id=2, retire=(1,), admit=(new,)))
    (job,) = engine._jobs

    assert job.drafter._lookup.guess(3) == [60, 65, 70]
    assert list(job.drafter._lookup._ids) == text


def test_a_history_with_an_id_outside_the_vocabulary_is_refused(engine):
    new = admit(1, 0, [1], start=0, history=pack([N_VOCAB]), draft=True)

    result = engine.run(Plan(id=1, admit=(new,), prefill=((1, 1),)))

    assert line(result, 1).state is JobState.ERROR


def test_a_model_that_cannot_be_cut_is_neither_padded_nor_guessed_for(tiny_recurrent_model):
    with closing(Engine.open(load(tiny_recurrent_model, exact_rows=ROWS))) as engine:
        refused = engine.run(Plan(id=1, admit=(admit(1, 0, PROMPT_A, exact=True),), prefill=((1, 99),)))
        engine.run(Plan(id=2, admit=(admit(2, 0, PROMPT_A, draft=True),)))

        assert line(refused, 1).state is JobState.ERROR
        assert next(iter(engine._jobs)).drafter is None


def test_a_small_micro_batch_still_holds_the_rows_of_an_exact_lane(tiny_model):
    with closing(Engine.open(load(tiny_model, n_batch=2, n_ubatch=2, exact_rows=8))) as engine:
        exact = reply(engine, 1, 0, PROMPT_A, limit=9, exact=True)
        guessed = reply(engine, 2, 1, PROMPT_A, limit=9, exact=True, draft=True)

        assert len(exact) == 9
        assert guessed == exact
        assert engine._context.chunk_rows(exact=True) == 8
        assert MAX_DRAFT > 8
