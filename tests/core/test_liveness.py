import pytest

from superfluid.core.limits import WORKER_SAMPLE_SECONDS, WORKER_SILENT_SECONDS
from superfluid.core.liveness import Sample, Watch, judge, parse_stat


def verdicts(samples):
    """The reason after each sample, taken at the usual distance."""
    watch = Watch(busy_at=0.0)
    reasons = []
    for index, (state, ticks) in enumerate(samples):
        at = (index + 1) * WORKER_SAMPLE_SECONDS
        watch, reason = judge(watch, Sample(at=at, state=state, cpu_ticks=ticks))
        reasons.append(reason)
    return reasons


def test_a_process_that_computes_lives():
    assert verdicts([("R", tick) for tick in range(500)]) == [None] * 500


def test_stopped_twice_in_a_row_is_a_hang():
    assert [bool(r) for r in verdicts([("R", 1), ("T", 1), ("T", 1)])] == [False, False, True]


def test_stopped_for_a_blink_is_none():
    assert verdicts([("T", 1), ("S", 1), ("T", 1), ("R", 2)]) == [None] * 4


def test_a_traced_process_does_not_count_as_stopped():
    assert verdicts([("t", 1)] * 4) == [None] * 4


def test_silence_is_a_hang_only_after_its_time():
    before = int(WORKER_SILENT_SECONDS / WORKER_SAMPLE_SECONDS)
    reasons = verdicts([("S", 5)] * (before + 1))

    assert reasons[:-1] == [None] * before
    assert "no CPU time" in reasons[-1]


@pytest.mark.parametrize("state", ["R", "D"])
def test_starved_of_cpu_or_waiting_for_a_disk_is_no_hang(state):
    assert verdicts([(state, 5)] * 500) == [None] * 500


def test_any_progress_starts_the_silence_anew():
    almost = int(WORKER_SILENT_SECONDS / WORKER_SAMPLE_SECONDS) - 1
    quiet = [("S", 5)] * almost

    assert verdicts([*quiet, ("S", 6), *quiet]) == [None] * (2 * almost + 1)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_an_ended_process_is_not_hung_because_its_last_answer_may_still_be_on_its_way(state):
    assert verdicts([("R", 1), (state, 1), (state, 1)]) == [None] * 3


def test_parse_stat_counts_from_the_last_parenthesis():
    text = "4242 (a (b) c) S " + " ".join(str(n) for n in range(4, 53))

    assert parse_stat(text, at=1.5) == Sample(at=1.5, state="S", cpu_ticks=14 + 15)


@pytest.mark.parametrize("text", ["", "4242 (x)", "no parenthesis at all " * 10, "1 (x) S 4 5"])
def test_parse_stat_refuses_other_texts(text):
    with pytest.raises(ValueError, match="proc"):
        parse_stat(text, at=0)
