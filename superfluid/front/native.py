"""The native transport: postcard frames over a Unix socket, one request at a time a connection.

    frame -> decode -> Service.call -> encode -> frame
                    \\-> Generate: a Delta for each event as it is committed, then Generated

A payload that does not decode gets an `Err` and the connection goes on, since the framing is intact; a declared length
beyond the limit gets an `Err` and ends it.
"""

import errno
import resource
import socket
import sys
from contextlib import closing
from functools import partial
from typing import Final

import structlog
import trio

from superfluid.api.generate import Generations
from superfluid.api.service import Service
from superfluid.core import view
from superfluid.core.errors import BadRequest, SuperfluidError, TooManyInFlight
from superfluid.core.limits import (
    INLINE_BYTES,
    LISTED_SESSION_BYTES,
    MAX_CONNECTIONS,
    MAX_LINGERING,
    RESERVED_DESCRIPTORS,
    TOKEN_BYTES,
)
from superfluid.front.listener import Listener, peer_allowed
from superfluid.front.wire import Budgets, HangUps, PeerGone, Wire
from superfluid.sched.generation import Generation
from superfluid_protocol import DecodeError, Request, Response, decode, encode, request, response
from superfluid_protocol.framing import MAX_FRAME, FrameTooLarge

ACCEPT_RETRY_SECONDS: Final = 0.1
"""Pause of accepting when the process is out of descriptors; connections wait in the kernel's backlog."""

_DECODING: Final = trio.CapacityLimiter(1)
"""One large request is decoded at a time: its objects may take ten times its bytes."""

_ENCODING: Final = trio.CapacityLimiter(1)
"""One large reply is encoded at a time: meanwhile its bytes are there twice."""

HEAD_BYTES: Final = 64
"""More than a reply's own fields take beside its events."""

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
        self._budgets = Budgets()
        self._lingering = trio.CapacityLimiter(MAX_LINGERING)
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
                        nursery.start_soon(self._serve, Wire(sock, self._budgets, hang_ups))

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
            await self._linger(wire)
            return
        try:
            await serve_connection(wire, self._service, self._requests)
        finally:
            self._connections.release()

    async def _linger(self, wire: Wire) -> None:
        try:
            self._lingering.acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            await wire.drain()
        finally:
            self._lingering.release()


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
            await wire.drain()
            return
        if payload is None:
            return
        with in_flight:
            req: Request | None = None
            try:
                req = await _request_of(wire, payload)
                payload = None  # its bytes are charged as the request's from here on
                await _answer(wire, service, req)
            except (BadRequest, TooManyInFlight) as refusal:
                await wire.send([_error(str(refusal))])
                await trio.lowlevel.checkpoint()
            finally:
                # Nothing of it is held, nor charged, while the next one is waited for.
                payload = req = None
                wire.hold_request(0)
        if wire.holds_bytes:
            # A client that sends many requests at once must not keep the others waiting.
            await trio.lowlevel.checkpoint()


async def _request_of(wire: Wire, payload: bytes) -> Request:
    """The decoded request. What it takes is charged until it is answered: first its bytes, then its objects.

    Raises:
        BadRequest: It does not decode.
        TooManyInFlight: It is large, and there is no room for it beside the others'.
    """
    if not wire.hold_request(len(payload)):
        raise _no_room(len(payload))
    try:
        if len(payload) <= INLINE_BYTES:
            req, consumed = decode(Request, payload)
        else:
            req, consumed = await trio.to_thread.run_sync(
                partial(decode, Request, payload), limiter=_DECODING
            )
    except DecodeError as refusal:
        raise BadRequest(f"the request does not decode: {refusal}") from refusal
    if consumed != len(payload):
        extra = len(payload) - consumed
        raise BadRequest(f"{extra} bytes are left over behind a complete {type(req).__name__} request")
    size = (
        len(payload) + TOKEN_BYTES * len(getattr(req, "span", ())) + sys.getsizeof(getattr(req, "text", ""))
    )
    if not wire.hold_request(size):
        raise _no_room(len(payload))
    return req


def _no_room(size: int) -> TooManyInFlight:
    return TooManyInFlight(
        f"the daemon's room for large requests is used up; send this one of {size} bytes again later"
    )


async def _answer(wire: Wire, service: Service, req: Request) -> None:
    if isinstance(req, request.Generate):
        await _generate(wire, service, req)
    else:
        await wire.send([await _call(wire, service, req)])


async def _call(wire: Wire, service: Service, req: Request) -> bytes:
    try:
        if isinstance(req, request.Read):
            reply = service.read(req, room=min(wire.page_bytes - HEAD_BYTES, view.REPLY_BYTES))
        else:
            await _make_room(wire, _objects_bytes(service, req))
            reply = await service.call(req)
        return await _encode(wire, reply)
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
        return await _encode(wire, generations.reply(generation))
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
            await wire.send([encode(response.Delta(event=message)) for message in fresh])
        elif generation.done:
            return
        else:
            await generations.wait(generation)


def _refusal(failure: Exception, req: Request) -> bytes:
    if isinstance(failure, SuperfluidError):
        return _error(str(failure))
    _log.error("request failed", request=type(req).__name__, exc_info=failure)
    return _error("internal error; the daemon's log has the details")


async def _encode(wire: Wire, reply: Response) -> bytes:
    """The reply's bytes; one that would not fit a frame becomes an `Err`, since the client could not take it.

    Raises:
        TooManyInFlight: It is large, and too many bytes of replies wait for slow clients.
    """
    bound = _size_bound(reply)
    if bound <= INLINE_BYTES:
        return encode(reply)
    await _make_room(wire, min(bound, MAX_FRAME))
    payload = await trio.to_thread.run_sync(encode, reply, limiter=_ENCODING)
    if len(payload) > MAX_FRAME:
        way_out = _TOO_LARGE.get(type(reply), "it cannot be asked for in parts")
        return _error(f"the reply would take {len(payload)} bytes and a frame holds {MAX_FRAME}; {way_out}")
    return payload


async def _make_room(wire: Wire, size: int) -> None:
    """Charge *size* bytes for the reply; raises `TooManyInFlight` when slow clients leave no room for it in time."""
    if not await wire.hold_reply(size):
        raise TooManyInFlight(
            "the daemon's room for large replies is used up by slow clients; ask again later"
        )


def _objects_bytes(service: Service, req: Request) -> int:
    """What the objects of a reply take that grows with the state and is made before it is encoded; 0 for the others,
    whose events are the state's own."""
    sessions = service.store.state.sessions if isinstance(req, _GROWING) else {}
    if isinstance(req, request.Inspect):
        asked = sessions.get(req.session)
        return 0 if asked is None else TOKEN_BYTES * asked.tokens
    return LISTED_SESSION_BYTES * len(sessions)


_GROWING: Final = (request.Inspect, request.List, request.Sessions, request.Tree)

_TOO_LARGE: Final[dict[type[Response], str]] = {
    response.Generated: "its events are committed: read the session in parts",
    response.Sessions: "it names every session that is not archived, and cannot be asked for in parts: archive some",
    response.SessionList: "it names all the sessions asked for, and cannot be asked for in parts: archive some, and"
    " leave the archived ones out",
    response.Tree: "it names every session, and cannot be asked for in parts",
}
"""What a client can do about a reply that no frame holds. `Read` and `Inspect` are cut to fit."""


def _size_bound(reply: Response) -> int:
    """Upper bound of a reply's bytes, by lengths alone; 0 for those that are always small."""
    match reply:
        case response.Committed(event=message):
            return view.size_bound(message)
        case response.Events(events=events) | response.Generated(events=events):
            return HEAD_BYTES + sum(map(view.size_bound, events))
        case response.Inspection(inspection=found):
            return 4096 + 5 * len(found.tokens) + sum(map(view.size_bound, found.events))
        case response.Sessions(ids=ids):
            return 10 * len(ids)
        case response.Tree(nodes=nodes):
            return 31 * len(nodes)
        case response.SessionList(sessions=sessions):
            return sum(128 + view.text_bound(session.title or "") for session in sessions)
        case response.Text(text=text):
            return view.text_bound(text)
        case _:
            return 0


def _error(message: str) -> bytes:
    return encode(response.Err(message=message))
