"""The native socket of a real daemon, met by clients that behave badly."""

import os
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from superfluid_protocol import encode, event, numbers, request, response
from superfluid_protocol.framing import encode_frame
from tests.daemon import Client, Daemon, HungUp, cpu_ticks, frame, resident_kib
from tests.front.conftest import CONTEXT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

LONG = 15_000
"""Tokens of a reply that takes seconds."""

FREE_SECONDS = 1.0
"""The longest that a lane may stay taken after its client left (the specification's number)."""


def seconds_until_idle(client: Client) -> float:
    began = time.monotonic()
    while client.metric("lanes_active") or client.metric("queue_depth"):
        assert time.monotonic() - began < 20
    return time.monotonic() - began


def wait_until_cancelled(client: Client, session: int) -> None:
    """The lane is free a moment before the reply's last record is on disk."""
    began = time.monotonic()
    while getattr(client.events(session)[-1].body, "finish", None) != numbers.Finish.CANCELLED:
        assert time.monotonic() - began < 20


def begin(client: Client) -> int:
    session = client.create()
    client.user(session, "hello")
    return session


def replies(client: Client, count: int) -> list[type]:
    return [type(client.receive()) for _ in range(count)]


# -- bytes that are no requests ---------------------------------------------------------------------

GARBAGE = {
    "empty": b"",
    "unknown variant": b"\xff\x7f",
    "padded varint": b"\x87\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "bad option": b"\x00\x02",
    "giant sequence": b"\x01\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "not utf-8": b"\x02\x01\x01\x02\xff\xfe",
    "cut short": encode(request.AppendMessage(session=1, role=1, text="hello"))[:-1],
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
def test_garbage_between_two_requests_costs_neither(client, payload):
    tree = encode_frame(encode(request.Tree()))
    client.send_bytes(tree + frame(payload) + tree)

    assert replies(client, 3) == [response.Tree, response.Err, response.Tree]


def test_bytes_behind_a_request_are_refused_and_nothing_is_done(client):
    session = client.create()
    message = encode(request.AppendMessage(session=session, role=1, text="hello"))
    client.send_bytes(frame(message + b"\0"))

    refusal = client.receive()

    assert isinstance(refusal, response.Err)
    assert "1 bytes are left over" in refusal.message
    assert len(client.events(session)) == 1


def test_a_length_of_4_gib_is_answered_and_ends_the_connection_alone(daemon, client):
    before = resident_kib(daemon.pid)
    with daemon.client() as attacker:
        attacker.send_bytes(b"\xff\xff\xff\xff" + bytes(1000))
        refusal = attacker.receive()
        assert isinstance(refusal, response.Err)
        assert "4294967295" in refusal.message
        assert attacker.ended()

    assert isinstance(client.call(request.Tree()), response.Tree)
    assert resident_kib(daemon.pid) - before < 16 * 1024


@pytest.mark.parametrize("payload", [request.Tree(), request.List()], ids=["tree", "list"])
def test_a_request_cut_at_each_byte_is_one_request(client, payload):
    whole = encode_frame(encode(payload))
    for cut in range(1, len(whole)):
        client.send_bytes(whole[:cut])
        client.send_bytes(whole[cut:])
        assert not isinstance(client.receive(), response.Err)


def test_requests_sent_together_are_answered_in_order(client):
    session = client.create()
    client.send(*[request.AppendMessage(session=session, role=1, text=f"message {n}") for n in range(50)])

    answers = [client.receive() for _ in range(50)]

    assert [answer.event.body.text for answer in answers] == [f"message {n}" for n in range(50)]
    assert [answer.event.event_id for answer in answers] == list(range(1, 51))


# -- the end of a connection ------------------------------------------------------------------------


def test_a_half_closed_client_still_gets_its_replies(daemon, client):
    session = begin(client)
    with daemon.client() as half:
        half.send(request.Generate(session=session, max_tokens=400), request.Read(session=session, cursor=0))
        half.sock.shutdown(socket.SHUT_WR)

        kinds = []
        while (kind := type(half.receive())) is response.Delta:
            kinds.append(kind)

        assert kinds
        assert kind is response.Generated
        assert isinstance(half.receive(), response.Events)
        assert half.ended()


def test_a_client_that_leaves_in_mid_stream_frees_its_lane_and_keeps_its_text(daemon, client):
    session = begin(client)
    with daemon.client() as leaver:
        reply = leaver.first_delta(session, LONG)

    assert seconds_until_idle(client) < FREE_SECONDS
    wait_until_cancelled(client, session)
    assert client.events(session)[2 : 2 + len(reply.deltas)] == reply.deltas
    # The session is free, and the same turn goes on.
    assert client.generate(session, 5).generated.tokens_generated == 5
    assert sum(isinstance(m.body, event.GenerationPrompt) for m in client.events(session)) == 1


def test_a_client_that_leaves_during_its_prefill_frees_its_lane(daemon, client):
    """Field case F31: no write fails during a prefill, so nobody noticed that the client was gone."""
    session = client.create()
    client.call(request.Append(session=session, text=None, span=tuple(range(250)) * 60))
    with daemon.client() as leaver:
        leaver.send(request.Generate(session=session, max_tokens=10))
        while not client.metric("lanes_active"):
            pass

    assert seconds_until_idle(client) < FREE_SECONDS
    wait_until_cancelled(client, session)


def test_cancel_ends_the_stream_with_what_was_made(daemon, client):
    session = begin(client)
    with daemon.client() as streaming:
        reply = streaming.first_delta(session, LONG)
        assert isinstance(client.call(request.Cancel(session=session)), response.Cancelling)
        streaming.finish(reply)

    assert reply.generated.finish == numbers.Finish.CANCELLED
    assert list(reply.generated.events) == reply.deltas
    refusal = client.call(request.Cancel(session=session))
    assert isinstance(refusal, response.Err)
    assert "has no generation in flight" in refusal.message


def test_a_session_generates_for_one_at_a_time(daemon, client):
    session = begin(client)
    with daemon.client() as first:
        reply = first.first_delta(session, LONG)

        for req in (
            request.Generate(session=session, max_tokens=5),
            request.AppendMessage(session=session, role=1, text="meanwhile"),
            request.Append(session=session, text=None, span=(1,)),
        ):
            refusal = client.call(req)
            assert isinstance(refusal, response.Err)
            assert f"session {session} is generating;" in refusal.message
        fork = client.call(request.Fork(session=session, at_event=2, params=None))
        assert isinstance(fork, response.Created)
        client.call(request.Cancel(session=session))
        first.finish(reply)


def test_two_generates_at_once_are_one_and_a_refusal(daemon, client):
    def ask(session: int) -> type:
        with daemon.client() as one:
            return type(one.generate(session, 2000).end)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            session = begin(client)
            kinds = list(pool.map(ask, [session, session]))
            assert sorted(kind.__name__ for kind in kinds) == ["Err", "Generated"]
            ids = [m.event_id for m in client.events(session)]
            assert ids == list(range(len(ids)))


# -- queue ------------------------------------------------------------------------------------------


@pytest.fixture
def narrow_daemon(tmp_path, endless_model, make_daemon) -> Daemon:
    """One lane: whoever comes second waits."""
    return make_daemon(tmp_path, endless_model, "--max-batch", "1", context=CONTEXT).start().ready()


def test_whoever_leaves_the_queue_is_never_computed_and_disturbs_nobody(narrow_daemon):
    """Field case F32: a queued request was computed although its client had left."""
    with narrow_daemon.client() as a, narrow_daemon.client() as c, narrow_daemon.client() as watch:
        first, second, third = begin(a), begin(a), begin(a)
        reply = a.first_delta(first, 3000)
        with narrow_daemon.client() as b:
            b.send(request.Generate(session=second, max_tokens=LONG))
            b.receive()
            c.send(request.Generate(session=third, max_tokens=5))
            c.receive()

        a.finish(reply)
        assert reply.generated.tokens_generated == 3000
        while not isinstance(last := c.receive(), response.Generated):
            assert isinstance(last, response.Delta)
        assert seconds_until_idle(watch) < FREE_SECONDS
        wait_until_cancelled(watch, second)
        assert watch.events(second)[-1].body.span == ()


def test_a_full_context_ends_one_reply_and_no_other(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, context=256).start().ready()
    with daemon.client() as one, daemon.client() as other:
        greedy, modest = begin(one), begin(other)
        one.send(request.Generate(session=greedy, max_tokens=LONG))
        assert other.generate(modest, 50).generated.tokens_generated == 50

        while isinstance(last := one.receive(), response.Delta):
            pass

        assert isinstance(last, response.Generated)
        assert last.finish == numbers.Finish.MAX_TOKENS
        assert "trim it" in one.generate(greedy, 5).error
        assert other.generate(modest, 5).generated.tokens_generated == 5


# -- slow readers -----------------------------------------------------------------------------------


def test_a_client_that_never_reads_costs_no_memory_and_slows_nobody(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model, context=CONTEXT).start().ready()
    with daemon.client() as client:
        session = client.create()
        client.call(request.Append(session=session, text="x" * 1_000_000, span=()))
        client.call(request.Read(session=session, cursor=0))
        before = resident_kib(daemon.pid)
        slow = [daemon.client() for _ in range(4)]
        try:
            for one in slow:
                # 200 MB of replies that nobody takes.
                one.send(*[request.Read(session=session, cursor=0)] * 200)
            for _ in range(200):
                assert isinstance(client.call(request.Tree()), response.Tree)
            assert resident_kib(daemon.pid) - before < 64 * 1024
        finally:
            for one in slow:
                one.close()


def test_a_reply_goes_on_though_its_client_reads_nothing(daemon, client):
    session = begin(client)
    with daemon.client() as slow:
        slow.send(*[request.Generate(session=session, max_tokens=300)] * 3)
        other = begin(client)
        assert client.generate(other, 100).generated.tokens_generated == 100
        while sum(len(getattr(m.body, "span", ())) for m in client.events(session)[4:]) < 900:
            pass
    assert seconds_until_idle(client) < FREE_SECONDS


# -- crowds -----------------------------------------------------------------------------------------


def test_a_crowd_beyond_the_descriptors_is_told_and_the_others_are_served(
    tmp_path, endless_model, make_daemon
):
    daemon = make_daemon(tmp_path, endless_model, prefix=("prlimit", "--nofile=48")).start().ready()
    with daemon.client() as client, ExitStack() as crowd:
        session = begin(client)
        refused = 0
        for _ in range(60):
            one = crowd.enter_context(daemon.client())
            with suppress(HungUp):  # the refusal comes unasked, and the end of the connection with it
                one.send(request.Tree())
            reply = one.receive()
            refused += isinstance(reply, response.Err) and "connections already" in reply.message
        assert refused > 40
        assert client.generate(session, 5).generated.tokens_generated == 5
        # A worker needs descriptors too.
        os.kill(daemon.worker(), signal.SIGKILL)
        daemon.wait_for("worker lost")
        assert client.generate(session, 5).generated.tokens_generated == 5
    with daemon.client() as again:
        assert isinstance(again.call(request.Tree()), response.Tree)


def test_out_of_descriptors_connections_wait_for_some(tmp_path, endless_model, make_daemon):
    """Somebody else's limit, that of the whole system, can be met at any number of connections."""
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        assert isinstance(client.call(request.Tree()), response.Tree)  # so it is accepted
        held = sum(1 for _ in Path(f"/proc/{daemon.pid}/fd").iterdir())
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (held, hard))
        with daemon.client() as waiting:
            waiting.send(request.Tree())
            daemon.wait_for("a connection could not be accepted")
            before = cpu_ticks(daemon.pid)
            daemon.wait_for("a connection could not be accepted", count=10)
            # It looks again now and then: as fast as it can, a second would be a hundred ticks.
            assert cpu_ticks(daemon.pid) - before < 30
            assert isinstance(client.call(request.Tree()), response.Tree)
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
            assert isinstance(waiting.receive(), response.Tree)
