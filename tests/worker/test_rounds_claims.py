"""What a worker may claim of guesses."""

from dataclasses import replace

import pytest

from superfluid.core.limits import MAX_DRAFT
from superfluid.core.plan import JobResult, JobState, Plan, Result
from superfluid.worker.check import check_result
from superfluid.worker.messages import MessageError
from tests.worker import builders
from tests.worker.builders import pack

READY = replace(builders.READY, n_seq=2)
PLAN = Plan(id=4, decode_rounds=2)
LINE = JobResult(job=3, prefilled=0, tokens=pack(range(9)), state=JobState.RUNNING)
GOOD = Result(
    plan_id=4, jobs=(LINE,), positions=(), decode_steps=2, decode_rows=9, drafted=2 * MAX_DRAFT, accepted=7
)


def test_right_guesses_are_tokens_beyond_the_rounds():
    assert check_result(PLAN, GOOD, READY, frozenset({3})) is GOOD


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(replace(GOOD, accepted=6), id="more tokens than rounds and right guesses"),
        pytest.param(replace(GOOD, drafted=6), id="more right ones than guesses"),
        pytest.param(replace(GOOD, drafted=2 * MAX_DRAFT + 1), id="more guesses than calls can take"),
        pytest.param(replace(GOOD, decode_rows=12), id="more rows than tokens can be"),
    ],
)
def test_guesses_that_cannot_be_are_no_result(claim):
    with pytest.raises(MessageError):
        check_result(PLAN, claim, READY, frozenset({3}))
