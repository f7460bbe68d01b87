"""Many replies at once, watched by one thread: which tokens came when, as a client sees it."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from benchmarks.load import Caller, frame
from superfluid_protocol import GenParams, Response, decode, event, request, response
from superfluid_protocol.framing import FrameDecoder


class EndedEarly(RuntimeError):
    """The model ended a reply by itself, so that too little was measured. Other prompts may do."""


class ReplyFailed(RuntimeError):
    """A reply that had to succeed did not."""


@dataclass(kw_only=True)
class Stream:
    """One reply on its way. Times are of ``time.perf_counter``, in seconds.

    Attributes:
        asked: When it was asked for.
        arrivals: (when, ids) of every piece.
        end: What closed it; None when it failed, with the reason in *error*.
        ended: When it closed; 0 while it runs.
    """

    session: int
    asked: float
    arrivals: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    end: response.Generated | None = None
    error: str = ""
    ended: float = 0.0

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return [token for _when, ids in self.arrivals for token in ids]

    @property
    def count(self) -> int:
        """How many tokens so far."""
        return sum(len(ids) for _when, ids in self.arrivals)

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first token."""
        return self.arrivals[0][0] - self.asked

    def gaps(self) -> list[float]:
        """Seconds between one piece and the next."""
        times = [when for when, _ids in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]

    def closed(self) -> response.Generated:
        """The closing reply.

        Raises:
            ReplyFailed: There is none.
        """
        if self.end is None:
            raise ReplyFailed(self.error or "the reply is still running")
        return self.end


class Crowd:
    """Asks for replies, each over a connection of its own, and watches them come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._selector = selectors.DefaultSelector()
        self.streams: list[Stream] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for key in list(self._selector.get_map().values()):
            self._drop(key.fileobj)
        self._selector.close()

    def ask(self, session: int, max_tokens: int) -> Stream:
        """Ask for a reply; `watch` sees it come."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self._path))
        stream = Stream(session=session, asked=time.perf_counter())
        sock.sendall(frame(request.Generate(session=session, max_tokens=max_tokens)))
        self._selector.register(sock, selectors.EVENT_READ, (stream, FrameDecoder()))
        self.streams.append(stream)
        return stream

    @property
    def running(self) -> int:
        """Replies that have not ended."""
        return len(self._selector.get_map())

    def watch(self, *, until: Callable[[], bool] = lambda: False, seconds: float = 3600.0) -> bool:
        """Watch until all have ended, *until* says so (asked after each arrival), or time is up.

        Returns whether time was not up.
        """
        deadline = time.perf_counter() + seconds
        while self.running and not until():
            left = deadline - time.perf_counter()
            if left <= 0:
                return False
            for key, _mask in self._selector.select(left):
                self._receive(key)
        return True

    def _receive(self, key: selectors.SelectorKey) -> None:
        stream, frames = key.data
        assert isinstance(key.fileobj, socket.socket)
        try:
            data = key.fileobj.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        now = time.perf_counter()
        frames.feed(data)
        while (payload := frames.next_frame()) is not None:
            _take(stream, decode(Response, payload)[0], now)
        if not data and not stream.ended:
            stream.error, stream.ended = "the connection was closed", now
        if stream.ended:
            self._drop(key.fileobj)

    def _drop(self, sock: object) -> None:
        assert isinstance(sock, socket.socket)
        self._selector.unregister(sock)
        sock.close()


def _take(stream: Stream, reply: Response, now: float) -> None:
    match reply:
        case response.Delta(event=message):
            if isinstance(message.body, event.Generated) and message.body.span:
                stream.arrivals.append((now, message.body.span))
        case response.Generated():
            stream.end, stream.ended = reply, now
        case response.Err(message=text):
            stream.error, stream.ended = text, now
        case _:
            raise RuntimeError(f"a reply that nobody asked for: {reply}")


def shared_rate(arrivals: Sequence[Sequence[tuple[float, int]]], *, least: int) -> float:
    """Tokens a second of all lanes together, while all of them decode: from when every lane has begun until the first
    one ends.

    Args:
        arrivals: (when, tokens) of every piece, lane by lane.
        least: Tokens that have to fall into that time.

    Raises:
        EndedEarly: Fewer do.
    """
    if not all(arrivals):
        raise EndedEarly
    first = max(lane[0][0] for lane in arrivals)
    last = min(lane[-1][0] for lane in arrivals)
    counted = sum(tokens for lane in arrivals for when, tokens in lane if first < when <= last)
    if counted < least:
        raise EndedEarly
    return counted / (last - first)


def sizes(stream: Stream) -> list[tuple[float, int]]:
    """When how many tokens came."""
    return [(when, len(ids)) for when, ids in stream.arrivals]


def raw_session(caller: Caller, ids: Sequence[int], params: GenParams) -> int:
    """A session whose stream is these ids: the reply continues them, with nothing of a chat between."""
    session = caller.create(params)
    append(caller, session, ids)
    return session


def append(caller: Caller, session: int, ids: Sequence[int]) -> None:
    """Append ids as they are."""
    caller.call(request.Append(session=session, text=None, span=tuple(ids)))


def stream_of(caller: Caller, session: int) -> list[int]:
    """All token ids of a session, as its log has them."""
    reply = caller.call(request.Inspect(session=session))
    assert isinstance(reply, response.Inspection)
    return list(reply.inspection.tokens)


def fork(caller: Caller, session: int) -> int:
    """A session that shares all events of another."""
    reply = caller.call(request.Inspect(session=session))
    assert isinstance(reply, response.Inspection)
    made = caller.call(
        request.Fork(
            session=session, at_event=reply.inspection.summary.events, params=reply.inspection.params
        )
    )
    assert isinstance(made, response.Created)
    return made.session


def counters(caller: Caller) -> dict[str, float]:
    """The daemon's metrics: by name, labels included."""
    reply = caller.call(request.Metrics())
    assert isinstance(reply, response.Text)
    lines = (line.rpartition(" ") for line in reply.text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("superfluid_"): float(value) for name, _space, value in lines}
