"""The server around the connections: how many there may be, and what becomes of one that fails."""

import socket

import pytest
import structlog
import trio

from superfluid.core.limits import MAX_CONNECTIONS, RESERVED_DESCRIPTORS
from superfluid.front import native
from superfluid.front.listener import Listener
from superfluid.front.native import NativeServer, most_connections
from superfluid_protocol import Response, decode, encode, request, response
from superfluid_protocol.framing import FrameDecoder, encode_frame


class ScriptedService:
    """Answers `Tree`; its generations fail in a way that nobody foresaw."""

    def __init__(self):
        self.generations = self

    async def call(self, _req):
        await trio.lowlevel.checkpoint()
        return response.Tree(nodes=())

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
        await self.sock.send(encode_frame(encode(req)))

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
async def path(tmp_path):
    """A served socket."""
    listener = Listener.bind(tmp_path / "s.sock")
    server = NativeServer(listener, ScriptedService())
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
    listener = Listener.bind(tmp_path / "s.sock")
    server = NativeServer(listener, ScriptedService())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        async with Peer(listener.path) as one:
            assert await one.call(request.Tree()) == response.Tree(nodes=())
            async with Peer(listener.path) as two:
                assert await two.call(request.Tree()) == response.Tree(nodes=())
                async with Peer(listener.path) as three:
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
