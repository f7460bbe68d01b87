"""How a connection follows a generation: the log is its queue, so a slow reader costs nothing."""

import socket
from contextlib import closing, suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.front.native import InFlight, serve_connection
from superfluid.front.wire import Budgets, HangUps, PeerGone, Wire
from superfluid_protocol import EventMsg, Response, decode, encode, event, request, response
from superfluid_protocol.framing import FrameDecoder, encode_frame

EVENTS = 2000


def message(number: int) -> EventMsg:
    body = event.Generated(span=(number,), text="some text", channel=0, finish=0)
    return EventMsg(event_id=number, epoch=1, ts_unix_ms=0, body=body)


class ScriptedGeneration:
    """A generation whose events the test commits; it is its own service."""

    def __init__(self) -> None:
        self.generations = self
        self.first_event = 0
        self.committed: list[EventMsg] = []
        self.done = False
        self.abandoned = False
        self.furthest = 0
        self._changed = trio.Event()

    def commit(self, count: int, *, done: bool = False) -> None:
        self.committed.extend(message(len(self.committed)) for _ in range(count))
        self.done = done
        self._changed.set()
        self._changed = trio.Event()

    # What a connection asks of it.

    async def start(self, session: int, max_tokens: int) -> "ScriptedGeneration":
        return self

    def new_events(self, generation: "ScriptedGeneration", cursor: int) -> list[EventMsg]:
        fresh = self.committed[cursor : cursor + 64]
        self.furthest = max(self.furthest, cursor + len(fresh))
        return fresh

    async def wait(self, generation: "ScriptedGeneration") -> None:
        await self._changed.wait()

    def reply(self, generation: "ScriptedGeneration") -> response.Generated:
        return response.Generated(events=(), tokens_generated=0, finish=2, warm_prefix=0)

    def abandon(self, generation: "ScriptedGeneration") -> None:
        self.abandoned = not self.done


@pytest.fixture
async def followed():
    """(generation, the peer's socket) of a connection that has asked for a reply; its send buffer is small."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for end in (ours, theirs):
        end.setblocking(False)
    hang_ups, generation = HangUps(), ScriptedGeneration()
    wire = Wire(ours, Budgets(), hang_ups)

    async def serve() -> None:
        with closing(wire), suppress(PeerGone):
            await serve_connection(wire, generation, InFlight())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_ups.run)
        nursery.start_soon(serve)
        theirs.send(encode_frame(encode(request.Generate(session=1, max_tokens=9))))
        yield generation, theirs
        nursery.cancel_scope.cancel()
    theirs.close()
    hang_ups.close()


async def replies(peer: socket.socket) -> list[Response]:
    """Replies up to the one that closes the stream."""
    decoder, received = FrameDecoder(), []
    while True:
        await trio.lowlevel.wait_readable(peer)
        decoder.feed(peer.recv(1 << 16))
        while (payload := decoder.next_frame()) is not None:
            received.append(decode(Response, payload)[0])
            if not isinstance(received[-1], response.Delta):
                return received


async def test_a_reader_that_stops_is_behind_in_the_log_and_loses_nothing(followed):
    generation, peer = followed
    await wait_all_tasks_blocked()
    for _ in range(EVENTS // 10):
        generation.commit(10)
        await wait_all_tasks_blocked()
    generation.commit(0, done=True)
    await wait_all_tasks_blocked()
    assert generation.furthest < EVENTS / 4, "the connection takes no more than it can send"

    *deltas, end = await replies(peer)

    assert [delta.event for delta in deltas] == generation.committed
    assert isinstance(end, response.Generated)
    assert not generation.abandoned


async def test_events_are_sent_as_they_are_committed(followed):
    generation, peer = followed
    decoder = FrameDecoder()
    for count in range(1, 20):
        generation.commit(1)
        await wait_all_tasks_blocked()
        decoder.feed(peer.recv(1 << 16))
        payload = decoder.next_frame()
        assert payload is not None
        delta, _ = decode(Response, payload)
        assert delta == response.Delta(event=message(count - 1))
        assert decoder.next_frame() is None


@pytest.mark.parametrize("backlog", [1, EVENTS], ids=["reading", "not reading"])
async def test_a_peer_that_leaves_ends_its_generation(followed, backlog):
    generation, peer = followed
    generation.commit(backlog)
    await wait_all_tasks_blocked()

    peer.close()
    await wait_all_tasks_blocked()

    assert generation.abandoned


async def test_a_peer_that_half_closed_is_still_answered(followed):
    generation, peer = followed
    peer.shutdown(socket.SHUT_WR)
    generation.commit(3, done=True)

    *deltas, end = await replies(peer)

    assert len(deltas) == 3
    assert isinstance(end, response.Generated)
