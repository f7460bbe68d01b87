"""From metrics to what `superfluid top` shows, without a daemon and without a terminal."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.cli.top_model import WINDOW_SECONDS, History, Sample, histogram_since, parse, percentile
from superfluid.cli.top_screen import lines
from superfluid.sched.histogram import Histogram

TEXT = """\
# HELP superfluid_ticks_total Plans
# TYPE superfluid_ticks_total counter
superfluid_ticks_total 9
# TYPE superfluid_queue_depth gauge
superfluid_queue_depth{class="interactive"} 1
superfluid_queue_depth{class="agent"} 4
# TYPE superfluid_ttft_seconds histogram
superfluid_ttft_seconds_bucket{le="0.5"} 1
superfluid_ttft_seconds_bucket{le="+Inf"} 3
superfluid_ttft_seconds_count 3
superfluid_ttft_seconds_sum 2.5
"""


def sample(at, ttft=(), **values):
    return Sample(at=at, values={f"superfluid_{name}": value for name, value in values.items()}, ttft=ttft)


def test_the_daemons_text_is_read():
    found = parse(TEXT, 5.0)

    assert found.at == 5.0
    assert found.value("ticks_total") == 9
    assert found.value("queue_depth") == 5
    assert found.parts("queue_depth", ("interactive", "completion", "agent")) == {
        "interactive": 1,
        "completion": 0,
        "agent": 4,
    }
    assert found.ttft == ((0.5, 1.0), (float("inf"), 3.0))


def test_what_an_older_daemon_does_not_have_is_nothing():
    found = parse("", 0.0)

    assert found.value("pins_held") == 0
    assert found.parts("evictions_total", ("pool",)) == {"pool": 0}


def test_two_samples_are_a_rate():
    history = History()
    first = history.add(sample(10.0, prefill_tokens_total=100, decode_tokens_total=50))

    view = history.add(sample(12.0, prefill_tokens_total=1100, decode_tokens_total=150))

    assert (first.prefill_rate, first.decode_rate) == (0, 0)
    assert (view.prefill_rate, view.decode_rate) == (500, 50)


def test_samples_at_one_moment_have_no_rate():
    history = History()
    history.add(sample(10.0, prefill_tokens_total=100))

    assert history.add(sample(10.0, prefill_tokens_total=200)).prefill_rate == 0


def test_the_warm_share_is_of_the_last_minute():
    history = History()
    history.add(sample(0.0, warm_prefix_tokens_total=1000, prefill_tokens_total=0))
    history.add(sample(30.0, warm_prefix_tokens_total=1000, prefill_tokens_total=100))

    view = history.add(sample(31.0, warm_prefix_tokens_total=1300, prefill_tokens_total=100))
    later = history.add(
        sample(31.0 + WINDOW_SECONDS, warm_prefix_tokens_total=1300, prefill_tokens_total=100)
    )

    assert view.warm_share == 0.75
    assert later.warm_share is None, "nothing was asked for in that time"


def test_a_restarted_daemon_begins_anew():
    history = History()
    history.add(sample(0.0, ticks_total=100, decode_tokens_total=1000))

    view = history.add(sample(1.0, ticks_total=1, decode_tokens_total=10))

    assert view.decode_rate == 0
    assert history.add(sample(2.0, ticks_total=2, decode_tokens_total=30)).decode_rate == 20


def test_another_daemon_has_no_history():
    history = History()
    history.add(sample(0.0, decode_tokens_total=10))
    history.clear()

    assert history.add(sample(1.0, decode_tokens_total=500)).decode_rate == 0


INF = float("inf")


@pytest.mark.parametrize(
    ("cumulative", "share", "expected"),
    [
        ([], 0.5, None),
        ([(1.0, 0), (INF, 0)], 0.5, None),
        ([(1.0, 4), (INF, 4)], 0.5, 0.5),
        ([(1.0, 0), (2.0, 4), (INF, 4)], 0.5, 1.5),
        ([(1.0, 0), (2.0, 4), (INF, 4)], 1.0, 2.0),
        ([(1.0, 1), (2.0, 1), (INF, 2)], 0.95, 2.0),
    ],
)
def test_percentiles(cumulative, share, expected):
    assert percentile(cumulative, share) == expected


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=30), st.sampled_from([0.5, 0.95]))
def test_a_percentile_lies_in_the_bucket_of_the_true_one(values, share):
    bounds = (0.1, 1.0, 10.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    cumulative = [(float(bound), count) for bound, count in histogram.cumulative()]

    found = percentile(cumulative, share)

    true = sorted(values)[max(0, -(-int(share * 100) * len(values) // 100) - 1)]
    low = max((bound for bound in (0.0, *bounds) if bound < true), default=0.0)
    high = min((bound for bound in bounds if bound >= true), default=bounds[-1])
    assert low <= found <= high


def test_only_new_observations_count():
    first = ((0.1, 5.0), (INF, 9.0))

    assert histogram_since(first, ((0.1, 6.0), (INF, 12.0))) == [(0.1, 1.0), (INF, 3.0)]
    assert histogram_since((), first) == [(0.1, 5.0), (INF, 9.0)]


def test_a_view_is_json_and_lines():
    history = History()
    history.add(parse(TEXT, 0.0), model="m", context=8192, lanes=8)
    view = history.add(
        sample(
            1.0,
            ticks_total=10,
            pool_cells=1000,
            pool_cells_used=450,
            host_bytes=2**20,
            host_bytes_budget=2**31,
        ),
        model="m",
        context=8192,
        lanes=8,
    )

    told = "\n".join(lines(view))

    assert json.loads(json.dumps(asdict(view)))["pool_used"] == 450
    assert told.startswith("superfluid · m · 8,192 tokens a session")
    for part in ("0 of 8", "450 of 1,000 positions", "45%", "1 MiB of 2.0 GiB", "p50 -", "warm -", "agent 0"):
        assert part in told


def test_before_the_model_is_there_the_title_says_so():
    view = History().add(sample(0.0), model="m")

    assert lines(view)[0] == "superfluid · m · the model is loading"
    assert lines(History().add(sample(0.0)))[0] == "superfluid"


def test_a_first_token_after_more_than_a_minute_is_told_as_that():
    history = History()
    history.add(sample(0.0, ttft=((60.0, 0.0), (INF, 0.0))))

    view = history.add(sample(1.0, ttft=((60.0, 0.0), (INF, 1.0))))

    assert "p50 60 s or more" in "\n".join(lines(view))
