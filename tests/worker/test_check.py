from dataclasses import replace

import pytest

from superfluid.core.plan import JobResult, JobState, Plan, Result
from superfluid.worker.check import check_result, still_running
from superfluid.worker.messages import MessageError, Progress, Ready
from tests.worker.builders import admit, pack

READY = Ready(
    n_vocab=260,
    n_ctx=512,
    n_ctx_train=4096,
    n_seq=6,
    bytes_per_token=1,
    description="",
    library="",
    threads=1,
)
PLAN = Plan(id=4, admit=(admit(2, 1, [1]),), prefill=((3, 9),), decode_rounds=2, retire=(1,))
LINE = JobResult(job=2, prefilled=1, tokens=pack([1, 2, 259]), state=JobState.RUNNING)
GOOD = Result(plan_id=4, jobs=(LINE,), positions=((5, 512),))
RUNNING = frozenset({1, 3})


def test_an_honest_result_passes():
    assert check_result(PLAN, GOOD, READY, RUNNING) is GOOD


@pytest.mark.parametrize(
    "answer",
    [
        Progress(fraction=0.5),
        replace(GOOD, plan_id=5),
        replace(GOOD, jobs=(replace(LINE, job=9),)),
        replace(GOOD, jobs=(LINE, LINE)),
        replace(GOOD, jobs=(replace(LINE, tokens=pack([260])),)),
        replace(GOOD, jobs=(replace(LINE, tokens=pack([1, 2, 3, 4])),)),
        replace(GOOD, positions=((6, 0),)),
        replace(GOOD, positions=((0, 513),)),
    ],
    ids=[
        "no result", "other plan", "stranger's job", "job twice", "no such token", "too many tokens",
        "no such sequence", "no such cell",
    ],
)  # fmt: skip
def test_anything_else_is_garbage(answer):
    with pytest.raises(MessageError):
        check_result(PLAN, answer, READY, RUNNING)


def test_who_runs_after_a_result():
    ended = replace(GOOD, jobs=(replace(LINE, state=JobState.END),))

    assert still_running(PLAN, GOOD, RUNNING) == {2, 3}
    assert still_running(PLAN, ended, RUNNING) == {3}
