"""One native connection's bytes: frames in, frames out, with a deadline on each wait for a slow peer.

This drives a non-blocking socket directly and not through `trio.SocketStream`: with group commit a reply costs a few
dozen microseconds, and two task switches less a request are a third of that.
"""

import fcntl
import select
import socket
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from superfluid.core.limits import (
    FRAME_READ_SECONDS,
    KIB,
    LINGER_SECONDS,
    MAX_BUFFERED_BYTES,
    MAX_REPLY_BYTES,
    MIB,
    REPLY_ROOM_SECONDS,
    SEND_SECONDS,
    SMALL_REPLY_BYTES,
    SMALL_REQUEST_BYTES,
)
from superfluid_protocol.framing import HEADER_BYTES, MAX_FRAME, FrameDecoder, encode_frame

FIRST_READ_BYTES: Final = 4 * KIB
READ_BYTES: Final = 64 * KIB
"""Most bytes of one read: at a frame's beginning, where nearly all requests are whole, and in the rest of a large one."""


class PeerGone(Exception):
    """The client is gone, or too slow to go on with."""


class Budget:
    """Bytes of one kind that all connections together may hold.

    A frame may be 64 MiB; a thousand clients that each send all but the last byte of one, or take all but the last
    byte of one, must not take the machine's memory.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._freed = trio.lowlevel.ParkingLot()

    def change(self, by: int) -> None:
        """Hold more, or give back."""
        self.used += by
        if by < 0:
            self._freed.unpark_all()

    async def wait_freed(self) -> None:
        """Return when something was given back."""
        await self._freed.park()


@dataclass(slots=True)
class Budgets:
    """What all connections share."""

    requests: Budget = field(default_factory=lambda: Budget(MAX_BUFFERED_BYTES))
    replies: Budget = field(default_factory=lambda: Budget(MAX_REPLY_BYTES))


class HangUps:
    """Tells when peers have closed their connections, both ways. Close it with `close`.

    A client that only shut its writing side still waits for its reply; its socket reads as ended for ever, so
    readability says nothing. The kernel reports the full hang-up whatever one asks for, so this asks for nothing
    else. One descriptor serves all connections: a daemon that is short of them must not need more to go on.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._waiting: dict[int, trio.Event] = {}

    async def run(self) -> None:
        """Wake those whose peers are gone, until it is cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._poll.fileno())
            for fd, _events in self._poll.poll(0):
                self._poll.unregister(fd)
                self._waiting.pop(fd).set()

    async def wait(self, sock: socket.socket) -> None:
        """Return when the peer of *sock* has hung up. One task a socket; it stays open meanwhile."""
        fd, gone = sock.fileno(), trio.Event()
        self._waiting[fd] = gone
        self._poll.register(fd, 0)
        try:
            await gone.wait()
        finally:
            if self._waiting.pop(fd, None) is not None:
                self._poll.unregister(fd)

    def close(self) -> None:
        """Give the descriptor back, once `run` has ended."""
        self._poll.close()


class Wire:
    """Frames over one connected Unix socket (non-blocking). Close it with `close`."""

    def __init__(self, sock: socket.socket, budgets: Budgets, hang_ups: HangUps) -> None:
        self._sock = sock
        self._requests = budgets.requests
        self._replies = budgets.replies
        self._hang_ups = hang_ups
        self._decoder = FrameDecoder()
        self._request = 0  # bytes of the request that is being answered
        self._held = 0  # what is charged for it and for what is buffered behind it
        self._reply = 0

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes of the next request are here already."""
        return self._decoder.buffered > 0

    async def next_frame(self) -> bytes | None:
        """The next payload, or None when the client closed its side between frames.

        Idling between frames has no limit. A frame that has begun must come to its end: it gets `FRAME_READ_SECONDS`,
        and as much again for each MiB of it that came.

        Raises:
            FrameTooLarge: The declared length passes the limit; the connection has to end.
            PeerGone: It closed or stalled inside a frame, or the daemon's budget for unfinished frames is used up.
        """
        decoder = self._decoder
        frame = decoder.next_frame()
        if frame is None and decoder.buffered == 0:
            chunk = await self._receive(FIRST_READ_BYTES)
            if not chunk:
                return None
            decoder.feed(chunk)
            frame = decoder.next_frame()
        if frame is None:
            frame = await self._rest_of_frame()
        self._settle()
        return frame

    def hold_request(self, size: int) -> bool:
        """Charge *size* bytes for the request that is being answered, in place of what was charged for it before.

        Returns:
            Whether there is room. Where there is none the request has to be refused; a small one always has it.
        """
        self._request = size
        self._settle()
        return size <= SMALL_REQUEST_BYTES or self._requests.used <= self._requests.most

    @property
    def page_bytes(self) -> int:
        """How large a reply that can be cut should be now: a quarter of what all of them may still hold."""
        return min(MAX_FRAME, max(SMALL_REPLY_BYTES, (self._replies.most - self._replies.used) // 4))

    async def hold_reply(self, size: int) -> bool:
        """Charge *size* bytes for the next reply; a large one waits until there is room for it.

        Returns:
            Whether there was room in time. `send` gives it back.
        """
        replies = self._replies
        if size <= SMALL_REPLY_BYTES:
            self._charge_reply(size)
            return True
        with trio.move_on_after(REPLY_ROOM_SECONDS):
            while (others := replies.used - self._reply) and others + size > replies.most:
                await replies.wait_freed()
            self._charge_reply(size)
            return True
        return False

    async def send(self, payloads: list[bytes]) -> None:
        """Send the payloads as frames, together. Their bytes are charged until the client has taken them.

        Raises:
            PeerGone: The client is gone, took nothing for `SEND_SECONDS`, or less than one MiB in each.
        """
        self._charge_reply(sum(map(len, payloads)))
        try:
            begun, taken = trio.current_time(), 0
            for buffer in _buffers(payloads):
                data = memoryview(buffer)
                while data:
                    sent = self._send_some(data)
                    data = data[sent:]
                    taken += sent
                    if data:
                        await self._wait_taken(begun + SEND_SECONDS * (1 + taken // MIB))
        finally:
            self._charge_reply(0)

    async def drain(self) -> None:
        """Say that nothing more comes, and take what the client sends until it closes, or for `LINGER_SECONDS`.

        A client that sends before it reads would find a connection closed at once broken, and never read the reason.
        """
        with trio.move_on_after(LINGER_SECONDS), suppress(OSError, PeerGone):
            self._sock.shutdown(socket.SHUT_WR)
            while await self._receive(READ_BYTES):
                pass

    async def wait_hang_up(self) -> None:
        """Return when the client has closed the connection, both ways."""
        await self._hang_ups.wait(self._sock)

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self._requests.change(-self._held)
        self._held = self._request = 0
        self._charge_reply(0)
        if self._sock.fileno() != -1:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def _rest_of_frame(self) -> bytes:
        decoder = self._decoder
        received = decoder.buffered
        begun = trio.current_time()
        with trio.move_on_after(FRAME_READ_SECONDS) as scope:
            while (frame := decoder.next_frame()) is None:
                chunk = await self._receive(READ_BYTES)
                if not chunk:
                    raise PeerGone("it closed in the middle of a frame")
                decoder.feed(chunk)
                received += len(chunk)
                scope.deadline = begun + FRAME_READ_SECONDS * (1 + received // MIB)
                self._settle()
                if self._held > SMALL_REQUEST_BYTES and self._requests.used > self._requests.most:
                    raise PeerGone("the daemon's room for unfinished large frames is used up")
            return frame
        raise PeerGone("it stalled in the middle of a frame")

    async def _receive(self, most: int) -> bytes:
        """The next bytes. It waits before it reads, since a client's next request is hardly ever there when its last
        one was answered, and so that one with many requests takes turns with the others."""
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(most)
            except BlockingIOError:
                continue
            except OSError as failure:
                raise PeerGone(failure.strerror or "its connection broke") from failure

    def _unread(self) -> int:
        """Bytes of the kernel's that the peer has not taken yet (``SIOCOUTQ`` of ``unix(7)``)."""
        count: int = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4)))[0]
        return count

    def _send_some(self, data: memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as failure:
            raise PeerGone(failure.strerror or "its connection broke") from failure

    async def _wait_taken(self, deadline: float) -> None:
        """Return when the socket takes more, or the client took something of what it holds."""
        unread = self._unread()
        with trio.move_on_at(min(deadline, trio.current_time() + SEND_SECONDS)) as scope:
            await trio.lowlevel.wait_writable(self._sock)
        # The kernel calls a socket writable when most of its buffer is free: a slow peer may be on its way there.
        if scope.cancelled_caught and (trio.current_time() >= deadline or self._unread() >= unread):
            raise PeerGone("it took too little of a reply in time")

    def _settle(self) -> None:
        """Bring the shared budget in line with what this connection holds of requests."""
        held = self._decoder.buffered + self._request
        if held != self._held:
            self._requests.change(held - self._held)
            self._held = held

    def _charge_reply(self, size: int) -> None:
        if size != self._reply:
            self._replies.change(size - self._reply)
            self._reply = size


def _buffers(payloads: list[bytes]) -> list[bytes]:
    """The frames' bytes; a large payload is not copied."""
    if len(payloads) == 1 and len(payloads[0]) > SMALL_REPLY_BYTES:
        assert len(payloads[0]) <= MAX_FRAME
        return [len(payloads[0]).to_bytes(HEADER_BYTES, "little"), payloads[0]]
    return [b"".join([encode_frame(payload) for payload in payloads])]
