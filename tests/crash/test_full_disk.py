"""A disk that is full under a running daemon: that write is refused, reads go on, and later writes land well."""

import resource

import pytest

from superfluid_protocol import request, response
from tests.daemon import USER, Client, Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def limit_files(daemon: Daemon, size: int) -> None:
    """Let no file of the daemon grow beyond *size* bytes."""
    _soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, hard))


def append(client: Client, session: int, text: str) -> response.Committed | response.Err:
    reply = client.call(request.AppendMessage(session=session, role=USER, text=text))
    assert isinstance(reply, response.Committed | response.Err)
    return reply


def texts(client: Client, session: int) -> list[str]:
    return [m.body.text for m in client.events(session) if hasattr(m.body, "text")]


def test_what_a_full_disk_refused_is_gone_and_what_follows_is_kept(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    log = daemon.sessions / "wal.log"
    with daemon.client() as client:
        session = client.create()
        client.user(session, "before")
        limit_files(daemon, log.stat().st_size + 100)
        # Half of a frame is written before the kernel says no.
        refusals = [append(client, session, f"refused {number} {'x' * 500}") for number in range(3)]
        assert all(isinstance(refusal, response.Err) for refusal in refusals)
        assert all("nothing of this was stored" in refusal.message for refusal in refusals)
        assert texts(client, session) == ["before"]
        generation = client.generate(session, 50)
        assert "nothing of this was stored" in generation.error
        limit_files(daemon, resource.RLIM_INFINITY)
        assert isinstance(append(client, session, "after"), response.Committed)
        assert client.generate(session, 5).generated.tokens_generated == 5
        shown = client.events(session)
    daemon.kill()

    with daemon.start().serving().client() as client:
        assert client.events(session) == shown
        assert texts(client, session)[:2] == ["before", "after"]
    assert b"refused" not in log.read_bytes()


def test_a_reply_that_the_disk_refuses_ends_with_an_error_and_goes_on_later(
    tmp_path, endless_model, make_daemon
):
    daemon = make_daemon(tmp_path, endless_model, context=16_384).start().ready()
    log = daemon.sessions / "wal.log"
    with daemon.client() as client:
        session = client.create()
        # The limit is for all files, and the mark takes 8 KiB: the log is to be the first to meet it.
        client.user(session, "hello " * 400)
        reply = client.first_delta(session, 15_000)
        limit_files(daemon, log.stat().st_size + 200)
        client.finish(reply)
        assert "nothing of this was stored" in reply.error
        limit_files(daemon, resource.RLIM_INFINITY)

        events = client.events(session)
        assert events[2 : 2 + len(reply.deltas)] == reply.deltas
        assert client.generate(session, 5).generated.tokens_generated == 5
        events = client.events(session)
        assert [m.event_id for m in events] == list(range(len(events)))
