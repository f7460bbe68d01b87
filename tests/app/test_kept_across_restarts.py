"""Pins and parked KV outlive the daemon, and it says truly where KV is."""

import pytest

from superfluid_protocol import request, response, types
from tests.daemon import CONTEXT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

DAY_MS = 86_400_000


def tier(client, session):
    return client.call(request.Inspect(session=session)).inspection.tier


def test_a_pin_whose_time_is_not_over_holds_after_a_restart(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        long, over, gone, empty = [client.create() for _ in range(4)]
        for session in (long, over, gone):
            client.user(session, "hello")
        for session, ttl in ((long, DAY_MS), (over, 1), (gone, DAY_MS), (gone, 0), (empty, DAY_MS)):
            assert isinstance(client.call(request.Pin(session=session, ttl_ms=ttl)), response.Pinned)
        while client.metric("pins_held") > 2:  # until the shortest pin is over
            pass
        assert client.metric("pins_expired_total") == 1
    daemon.kill()
    daemon.start().ready()

    assert daemon.wait_for("pins restored")["pins"] == 2
    with daemon.client() as client:
        assert client.metric("pins_held") == 2


def test_a_pin_that_can_never_fit_leaves_no_trace(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, "--pin-budget-pct", "0").start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        before = client.events(session)

        refused = client.call(request.Pin(session=session, ttl_ms=DAY_MS))

        assert "--pin-budget-pct" in refused.message
        assert client.events(session) == before
        assert client.metric("pins_held") == 0


@pytest.mark.parametrize("larger", [0, 256])
def test_a_parked_session_goes_on_after_a_restart(tmp_path, endless_model, make_daemon, larger):
    """Also in a context of another size, which follows the memory that is free at the start."""
    daemon = make_daemon(tmp_path, endless_model, "--park").start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "a session that is long enough to be worth a file of its own")
        client.generate(session, 20)
        before = client.call(request.Inspect(session=session)).inspection.summary.tokens
        assert tier(client, session) == types.Resident()
        while not client.metric("parks_total"):  # the file is written beside everything else
            pass
    daemon.process.terminate()
    assert daemon.wait() == 0
    daemon = make_daemon(tmp_path, endless_model, "--park", context=CONTEXT + larger).start().ready()

    with daemon.client() as client:
        found = tier(client, session)
        assert isinstance(found, types.Parked)
        assert before - 1 <= found.covered <= before
        assert client.metric("park_bytes") > 0
        client.user(session, "and on")
        assert client.generate(session, 5).generated.warm_prefix >= before - 1
        assert client.metric("resumes_total", **{"from": "park"}) == 1
        assert tier(client, session) == types.Resident()


def test_without_parking_a_restart_is_cold(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        client.generate(session, 5)
    daemon.kill()
    daemon.start().ready()

    with daemon.client() as client:
        assert tier(client, session) == types.Cold()
        client.generate(session, 5)
        assert client.metric("cold_admissions_total") == 1
