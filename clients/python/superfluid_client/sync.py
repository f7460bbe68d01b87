"""The synchronous client: it blocks, and runs anywhere. ``aio`` is its twin; what both do is in ``operations``."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from superfluid_client import operations as ops
from superfluid_client.exchange import READ_BYTES, Exchange, lost
from superfluid_client.params import sampling
from superfluid_client.replies import Reply, ReplyReader, text_of
from superfluid_client.sockets import (
    CONNECT_RETRY_SECONDS,
    CONNECT_SECONDS,
    MAX_IDLE,
    is_alive,
    locate,
    overloaded,
    try_connect,
)
from superfluid_protocol import (
    EventMsg,
    GenParams,
    Inspection,
    ModelInfo,
    Request,
    Response,
    SessionSummary,
    numbers,
    response,
)

T = TypeVar("T")


class _Connection:
    """One socket and its frames."""

    def __init__(self, path: Path, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while (sock := try_connect(path)) is None:
            if time.monotonic() >= deadline:
                raise overloaded(path)
            time.sleep(CONNECT_RETRY_SECONDS)
        sock.settimeout(None)
        self.sock = sock
        self.exchange = Exchange()

    def send(self, req: Request) -> None:
        frame = self.exchange.send(req)
        try:
            self.sock.sendall(frame)
        except OSError as error:
            raise lost(error.strerror or str(error)) from error

    def receive(self) -> Response:
        while (found := self.exchange.next_response()) is None:
            try:
                data = self.sock.recv(READ_BYTES)
            except OSError as error:
                raise lost(error.strerror or str(error)) from error
            self.exchange.receive(data)
        return found

    def ask(self, req: Request) -> Response:
        self.send(req)
        while isinstance(reply := self.receive(), response.Delta):
            pass  # whoever wants these opens a stream
        return reply

    def close(self) -> None:
        self.sock.close()


class Client:
    """A daemon, over its Unix socket::

        with Client.connect() as client:
            session = client.create_session()
            session.user("Name three colours.")
            for piece in session.stream(64):
                print(piece, end="", flush=True)

    One connection runs one request at a time, so the client keeps a few: a request made while a stream runs (its
    ``cancel``, above all) takes another one, and so do other threads. One that ended between two requests, because the
    daemon was restarted, is replaced without a word; one that ends under a request raises ``ConnectionLost``.

    Args:
        path: The socket; None follows the daemon's own rule (``$SUPERFLUID_HOME/superfluid.sock``, else
            ``~/.superfluid/superfluid.sock``). A path too long for a socket is translated as the daemon does it.
        timeout: Seconds that connecting may take. Requests have no time limit: a reply may take long.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_SECONDS
    ) -> None:
        self.path = locate(path, os.environ)
        self._timeout = timeout
        self._idle: deque[_Connection] = deque()
        self._closed = False

    @classmethod
    def connect(cls, path: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_SECONDS) -> Self:
        """A client that has reached its daemon. The arguments are those of the class, which connects only when needed.

        Raises:
            ConnectionFailed: No daemon listens there; the text says where, and how to start one.
        """
        client = cls(path, timeout=timeout)
        client._give_back(client._take())
        return client

    def close(self) -> None:
        """Close the connections. Streams that still run are cancelled as they are closed. Safe to call twice."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def request(self, req: Request) -> Response:
        """Send any request of the protocol and return its reply; for a ``Generate``, the closing one.

        Raises:
            SuperfluidError: It was refused, or the daemon was lost.
            ValueError: It has no encoding, or is a subscription.
        """
        return self._run(ops.whatever(req))

    def create_session(
        self,
        params: GenParams | None = None,
        *,
        parent: int | None = None,
        system: str | None = None,
        title: str | None = None,
    ) -> "Session":
        """A new session.

        Args:
            params: How its replies are sampled; None takes ``sampling()``. The session's ``params`` show what it was.
            parent: Names the session it belongs to in the tree; nothing of it is shared (that is ``fork``).
            system: What the model is told before everything else.
            title: What lists call it.
        """
        chosen = sampling() if params is None else params
        session = self.session(self._run(ops.create(parent, chosen)), params=chosen)
        if title is not None:
            session.set_meta(title=title, expected_version=0)
        if system is not None:
            session.system(system)
        return session

    def session(self, session_id: int, *, params: GenParams | None = None) -> "Session":
        """An existing session. Asks the daemon nothing yet.

        Args:
            params: Its sampling parameters, where the caller knows them.
        """
        return Session(self, ops.Handle(session_id), params)

    def sessions(self, *, include_archived: bool = False) -> tuple[SessionSummary, ...]:
        """Summaries of the sessions, by id."""
        return self._run(ops.sessions(include_archived))

    def tree(self) -> tuple[ops.Node, ...]:
        """Every session's place in the tree, archived ones included."""
        return self._run(ops.tree())

    def inspect(self, session_id: int) -> Inspection:
        """Everything about a session, with all of its events."""
        return self._run(ops.inspect(session_id))

    def models(self) -> tuple[ModelInfo, ...]:
        """What is served: name, context, lanes, and what was measured of it."""
        return self._run(ops.models())

    def set_background_rate(self, divisor: int) -> None:
        """Beside other work, let sessions of the background class compute in every *divisor*-th tick only: 1 is always, 0
        not at all until this is set again. With nothing else to do they run freely, unless it is 0. A restart forgets
        it."""
        self._run(ops.set_background_rate(divisor))

    def metrics(self) -> str:
        """The daemon's metrics as Prometheus text."""
        return self._run(ops.metrics())

    def _run(self, operation: ops.Operation[T]) -> T:
        """Carry out an operation on one connection."""
        connection = self._take()
        answer: Response | None = None
        try:
            while True:
                step = operation.send(answer)
                if isinstance(step, ops.Pause):
                    time.sleep(step.seconds)
                    answer = None
                else:
                    answer = connection.ask(step)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            operation.close()
            self._give_back(connection)

    def _take(self) -> _Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if is_alive(connection.sock):
                return connection
            connection.close()
        if self._closed:
            raise RuntimeError("this client is closed")
        return _Connection(self.path, self._timeout)

    def _give_back(self, connection: _Connection) -> None:
        """Keep a connection for the next request, unless it is out of step: then whatever it still runs ends with it."""
        if connection.exchange.in_step and not self._closed and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


class Session:
    """One session of a client's daemon.

    Attributes:
        id: Its number, which names it for ever.
        params: Its sampling parameters, where this client knows them; ``Client.inspect`` always does.
    """

    def __init__(self, client: Client, handle: ops.Handle, params: GenParams | None) -> None:
        self._client = client
        self._handle = handle
        self.id = handle.id
        self.params = params

    def user(self, text: str) -> EventMsg:
        """Append what the user says; returns the event, as all appending methods do.

        Raises:
            SessionBusy: A generation is in flight.
            ConnectionLost: Whether it was appended is unknown; `events` tells.
        """
        return self._client._run(ops.message(self._handle, numbers.Role.USER, text))

    def system(self, text: str) -> EventMsg:
        """Append a system message."""
        return self._client._run(ops.message(self._handle, numbers.Role.SYSTEM, text))

    def assistant(self, text: str) -> EventMsg:
        """Append a reply as if the model had given it."""
        return self._client._run(ops.message(self._handle, numbers.Role.ASSISTANT, text))

    def append(self, span: tuple[int, ...] | list[int], text: str | None = None) -> EventMsg:
        """Append token ids as they are, outside any chat template, with the text they stand for."""
        return self._client._run(ops.append(self._handle, text, tuple(span)))

    def stream(self, max_tokens: int = 1024) -> "Stream":
        """Let the model answer, or go on where its answer was cut, and follow it. Nothing is asked before the first piece
        is."""
        return Stream(self._client, ReplyReader(self._handle, max_tokens))

    def generate(self, max_tokens: int = 1024) -> Reply:
        """Let the model answer, or go on where its answer was cut, and wait for all of it."""
        with self.stream(max_tokens) as stream:
            for _event in stream.events():
                pass
            return stream.result

    def fork(self, at_event: int | None = None, params: GenParams | None = None) -> "Session":
        """A session that shares this one's events 0 .. ``at_event`` - 1; None is all that is committed.

        Args:
            params: Its sampling parameters; None takes this session's.
        """
        forked = self._client._run(ops.fork(self._handle, at_event, params))
        return self._client.session(forked, params=params or self.params)

    def trim(self, to_event: int) -> "Session":
        """A session that keeps this one's events 0 .. ``to_event`` - 1. This one is not changed."""
        return self._client.session(self._client._run(ops.trim(self._handle, to_event)), params=self.params)

    def events(self, cursor: int = 0) -> list[EventMsg]:
        """The committed events from the id *cursor* on."""
        return self._client._run(ops.events(self._handle, cursor))

    def inspect(self) -> Inspection:
        """Everything about it."""
        return self._client.inspect(self.id)

    def cancel(self) -> None:
        """End the generation in flight, whoever asked for it; its stream ends with finish 4 (cancelled).

        Raises:
            NothingInFlight: There is none.
        """
        self._client._run(ops.cancel(self._handle))

    def set_qos(self, qos: int, *, batch_invariant: bool = False) -> EventMsg:
        """Set how this session is scheduled, both values at once; also while it generates.

        Args:
            qos: A ``Qos``; applies at once to a generation that waits or runs.
            batch_invariant: From the next generation on, replies do not depend on what else the daemon computes, to the
                bit. Costs speed.

        Raises:
            RequestRefused: The model, as it is served, cannot be exact; the text says why.
        """
        return self._client._run(ops.set_qos(self._handle, qos, batch_invariant))

    def pin(self, ttl_ms: int) -> int:
        """Keep this session's KV for *ttl_ms* milliseconds, so that its next reply starts at once; 0 lets it go.

        Returns:
            Until when, in Unix milliseconds; 0 for not at all.

        Raises:
            RequestRefused: It is larger than all that may be pinned.
        """
        return self._client._run(ops.pin(self._handle, ttl_ms))

    def set_meta(
        self, *, title: str | None = None, archived: bool | None = None, expected_version: int | None = None
    ) -> int:
        """Set the title, the archive mark, or both; returns the new version.

        Args:
            expected_version: The version that was read; None reads it now.

        Raises:
            Conflict: Somebody else changed them since.
        """
        return self._client._run(ops.set_meta(self._handle, title, archived, expected_version))


class Stream:
    """A running generation: iterate over it for the text, piece by piece, each one committed before it is shown.

    ``with`` closes it, and so does an exception that leaves the loop. A stream closed before its end cancels the
    generation; what was committed stays, and generating again goes on from there.

    Attributes:
        committed: The events received so far, also after a failure.
    """

    def __init__(self, client: Client, reader: ReplyReader) -> None:
        self._client = client
        self._reader = reader
        self._connection: _Connection | None = None
        self._ended = False
        self.committed = reader.events

    @property
    def result(self) -> Reply:
        """What it came to, once the iteration has ended by itself."""
        if self._reader.reply is None:
            raise RuntimeError("the stream has no result: it has not been read to its end")
        return self._reader.reply

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            message = self.next_event()
            if message is None:
                raise StopIteration
            if text := text_of(message):
                return text

    def events(self) -> Iterator[EventMsg]:
        """The events instead of the text; for ids, token spans and what the model thinks."""
        while (message := self.next_event()) is not None:
            yield message

    def next_event(self) -> EventMsg | None:
        """The next committed event, or None at the end.

        Raises:
            SuperfluidError: The generation was refused, or failed. It can be continued.
        """
        if self._ended:
            return None
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._client._take()
                connection.send(self._reader.request)
            while isinstance(found := self._reader.take(connection.receive()), ops.Pause):
                time.sleep(found.seconds)
                connection.send(self._reader.request)
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
        return found

    def close(self) -> None:
        """End it, and with it the generation if that still runs. Safe to call twice."""
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is not None:
            if not connection.exchange.in_step:
                self._reader.left()
            self._client._give_back(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop that was left with `break` drops its stream; the generation has to end with it.
        with contextlib.suppress(Exception):
            self.close()
