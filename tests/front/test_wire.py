"""Bytes and deadlines of one native connection, over a real pair of Unix sockets and a clock that jumps."""

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core.limits import (
    FRAME_READ_SECONDS,
    LINGER_SECONDS,
    MIB,
    SEND_SECONDS,
    SMALL_REPLY_BYTES,
    SMALL_REQUEST_BYTES,
)
from superfluid.front.wire import Budget, Budgets, HangUps, PeerGone, Wire
from superfluid_protocol.framing import FrameTooLarge
from tests.daemon import frame


@pytest.fixture
def budgets():
    return Budgets(requests=Budget(4 * MIB), replies=Budget(8 * MIB))


@pytest.fixture
def budget(budgets):
    return budgets.requests


@pytest.fixture
async def pair(budgets):
    """(wire, the peer's socket)."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    hang_ups = HangUps()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_ups.run)
        wire = Wire(ours, budgets, hang_ups)
        yield wire, theirs
        nursery.cancel_scope.cancel()
    wire.close()
    theirs.close()
    hang_ups.close()


# -- frames in --------------------------------------------------------------------------------------


async def test_two_frames_in_one_send_are_two_payloads(pair):
    wire, peer = pair
    peer.send(frame(b"one") + frame(b"") + frame(b"three"))

    assert [await wire.next_frame() for _ in range(3)] == [b"one", b"", b"three"]
    assert not wire.holds_bytes


@pytest.mark.parametrize("cut", range(1, len(frame(b"payload"))))
async def test_a_frame_cut_anywhere_is_one_payload(pair, cut):
    wire, peer = pair
    whole = frame(b"payload")
    received = []

    async def receive() -> None:
        received.append(await wire.next_frame())

    async with trio.open_nursery() as nursery:
        peer.send(whole[:cut])
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        assert received == []
        peer.send(whole[cut:])

    assert received == [b"payload"]


async def test_the_end_between_frames_is_none(pair):
    wire, peer = pair
    peer.send(frame(b"last"))
    peer.shutdown(socket.SHUT_WR)

    assert await wire.next_frame() == b"last"
    assert await wire.next_frame() is None


async def test_the_end_inside_a_frame_is_no_frame(pair):
    wire, peer = pair
    peer.send(frame(b"last")[:-1])
    peer.shutdown(socket.SHUT_WR)

    with pytest.raises(PeerGone):
        await wire.next_frame()


async def test_a_length_beyond_the_limit_is_refused_before_anything_is_held(pair, budget):
    wire, peer = pair
    peer.send(b"\xff\xff\xff\xff")

    with pytest.raises(FrameTooLarge) as refusal:
        await wire.next_frame()

    assert refusal.value.declared == 2**32 - 1
    assert budget.used == 0


# -- slow peers -------------------------------------------------------------------------------------


async def test_an_idle_connection_has_no_deadline(pair, autojump_clock):
    wire, peer = pair

    async def late() -> None:
        await trio.sleep(1000 * FRAME_READ_SECONDS)
        peer.send(frame(b"at last"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(late)
        assert await wire.next_frame() == b"at last"


async def test_a_byte_a_second_is_cut_off(pair, autojump_clock):
    wire, peer = pair
    sent = 0

    async def trickle() -> None:
        nonlocal sent
        for byte in frame(bytes(1000)):
            peer.send(bytes([byte]))
            sent += 1
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        with pytest.raises(PeerGone, match="stalled"):
            await wire.next_frame()
        nursery.cancel_scope.cancel()

    assert FRAME_READ_SECONDS - 1 <= sent <= FRAME_READ_SECONDS + 2


async def test_a_large_frame_gets_its_time_with_each_mebibyte_that_comes(pair, autojump_clock):
    wire, peer = pair
    received = []

    async def receive() -> None:
        received.append(await wire.next_frame())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await send_all(peer, frame(bytes(3 * MIB))[:-1], pause=FRAME_READ_SECONDS * 0.9 / 16)
        await trio.sleep(FRAME_READ_SECONDS * 0.5)
        peer.send(b"\0")

    assert received == [bytes(3 * MIB)]


async def send_all(peer: socket.socket, data: bytes, *, pause: float) -> None:
    """Send in pieces of 64 KiB, with a pause before each."""
    for start in range(0, len(data), 65536):
        piece = memoryview(data)[start : start + 65536]
        await trio.sleep(pause)
        while piece:
            try:
                piece = piece[peer.send(piece) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(peer)


async def test_unfinished_large_frames_share_a_budget(pair, budget, autojump_clock):
    wire, peer = pair
    budget.used = budget.most - 2 * MIB  # what other connections hold

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: send_all(peer, frame(bytes(4 * MIB)), pause=0))
        with pytest.raises(PeerGone, match="room"):
            await wire.next_frame()
        nursery.cancel_scope.cancel()

    wire.close()
    assert budget.used == budget.most - 2 * MIB, "a closed connection gives back what it held"


async def test_small_unfinished_frames_pass_though_the_budget_is_used_up(pair, budget):
    wire, peer = pair
    budget.used = budget.most
    peer.send(frame(b"small"))

    assert await wire.next_frame() == b"small"


async def test_a_peer_that_takes_nothing_is_given_up(pair, autojump_clock):
    wire, _peer = pair
    began = trio.current_time()

    with pytest.raises(PeerGone, match="too little"):
        await wire.send([bytes(8 * MIB)])

    assert trio.current_time() - began == pytest.approx(SEND_SECONDS)


@pytest.mark.parametrize("size", [1, 3])
async def test_a_slow_peer_that_takes_enough_is_kept(pair, autojump_clock, size):
    wire, peer = pair
    taken = bytearray()

    async def read_slowly() -> None:
        while len(taken) < size * MIB + 4:
            await trio.sleep(SEND_SECONDS * 0.9 / 16)
            await trio.lowlevel.wait_readable(peer)
            taken.extend(peer.recv(1 << 16))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_slowly)
        await wire.send([bytes(size * MIB)])

    assert taken == frame(bytes(size * MIB))


async def test_a_peer_that_takes_a_byte_now_and_then_is_given_up(pair, budgets, autojump_clock):
    wire, peer = pair
    began = trio.current_time()

    async def trickle() -> None:
        while True:
            await trio.sleep(SEND_SECONDS * 0.9)
            peer.recv(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        with pytest.raises(PeerGone, match="too little"):
            await wire.send([bytes(4 * MIB)])
        nursery.cancel_scope.cancel()

    assert trio.current_time() - began == pytest.approx(SEND_SECONDS)
    assert budgets.replies.used == 0


# -- what is held for requests and replies ----------------------------------------------------------


async def test_a_request_is_charged_until_it_is_answered(pair, budget):
    wire, peer = pair
    peer.send(frame(b"request") + frame(b"next"))
    payload = await wire.next_frame()
    behind = len(frame(b"next"))

    assert wire.hold_request(len(payload))
    assert budget.used == len(payload) + behind
    assert wire.hold_request(MIB), "its objects take the place of its bytes"
    assert budget.used == MIB + behind
    wire.hold_request(0)
    assert budget.used == behind


async def test_without_room_large_requests_are_refused_and_small_ones_pass(pair, budget):
    wire, _peer = pair
    budget.used = budget.most - MIB

    assert wire.hold_request(MIB)
    assert not wire.hold_request(MIB + 1)
    budget.change(MIB)
    assert wire.hold_request(SMALL_REQUEST_BYTES)
    wire.close()
    assert budget.used == budget.most


async def test_a_reply_is_charged_until_it_is_taken(pair, budgets):
    wire, peer = pair
    taken = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send, [bytes(2 * MIB)])
        await wait_all_tasks_blocked()
        assert budgets.replies.used == 2 * MIB
        while taken < 2 * MIB + 4:
            await trio.lowlevel.wait_readable(peer)
            taken += len(peer.recv(1 << 20))

    assert budgets.replies.used == 0


async def test_pages_get_small_as_room_gets_short(pair, budgets):
    wire, _peer = pair
    pages = []
    for _ in range(40):
        pages.append(wire.page_bytes)
        budgets.replies.change(wire.page_bytes)

    assert pages[0] == budgets.replies.most // 4
    assert pages == sorted(pages, reverse=True)
    assert pages[-1] == SMALL_REPLY_BYTES


async def test_a_large_reply_waits_for_room_and_a_small_one_does_not(pair, budgets):
    wire, _peer = pair
    budgets.replies.used = budgets.replies.most
    assert await wire.hold_reply(SMALL_REPLY_BYTES)
    outcome = []

    async def hold() -> None:
        outcome.append(await wire.hold_reply(2 * MIB))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        budgets.replies.change(-MIB)
        await wait_all_tasks_blocked()
        assert outcome == []
        budgets.replies.change(-MIB)

    assert outcome == [True]
    assert budgets.replies.used == budgets.replies.most


async def test_a_large_reply_does_not_wait_for_ever(pair, budgets, autojump_clock):
    wire, _peer = pair
    budgets.replies.used = budgets.replies.most

    assert not await wire.hold_reply(2 * MIB)

    assert budgets.replies.used == budgets.replies.most


async def test_a_reply_larger_than_all_room_passes_alone(pair, budgets):
    wire, _peer = pair

    assert await wire.hold_reply(budgets.replies.most + 1)
    wire.close()
    assert budgets.replies.used == 0


# -- the end of a connection ------------------------------------------------------------------------


async def test_a_half_closed_peer_has_not_hung_up(pair):
    wire, peer = pair
    gone = False

    async def watch() -> None:
        nonlocal gone
        await wire.wait_hang_up()
        gone = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        peer.shutdown(socket.SHUT_WR)
        await wait_all_tasks_blocked()
        assert not gone
        await wire.send([b"the reply"])
        assert peer.recv(100) == frame(b"the reply")
        peer.close()

    assert gone


async def test_a_drained_peer_may_go_on_sending_and_still_reads(pair):
    wire, peer = pair
    async with trio.open_nursery() as nursery:
        await wire.send([b"why"])
        nursery.start_soon(wire.drain)
        await wait_all_tasks_blocked()
        peer.send(frame(b"a request"))
        await wait_all_tasks_blocked()
        assert peer.recv(100) == frame(b"why")
        assert peer.recv(100) == b""
        peer.close()


async def test_draining_ends(pair, autojump_clock):
    wire, _peer = pair
    began = trio.current_time()

    await wire.drain()

    assert trio.current_time() - began == pytest.approx(LINGER_SECONDS)


async def test_sending_to_a_peer_that_left_is_no_crash(pair):
    wire, peer = pair
    peer.close()

    with pytest.raises(PeerGone):
        await wire.send([b"reply"])


async def test_closing_twice_is_harmless(pair):
    wire, _peer = pair

    wire.close()
    wire.close()
