"""The server around the connections: how many there may be, and what becomes of one that fails."""

import socket
import threading
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core import view
from superfluid.core.limits import (
    INLINE_BYTES,
    KIB,
    MAX_CONNECTIONS,
    MIB,
    RESERVED_DESCRIPTORS,
    SMALL_REPLY_BYTES,
)
from superfluid.front import native
from superfluid.front.listener import Listener
from superfluid.front.native import NativeServer, most_connections
from superfluid.front.wire import Budget, Budgets
from superfluid_protocol import EventMsg, Response, decode, encode, event, request, response
from superfluid_protocol.framing import FrameDecoder, encode_frame

EVENT_BYTES = 64 * KIB


class ScriptedService:
    """Answers `Tree`, reads from an endless session, holds an `Append` until it may go on; its generations fail in a
    way that nobody foresaw."""

    def __init__(self):
        self.generations = self
        self.store = SimpleNamespace(state=SimpleNamespace(sessions={}))
        self.go_on = trio.Event()
        self.nodes = ()

    async def call(self, req):
        await trio.lowlevel.checkpoint()
        if isinstance(req, request.Append):
            await self.go_on.wait()
            return response.Cancelling()
        return response.Tree(nodes=self.nodes)

    def read(self, req, *, room):
        body = event.Appended(text="x" * EVENT_BYTES, span=())
        one = EventMsg(event_id=1, epoch=1, ts_unix_ms=0, body=body)
        return response.Events(events=(one,) * (room // view.size_bound(one)))

    async def start(self, session, max_tokens):
        raise RuntimeError("a bug")

    def __getattr__(self, name):
        raise RuntimeError(name)


class Peer:
    """An asynchronous client of a few lines."""

    def __init__(self, path):
        self.path = path
        self.sock = trio.socket.socket(socket.AF_UNIX)
        self._decoder = FrameDecoder()

    async def __aenter__(self):
        await self.sock.connect(str(self.path))
        return self

    async def __aexit__(self, *_exception):
        self.sock.close()
        await trio.lowlevel.checkpoint()

    async def send(self, req):
        data = encode_frame(encode(req))
        while data:
            data = data[await self.sock.send(data) :]

    async def receive(self):
        while (payload := self._decoder.next_frame()) is None:
            data = await self.sock.recv(65536)
            if not data:
                return None
            self._decoder.feed(data)
        return decode(Response, payload)[0]

    async def call(self, req):
        await self.send(req)
        return await self.receive()


@pytest.fixture
def budgets(monkeypatch):
    """Small ones, which the server of this test has."""
    small = Budgets(requests=Budget(4 * MIB), replies=Budget(8 * MIB))
    monkeypatch.setattr(native, "Budgets", lambda: small)
    return small


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture
async def path(tmp_path, service, budgets):
    """A served socket."""
    listener = Listener.bind(tmp_path / "s.sock")
    server = NativeServer(listener, service)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        yield listener.path
        server.close()
    listener.close()


async def test_a_request_that_fails_by_a_bug_is_answered_and_told_without_its_content(path):
    with structlog.testing.capture_logs() as lines:
        async with Peer(path) as peer:
            refusal = await peer.call(request.Generate(session=1, max_tokens=5))
            assert refusal == response.Err(message="internal error; the daemon's log has the details")
            assert await peer.call(request.Tree()) == response.Tree(nodes=())

    (line,) = lines
    assert (line["event"], line["request"]) == ("request failed", "Generate")


async def test_a_connection_that_fails_ends_alone(path, monkeypatch):
    async def fail(*_arguments):
        await trio.lowlevel.checkpoint()
        raise OSError("a fault of the system")

    async with Peer(path) as bystander:
        assert await bystander.call(request.Tree()) == response.Tree(nodes=())
        monkeypatch.setattr(native, "serve_connection", fail)
        with structlog.testing.capture_logs() as lines:
            async with Peer(path) as peer:
                assert await peer.receive() is None
        assert await bystander.call(request.Tree()) == response.Tree(nodes=())

    assert [line["event"] for line in lines] == ["a connection failed"]


async def test_connections_beyond_the_limit_are_told_and_room_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "most_connections", lambda: 2)
    monkeypatch.setattr("superfluid.front.wire.LINGER_SECONDS", 60)
    listener = Listener.bind(tmp_path / "s.sock")
    server = NativeServer(listener, ScriptedService())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        async with Peer(listener.path) as one:
            assert await one.call(request.Tree()) == response.Tree(nodes=())
            async with Peer(listener.path) as two:
                assert await two.call(request.Tree()) == response.Tree(nodes=())
                async with Peer(listener.path) as three:
                    await wait_all_tasks_blocked()
                    await three.send(request.Tree())  # it cannot know that it was refused
                    refusal = await three.receive()
                    assert refusal == response.Err(
                        message="the daemon serves 2 connections already; close some"
                    )
                    assert await three.receive() is None
                assert await one.call(request.Tree()) == response.Tree(nodes=())
            while (await self_call(listener.path)) != response.Tree(nodes=()):
                pass  # until the daemon has seen that the second is gone
        server.close()
    listener.close()


async def test_few_refused_connections_linger(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "most_connections", lambda: 1)
    monkeypatch.setattr(native, "MAX_LINGERING", 2)
    monkeypatch.setattr("superfluid.front.wire.LINGER_SECONDS", 60)
    listener = Listener.bind(tmp_path / "s.sock")
    server = NativeServer(listener, ScriptedService())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        async with Peer(listener.path) as one, AsyncExitStack() as stack:
            assert await one.call(request.Tree()) == response.Tree(nodes=())
            refused = [await stack.enter_async_context(Peer(listener.path)) for _ in range(5)]
            broken = 0
            for peer in refused:
                assert isinstance(await peer.receive(), response.Err)
                assert await peer.receive() is None
            for peer in refused:
                try:
                    await peer.send(request.Tree())
                except BrokenPipeError:
                    broken += 1
            assert broken == 3
            server.close()
    listener.close()


async def self_call(path):
    async with Peer(path) as peer:
        try:
            return await peer.call(request.Tree())
        except OSError:
            return None


@pytest.mark.parametrize(
    ("soft", "most"),
    [(1024, 1024 - RESERVED_DESCRIPTORS), (10, 1), (10**6, MAX_CONNECTIONS), (-1, MAX_CONNECTIONS)],
)
def test_descriptors_bound_the_connections(monkeypatch, soft, most):
    monkeypatch.setattr(native.resource, "getrlimit", lambda _which: (soft, -1))

    assert most_connections() == most


async def test_requests_in_flight_can_be_waited_for():
    in_flight = native.InFlight()
    with in_flight:
        with trio.move_on_after(0) as scope:
            await in_flight.wait_zero()
        assert scope.cancelled_caught
    await in_flight.wait_zero()


# -- memory -----------------------------------------------------------------------------------------


async def test_many_that_ask_for_much_and_read_nothing_share_a_budget(path, budgets):
    async with AsyncExitStack() as stack:
        for _ in range(40):
            slow = await stack.enter_async_context(Peer(path))
            await slow.send(request.Read(session=1, cursor=0))
            await slow.sock.recv(1)  # its reply is on the way
        assert budgets.replies.used <= budgets.replies.most + 40 * SMALL_REPLY_BYTES

        async with Peer(path) as honest:
            page = await honest.call(request.Read(session=1, cursor=0))
            assert 1 <= len(page.events) <= SMALL_REPLY_BYTES // EVENT_BYTES
            assert await honest.call(request.Tree()) == response.Tree(nodes=())

    with trio.fail_after(10):
        while budgets.replies.used:
            await trio.lowlevel.checkpoint()


async def test_a_large_reply_that_cannot_be_cut_is_refused_by_name_without_room(
    path, service, budgets, monkeypatch
):
    monkeypatch.setattr("superfluid.front.wire.REPLY_ROOM_SECONDS", 0.01)
    service.nodes = tuple((n, None, 0) for n in range(INLINE_BYTES // 10))
    budgets.replies.used = budgets.replies.most
    async with Peer(path) as peer:
        refusal = await peer.call(request.Tree())
        assert isinstance(refusal, response.Err)
        assert "room for large replies" in refusal.message
        budgets.replies.used = 0
        assert await peer.call(request.Tree()) == response.Tree(nodes=service.nodes)


async def test_a_list_of_many_sessions_finds_room_before_it_is_made(path, service, budgets, monkeypatch):
    monkeypatch.setattr("superfluid.front.wire.REPLY_ROOM_SECONDS", 0.01)
    service.store.state.sessions = dict.fromkeys(range(1000), SimpleNamespace(tokens=MIB))
    budgets.replies.used = budgets.replies.most
    async with Peer(path) as peer:
        for req in (request.Tree(), request.List(), request.Inspect(session=1)):
            assert "room" in (await peer.call(req)).message
        assert isinstance(await peer.call(request.Inspect(session=1001)), response.Tree)


async def test_a_request_is_charged_until_its_reply_is_sent(path, service, budgets):
    large = request.Append(session=1, text="x" * MIB, span=(300,) * 1000)
    async with Peer(path) as one, Peer(path) as other, trio.open_nursery() as nursery:
        nursery.start_soon(one.call, large)
        with trio.fail_after(10):
            while budgets.requests.used < 2 * MIB:  # its bytes, and its text once more
                await trio.lowlevel.checkpoint()
        refusal = await other.call(large)
        assert isinstance(refusal, response.Err)
        assert "room for large requests" in refusal.message
        assert await other.call(request.Tree()) == response.Tree(nodes=())
        service.go_on.set()

    assert budgets.requests.used == 0


# -- large values are not the event loop's ----------------------------------------------------------


async def test_large_requests_and_replies_are_translated_in_threads(path, service, monkeypatch):
    inline = []

    def seen(translate):
        def spy(*arguments):
            inline.append(threading.current_thread() is threading.main_thread())
            return translate(*arguments)

        return spy

    monkeypatch.setattr(native, "decode", seen(decode))
    monkeypatch.setattr(native, "encode", seen(encode))
    service.go_on.set()
    async with Peer(path) as peer:
        await peer.call(request.Tree())
        assert inline == [True, True]
        await peer.call(request.Append(session=1, text="x" * (INLINE_BYTES + 1), span=()))
        assert inline[2:] == [False, True]
        service.nodes = tuple((n, None, 0) for n in range(INLINE_BYTES // 10))
        await peer.call(request.Tree())
        assert inline[4:] == [True, False]


@pytest.mark.parametrize(
    ("reply", "way_out"),
    [
        (response.Tree(nodes=((1, None, 0),) * 2000), "every session"),
        (response.Sessions(ids=(1,) * 6000), "archive some"),
        (response.Text(text="x" * 6000), "cannot be asked for in parts"),
    ],
)
async def test_a_reply_beyond_a_frame_says_what_helps(path, service, monkeypatch, reply, way_out):
    monkeypatch.setattr(native, "MAX_FRAME", 5000)
    monkeypatch.setattr(native, "INLINE_BYTES", 5000)

    async def call(_req):
        await trio.lowlevel.checkpoint()
        return reply

    service.call = call
    async with Peer(path) as peer:
        refusal = await peer.call(request.Tree())

    assert isinstance(refusal, response.Err)
    assert way_out in refusal.message
    assert "read the session" not in refusal.message
