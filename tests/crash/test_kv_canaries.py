"""No session's KV is ever served to another: the bounded form of what ``benchmarks/canaries.py`` does at length."""

import random
from functools import partial

import pytest

from benchmarks.canaries import walk
from benchmarks.daemon import serving
from superfluid.worker.llama.models import EMBEDDED

CONVERSATIONS = 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_code_word_stays_in_its_session(monkeypatch, tmp_path):
    monkeypatch.setenv("SUPERFLUID_CACHE", str(tmp_path / "measured"))
    seed = random.getrandbits(32)
    print(f"seed of the conversations: {seed}")

    found = walk(partial(serving, EMBEDDED, "--threads", "1"), conversations=CONVERSATIONS, seed=seed)

    # KV went through every place, was given up and came back, and the model does say what it was told: ...
    happened = found.metrics
    assert found.told > found.replies // 4
    assert found.edits > 0
    assert found.forks > 0
    assert found.restarts > 0
    for place in ("pool", "host", "park"):
        assert happened[f'resumes_total{{from="{place}"}}'] > 0, place
    for place in ("pool", "host"):
        assert happened[f'evictions_total{{place="{place}"}}'] > 0, place
    # ... but never to anybody else.
    assert found.leaks == []
    assert found.rewritten == []
    assert found.untrue == []
