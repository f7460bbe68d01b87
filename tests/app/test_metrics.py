"""What the daemon exports, read as Prometheus reads it."""

import os
import signal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from superfluid.sched.histogram import Histogram
from superfluid_protocol import request, response
from tests.daemon import wait_gone


def test_a_histogram_counts_what_is_not_above_each_bound():
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)

    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.total == pytest.approx(7.65)


def samples(client):
    reply = client.call(request.Metrics())
    assert isinstance(reply, response.Text)
    return {
        sample.name + sample.labels.get("le", ""): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_refusals_losses_and_first_tokens_are_told_apart(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        before = samples(client)
        client.generate(session, 5)
        client.generate(session, 5)
        client.call(request.SetMeta(session=session, expected_version=99, title="t", archived=None))
        worker = daemon.worker()
        os.kill(worker, signal.SIGKILL)
        wait_gone([worker], 5)
        client.generate(session, 5)
        after = samples(client)

    assert before["superfluid_ttft_seconds_count"] == 0
    assert after["superfluid_ttft_seconds_count"] == after["superfluid_ttft_seconds_bucket+Inf"] == 3
    assert after["superfluid_ttft_seconds_sum"] > 0
    assert after["superfluid_commands_refused_total"] == before["superfluid_commands_refused_total"] + 1
    assert after["superfluid_log_refused_total"] == 0, "the disk took everything"
    assert after["superfluid_worker_losses_total"] == 1
    assert after["superfluid_worker_respawns_total"] == 1
