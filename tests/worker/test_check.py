from dataclasses import replace

import pytest

from superfluid.core.plan import JobResult, JobState, Plan, Result
from superfluid.worker.check import check_result, still_running
from superfluid.worker.messages import MessageError, Progress
from tests.worker.builders import READY, admit, copy, pack, restore, save

PLAN = Plan(id=4, admit=(admit(2, 1, [1]),), prefill=((3, 9), (2, 1)), decode_rounds=2, retire=(1,))
LINE = JobResult(job=2, prefilled=1, tokens=pack([1, 2, 259]), state=JobState.RUNNING)
GOOD = Result(plan_id=4, jobs=(LINE,), positions=((5, 512),), prefill_rows=1, decode_steps=2, decode_rows=2)
RUNNING = frozenset({1, 3})
COLD = JobResult(job=2, prefilled=0, tokens=b"", state=JobState.COLD)
NOTHING = Result(plan_id=4, jobs=(), positions=())


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        NOTHING,
        replace(NOTHING, jobs=(COLD,)),
        replace(NOTHING, jobs=(replace(LINE, job=3, prefilled=9),), prefill_rows=9),
        replace(NOTHING, jobs=(replace(LINE, job=3, prefilled=0, tokens=b"", state=JobState.ERROR),)),
        replace(GOOD, decode_steps=12, decode_rows=12),
    ],
)
def test_an_honest_result_passes(answer):
    assert check_result(PLAN, answer, READY, RUNNING) is answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Progress(fraction=0.5), id="no result"),
        pytest.param(replace(GOOD, plan_id=5), id="other plan"),
        pytest.param(replace(GOOD, jobs=(replace(LINE, job=9),)), id="stranger's job"),
        pytest.param(
            replace(NOTHING, jobs=(replace(COLD, job=1, state=JobState.CANCELLED),)), id="retired job"
        ),
        pytest.param(replace(GOOD, jobs=(LINE, LINE), prefill_rows=2), id="job twice"),
        pytest.param(replace(GOOD, jobs=(replace(LINE, tokens=pack([260])),)), id="no such token"),
        pytest.param(replace(GOOD, jobs=(replace(LINE, tokens=pack([1, 2, 3, 4])),)), id="too many tokens"),
        pytest.param(
            replace(GOOD, jobs=(replace(LINE, prefilled=0),), prefill_rows=0), id="a first token of nothing"
        ),
        pytest.param(replace(GOOD, jobs=(replace(LINE, prefilled=2),), prefill_rows=2), id="too many rows"),
        pytest.param(
            replace(GOOD, jobs=(replace(LINE, job=3, prefilled=10),), prefill_rows=10), id="rows of another"
        ),
        pytest.param(replace(NOTHING, jobs=(replace(COLD, job=3),)), id="cold without admission"),
        pytest.param(replace(GOOD, jobs=(replace(LINE, state=JobState.COLD),)), id="cold with tokens"),
        pytest.param(replace(NOTHING, jobs=(replace(COLD, state=JobState.END),)), id="end without token"),
        pytest.param(replace(NOTHING, jobs=(replace(COLD, state=JobState.LIMIT),)), id="limit without token"),
        pytest.param(replace(GOOD, positions=((6, 0),)), id="no such sequence"),
        pytest.param(replace(GOOD, positions=((0, 513),)), id="no such cell"),
        pytest.param(replace(GOOD, positions=((0, 5), (0, 6))), id="sequence twice"),
        pytest.param(replace(GOOD, prefill_rows=2), id="rows that no job got"),
        pytest.param(replace(GOOD, decode_rows=13), id="more rows than rounds"),
        pytest.param(replace(GOOD, decode_steps=3), id="more steps than rows"),
    ],
)
def test_anything_else_is_garbage(answer):
    with pytest.raises(MessageError):
        check_result(PLAN, answer, READY, RUNNING)


SAVING = Plan(id=4, moves=(save(0, 8, 100), save(1, 9, 5), copy(0, 2, 3), restore(3, 4, 7)))
SAVED = replace(NOTHING, saved=((8, 100, 2000), (9, 0, 0)))


@pytest.mark.parametrize(
    "saved", [SAVED.saved, ((9, 5, 5), (8, 0, 0)), ((9, 0, 0), (8, 0, 0)), ((8, 100, 1 << 20), (9, 0, 0))]
)
def test_an_honest_line_of_every_save_passes(saved):
    answer = replace(SAVED, saved=saved)

    assert check_result(SAVING, answer, READY, frozenset()) is answer


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param((), id="none"),
        pytest.param(((8, 100, 2000),), id="one is missing"),
        pytest.param(((8, 100, 2000), (9, 0, 0), (10, 1, 1)), id="one that was not asked for"),
        pytest.param(((8, 100, 2000), (9, 0, 0), (9, 0, 0)), id="one twice"),
        pytest.param(((8, 100, 2000), (3, 5, 5)), id="one that was loaded"),
        pytest.param(((8, 101, 2000), (9, 0, 0)), id="more positions"),
        pytest.param(((8, 99, 2000), (9, 0, 0)), id="fewer positions"),
        pytest.param(((8, 100, 0), (9, 0, 0)), id="positions of no bytes"),
        pytest.param(((8, 100, 2000), (9, 0, 7)), id="bytes of no positions"),
        pytest.param(((8, 100, 2 * 101 + (1 << 20) + 1), (9, 0, 0)), id="absurd bytes"),
    ],
)
def test_a_line_of_a_save_that_cannot_be_is_garbage(saved):
    with pytest.raises(MessageError, match="entry"):
        check_result(SAVING, replace(SAVED, saved=saved), READY, frozenset())


def test_who_runs_after_a_result():
    ended = replace(GOOD, jobs=(replace(LINE, state=JobState.END),))

    assert still_running(PLAN, GOOD, RUNNING) == {2, 3}
    assert still_running(PLAN, ended, RUNNING) == {3}


def test_a_job_that_is_retired_and_admitted_by_one_plan_runs_on():
    """Background work was paused while nothing else ran, and goes on."""
    plan = replace(PLAN, admit=(admit(1, 1, [1]),), prefill=((1, 1),))
    first = replace(GOOD, jobs=(replace(LINE, job=1),))
    assert check_result(plan, first, READY, RUNNING) is first

    running = still_running(plan, first, RUNNING)

    assert running == {1, 3}
    later = replace(
        GOOD, plan_id=5, jobs=(replace(LINE, job=1, prefilled=0, tokens=pack([7])),), prefill_rows=0
    )
    assert check_result(Plan(id=5, decode_rounds=2), later, READY, running) is later
