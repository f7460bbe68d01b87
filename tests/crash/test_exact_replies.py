"""Exact replies on the real model: the bounded form of what ``benchmarks/exactness.py`` does with forty sessions."""

import os
import random
from functools import partial

import pytest

from benchmarks.daemon import serving
from benchmarks.exactness import QUICK, Options, control_outcome, exact_outcomes, make_cases
from benchmarks.prompts import Prompts
from superfluid.worker.llama.models import EMBEDDED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONTEXT = QUICK.longest + QUICK.reply + 64
SERVE = partial(serving, EMBEDDED, "--threads", "1", "--max-context", str(CONTEXT))

CONTROLS = 5
"""Times that a control may find no difference: whether bits reach a token is up to the prompts."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Where both tests keep what is measured of the model; whoever runs tests again and again may keep it longer."""
    return os.environ.get("SUPERFLUID_CACHE") or str(tmp_path_factory.mktemp("measured"))


@pytest.fixture
def prompts(measured, monkeypatch):
    monkeypatch.setenv("SUPERFLUID_CACHE", measured)
    seed = random.getrandbits(32)
    print(f"seed of the prompts: {seed}")
    made = Prompts(EMBEDDED, random.Random(seed))
    yield made
    made.close()


def test_a_reply_is_the_same_whatever_happens(prompts):
    cases = make_cases(QUICK, prompts)

    reference, outcomes = exact_outcomes(SERVE, cases, prompts)

    # Everything happened that is meant to happen, ...
    by_name = {outcome.name: outcome.replies for outcome in outcomes}
    assert all(tokens > 0 for tokens in by_name["from the cache"].warm)
    assert any(tokens > 0 for tokens in by_name["parked, and a restart"].warm)
    for name in ("cut and continued", "worker kill -9", "daemon kill -9", "parked, and a restart"):
        assert by_name[name].disturbed > 0, name
    assert sum(map(len, reference.ids)) > len(cases) * QUICK.reply // 2
    # ... and no reply shows it.
    assert {outcome.name: outcome.differs for outcome in outcomes if outcome.differs} == {}


def test_without_exact_mode_a_reply_shows_what_happened(prompts):
    """The control: if this did not differ, the sameness above would prove nothing."""
    options = Options(sessions=4, shortest=60, longest=200, reply=48)

    assert any(control_outcome(SERVE, make_cases(options, prompts), prompts).differs for _ in range(CONTROLS))
