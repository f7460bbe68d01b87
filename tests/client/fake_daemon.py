"""A scripted daemon on a real Unix socket: it speaks frames and answers what the test tells it to."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from superfluid_protocol import (
    EventMsg,
    FrameDecoder,
    Request,
    Response,
    decode,
    encode,
    encode_frame,
    event,
    request,
    response,
)


class HangUp:
    """In a script: close the connection here."""


class WaitForHangUp:
    """In a script: answer nothing more until the client is gone."""


Step = Response | bytes | HangUp | WaitForHangUp
Script = Callable[[Request], Iterator[Step]]


class FakeDaemon:
    """Answers each request by a script; remembers what was asked, and on how many connections."""

    def __init__(self, path: Path, script: Script) -> None:
        self.path = path
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self.hung_up = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._start(self._accept)

    def close(self) -> None:
        """Hang up on everybody and remove the socket, as an end of the daemon does. Safe to call twice."""
        if self._listener.fileno() == -1:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        self.drop_connections()
        for thread in self._threads:
            thread.join(5)

    def drop_connections(self) -> None:
        """Hang up on every client."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _address = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        decoder = FrameDecoder()
        with sock:
            try:
                while data := sock.recv(65536):
                    decoder.feed(data)
                    while (payload := decoder.next_frame()) is not None:
                        if not self._answer(sock, decode(Request, payload)[0]):
                            return
            except OSError:
                return
            finally:
                self._open.discard(sock)

    def _answer(self, sock: socket.socket, req: Request) -> bool:
        self.requests.append(req)
        for step in self.script(req):
            if isinstance(step, HangUp):
                return False
            if isinstance(step, WaitForHangUp):
                assert not sock.recv(1), "the client sent something in the middle of a reply"
                self.hung_up.set()
                return False
            sock.sendall(encode_frame(step if isinstance(step, bytes) else encode(step)))
        return True


def committed(event_id: int, text: str = "", *, channel: int = 0, finish: int = 0) -> EventMsg:
    """A piece of a reply."""
    body = event.Generated(span=(event_id,), text=text, channel=channel, finish=finish)
    return EventMsg(event_id=event_id, epoch=1, ts_unix_ms=0, body=body)


def appended(event_id: int) -> response.Committed:
    """The reply to an append."""
    body = event.Appended(text=None, span=(1,))
    return response.Committed(event=EventMsg(event_id=event_id, epoch=1, ts_unix_ms=0, body=body))


def story(req: Request) -> Iterator[Step]:
    """A reply of three pieces, and simple answers to the rest."""
    match req:
        case request.Generate():
            events = (committed(2, "Hel"), committed(3), committed(4, "lo", finish=1))
            for message in events:
                yield response.Delta(event=message)
            yield response.Generated(events=events, tokens_generated=3, finish=1, warm_prefix=7)
        case request.Create():
            yield response.Created(session=9)
        case request.AppendMessage() | request.Append():
            yield appended(1)
        case request.Fork() | request.Trim():
            yield response.Created(session=10)
        case request.Tree():
            yield response.Tree(nodes=((9, None, 0), (10, 9, 3)))
        case request.Cancel(session=session):
            yield response.Err(message=f"session {session} has no generation in flight")
        case request.Read(cursor=cursor):
            # Two events a page, six in all.
            yield response.Events(events=tuple(committed(i, "x") for i in range(cursor, min(cursor + 2, 6))))
        case _:
            yield response.Err(message=f"{type(req).__name__} is not supported yet")
