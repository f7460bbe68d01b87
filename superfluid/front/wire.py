"""One native connection's bytes: frames in, frames out, with a deadline on each wait for a slow peer.

This drives a non-blocking socket directly and not through `trio.SocketStream`: with group commit a reply costs a few
dozen microseconds, and two task switches less a request are a third of that.
"""

import fcntl
import select
import socket
import struct
import termios
from typing import Final

import trio

from superfluid.core.limits import FRAME_READ_SECONDS, KIB, MAX_BUFFERED_BYTES, MIB, SEND_SECONDS
from superfluid_protocol.framing import FrameDecoder, encode_frame

FIRST_READ_BYTES: Final = 4 * KIB
READ_BYTES: Final = 64 * KIB
"""Most bytes of one read: at a frame's beginning, where nearly all requests are whole, and in the rest of a large one."""


class PeerGone(Exception):
    """The client is gone, or too slow to go on with."""


class Budget:
    """Bytes of unfinished frames that all connections together may hold.

    A frame may be 64 MiB; a thousand clients that each send all but the last byte of one must not take the
    machine's memory.
    """

    def __init__(self, most: int = MAX_BUFFERED_BYTES) -> None:
        self.most = most
        self.used = 0


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

    def __init__(self, sock: socket.socket, budget: Budget, hang_ups: HangUps) -> None:
        self._sock = sock
        self._budget = budget
        self._hang_ups = hang_ups
        self._decoder = FrameDecoder()
        self._held = 0

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
        self._account()
        return frame

    async def send(self, payloads: list[bytes]) -> None:
        """Send the payloads as frames, together.

        Raises:
            PeerGone: The client is gone, or took nothing for `SEND_SECONDS`.
        """
        data = memoryview(b"".join([encode_frame(payload) for payload in payloads]))
        while True:
            try:
                sent = self._sock.send(data)
                if sent == len(data):
                    return
                data = data[sent:]
            except BlockingIOError:
                pass
            except OSError as failure:
                raise PeerGone(failure.strerror or "its connection broke") from failure
            unread = self._unread()
            with trio.move_on_after(SEND_SECONDS) as scope:
                await trio.lowlevel.wait_writable(self._sock)
            # The kernel calls a socket writable when most of its buffer is free: a slow peer may be on its way there.
            if scope.cancelled_caught and self._unread() >= unread:
                raise PeerGone("it took nothing of a reply in time")

    async def wait_hang_up(self) -> None:
        """Return when the client has closed the connection, both ways."""
        await self._hang_ups.wait(self._sock)

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        self._budget.used -= self._held
        self._held = 0
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
                self._account()
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

    def _account(self) -> None:
        """Bring the shared budget in line with what this connection holds; refuse to hold more than there is."""
        held = self._decoder.buffered
        if held != self._held:
            self._budget.used += held - self._held
            self._held = held
            if self._budget.used > self._budget.most and held > MIB:
                raise PeerGone("the daemon's room for unfinished large frames is used up")
