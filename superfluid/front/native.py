"""The native transport: postcard frames over a Unix socket, one request at a time a connection.

    frame -> decode -> Service.call -> encode -> frame
                    \\-> Generate: a Delta for each event as it is committed, then Generated

A payload that does not decode gets an `Err` and the connection goes on, since the framing is intact; a declared length
beyond the limit gets an `Err` and ends it.
"""

import errno
import resource
import socket
from contextlib import closing
from functools import partial
from typing import Final

import structlog
import trio

from superfluid.api.generate import Generations
from superfluid.api.service import Service
from superfluid.core.errors import SuperfluidError
from superfluid.core.limits import KIB, MAX_CONNECTIONS, RESERVED_DESCRIPTORS
from superfluid.front.listener import Listener, peer_allowed
from superfluid.front.wire import Budget, HangUps, PeerGone, Wire
from superfluid.sched.generation import Generation
from superfluid_protocol import DecodeError, Request, Response, decode, encode, request, response
from superfluid_protocol.framing import MAX_FRAME, FrameTooLarge

ACCEPT_RETRY_SECONDS: Final = 0.1
"""Pause of accepting when the process is out of descriptors; connections wait in the kernel's backlog."""

INLINE_FRAME_BYTES: Final = 256 * KIB
"""Larger requests are decoded in a thread: 64 MiB of token ids take seconds, in which nobody else would be served."""

_LARGE: Final = trio.CapacityLimiter(1)
"""One large request is decoded at a time: its objects may take ten times its bytes."""

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger(target=__name__)


class NativeServer:
    """Serves the native socket.

    Args:
        listener: Bound and listening; whoever made it closes it.
    """

    def __init__(self, listener: Listener, service: Service) -> None:
        self._listener = listener
        self._service = service
        self._budget = Budget()
        self._connections = trio.CapacityLimiter(most_connections())
        self._scope = trio.CancelScope()
        self._requests = InFlight()

    async def run(self) -> None:
        """Accept and serve connections until `close`; every connection ends with this."""
        with self._scope, closing(HangUps()) as hang_ups:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hang_ups.run)
                while True:
                    sock = await self._accept()
                    if sock is not None:
                        nursery.start_soon(self._serve, Wire(sock, self._budget, hang_ups))

    async def wait_idle(self) -> None:
        """Return when no request is being answered."""
        await self._requests.wait_zero()

    def close(self) -> None:
        """End all connections."""
        self._scope.cancel()

    async def _accept(self) -> socket.socket | None:
        """The next connection of an allowed peer, or None when there was something else to deal with."""
        try:
            sock, _address = self._listener.sock.accept()
        except BlockingIOError:
            await trio.lowlevel.wait_readable(self._listener.sock)
            return None
        except OSError as failure:
            _log.error("a connection could not be accepted", error=failure.strerror)
            if failure.errno in OUT_OF_RESOURCES:
                await trio.sleep(ACCEPT_RETRY_SECONDS)
            else:
                await trio.lowlevel.checkpoint()
            return None
        if not peer_allowed(sock):
            _log.warning("a connection of another user was refused")
            sock.close()
            return None
        sock.setblocking(False)  # noqa: FBT003 - the socket's own API
        return sock

    async def _serve(self, wire: Wire) -> None:
        with closing(wire):
            try:
                await self._serve_one(wire)
            except* PeerGone:
                pass
            except* Exception as faults:  # noqa: BLE001 - one connection's bug must not end the others
                _log.error("a connection failed", exc_info=faults)

    async def _serve_one(self, wire: Wire) -> None:
        try:
            self._connections.acquire_nowait()
        except trio.WouldBlock:
            most = int(self._connections.total_tokens)
            await wire.send([_error(f"the daemon serves {most} connections already; close some")])
            return
        try:
            await serve_connection(wire, self._service, self._requests)
        finally:
            self._connections.release()


def most_connections() -> int:
    """Connections at once: `MAX_CONNECTIONS`, or what the process's descriptors allow beside its other needs."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - RESERVED_DESCRIPTORS))


class InFlight:
    """Counts what is being done, and lets one wait until nothing is."""

    def __init__(self) -> None:
        self._count = 0
        self._zero = trio.lowlevel.ParkingLot()

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_exception: object) -> None:
        self._count -= 1
        if self._count == 0:
            self._zero.unpark_all()

    async def wait_zero(self) -> None:
        """Return when the count is zero."""
        while self._count:
            await self._zero.park()


async def serve_connection(wire: Wire, service: Service, in_flight: InFlight) -> None:
    """Answer one client's requests in order until it closes.

    Args:
        in_flight: Counts requests from their decoding until their reply is sent.

    Raises:
        PeerGone: It is gone or too slow.
    """
    while True:
        try:
            payload = await wire.next_frame()
        except FrameTooLarge as refusal:
            await wire.send(
                [_error(f"a frame of {refusal.declared} bytes was announced; at most {MAX_FRAME} are taken")]
            )
            return
        if payload is None:
            return
        with in_flight:
            await _answer(wire, service, payload)
        if wire.holds_bytes:
            # A client that sends many requests at once must not keep the others waiting.
            await trio.lowlevel.checkpoint()


async def _answer(wire: Wire, service: Service, payload: bytes) -> None:
    try:
        if len(payload) <= INLINE_FRAME_BYTES:
            req, consumed = decode(Request, payload)
        else:
            req, consumed = await trio.to_thread.run_sync(partial(decode, Request, payload), limiter=_LARGE)
    except DecodeError as refusal:
        await wire.send([_error(f"the request does not decode: {refusal}")])
        await trio.lowlevel.checkpoint()
        return
    if consumed != len(payload):
        extra = len(payload) - consumed
        await wire.send(
            [_error(f"{extra} bytes are left over behind a complete {type(req).__name__} request")]
        )
    elif isinstance(req, request.Generate):
        await _generate(wire, service, req)
    else:
        await wire.send([await _call(service, req)])


async def _call(service: Service, req: Request) -> bytes:
    try:
        return _encode(await service.call(req))
    except Exception as failure:  # noqa: BLE001 - one request's bug must not end the daemon
        return _refusal(failure, req)


async def _generate(wire: Wire, service: Service, req: request.Generate) -> None:
    """Run one generation for this client; when the client goes, so does the generation.

    Raises:
        PeerGone: The client is gone.
    """
    last: bytes | None = None
    async with trio.open_nursery() as nursery:

        async def cancel_on_hang_up() -> None:
            await wire.wait_hang_up()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel_on_hang_up)
        last = await _stream(wire, service, req)
        nursery.cancel_scope.cancel()
    if last is None:
        raise PeerGone("it left in the middle of a generation")
    await wire.send([last])


async def _stream(wire: Wire, service: Service, req: request.Generate) -> bytes | None:
    """Send the events of a generation as they are committed.

    Returns:
        The closing reply, or None when the client is gone.
    """
    generations = service.generations
    try:
        generation = await generations.start(req.session, req.max_tokens)
    except Exception as failure:  # noqa: BLE001 - as in _call
        return _refusal(failure, req)
    try:
        await _follow(wire, generations, generation)
        return _encode(generations.reply(generation))
    except PeerGone:
        return None
    except Exception as failure:  # noqa: BLE001 - as in _call
        return _refusal(failure, req)
    finally:
        generations.abandon(generation)


async def _follow(wire: Wire, generations: Generations, generation: Generation) -> None:
    """Send what is committed until the generation is done and all of it is sent.

    The log is the queue: a client that reads slowly is behind in it, holds no memory and slows nobody.
    """
    cursor = generation.first_event
    while True:
        fresh = generations.new_events(generation, cursor)
        if fresh:
            cursor = fresh[-1].event_id + 1
            await wire.send([_encode(response.Delta(event=message)) for message in fresh])
        elif generation.done:
            return
        else:
            await generations.wait(generation)


def _refusal(failure: Exception, req: Request) -> bytes:
    if isinstance(failure, SuperfluidError):
        return _error(str(failure))
    _log.error("request failed", request=type(req).__name__, exc_info=failure)
    return _error("internal error; the daemon's log has the details")


def _encode(reply: Response) -> bytes:
    """The reply's bytes; one that would not fit a frame becomes an `Err`, since the client could not take it."""
    payload = encode(reply)
    if len(payload) > MAX_FRAME:
        return _error(
            f"the reply would take {len(payload)} bytes and a frame holds {MAX_FRAME}; read the session in parts"
        )
    return payload


def _error(message: str) -> bytes:
    return encode(response.Err(message=message))
