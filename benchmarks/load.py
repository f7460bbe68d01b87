"""A load generator light enough not to be what is measured: many connections, one thread, prepared frames."""

import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from superfluid_protocol import GenParams, Request, Response, decode, encode, request, response

LENGTH = struct.Struct("<I")
GREEDY = GenParams(temperature=0.0, top_p=1.0, min_p=0.0, top_k=0, seed=1)


def frame(req: Request) -> bytes:
    """A request as it goes over the socket."""
    payload = encode(req)
    return LENGTH.pack(len(payload)) + payload


class Caller:
    """One blocking connection. A wait of more than *timeout* seconds is a ``TimeoutError``."""

    def __init__(self, path: Path, *, timeout: float | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout)
        self.sock.connect(str(path))
        self._file = self.sock.makefile("rb")

    def send(self, req: Request) -> None:
        """Send one request."""
        self.sock.sendall(frame(req))

    def receive(self) -> Response:
        """Receive one reply."""
        (length,) = LENGTH.unpack(self._file.read(LENGTH.size))
        return decode(Response, self._file.read(length))[0]

    def call(self, req: Request) -> Response:
        """One request, one reply; an `Err` raises."""
        self.send(req)
        reply = self.receive()
        if isinstance(reply, response.Err):
            raise RuntimeError(reply.message)  # noqa: TRY004 - it is a refusal, no type error
        return reply

    def create(self, params: GenParams = GREEDY) -> int:
        """A new session."""
        reply = self.call(request.Create(parent=None, params=params))
        assert isinstance(reply, response.Created)
        return reply.session

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.sock.close()


@dataclass
class _Client:
    sock: socket.socket
    frame: bytes
    left: int
    received: bytearray = field(default_factory=bytearray)


def append_storm(path: Path, *, clients: int, each: int, make: Callable[[int], Request]) -> float:
    """Many clients, each appending again and again to a session of its own. Returns appends a second.

    Args:
        make: The append for a session.
    """
    callers = [Caller(path) for _ in range(clients)]
    selector = selectors.DefaultSelector()
    for caller in callers:
        client = _Client(caller.sock, frame(make(caller.create())), each)
        caller.sock.setblocking(False)  # noqa: FBT003 - the socket's own API
        selector.register(caller.sock, selectors.EVENT_READ, client)
    began = time.perf_counter()
    for key in list(selector.get_map().values()):
        key.data.sock.send(key.data.frame)
    busy = clients
    while busy:
        for key, _events in selector.select():
            busy -= _step(key.data)
    seconds = time.perf_counter() - began
    selector.close()
    for caller in callers:
        caller.close()
    return clients * each / seconds


def _step(client: _Client) -> int:
    """Take what came; at a whole reply send the next request. Returns 1 when the client is done."""
    client.received += client.sock.recv(65536)
    if len(client.received) < LENGTH.size:
        return 0
    (length,) = LENGTH.unpack_from(client.received)
    if len(client.received) < LENGTH.size + length:
        return 0
    if client.received[LENGTH.size] != 3:  # Committed
        raise RuntimeError(str(decode(Response, bytes(client.received[LENGTH.size :]))[0]))
    client.received.clear()
    client.left -= 1
    if client.left:
        client.sock.send(client.frame)
        return 0
    return 1
