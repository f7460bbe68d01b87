"""The trio client: the same surface as ``sync``, with ``await``. What both do is in ``operations``."""

import contextlib
import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import trio

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

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.exchange = Exchange()

    @classmethod
    async def open(cls, path: Path, timeout: float) -> Self:
        with trio.move_on_after(timeout):
            while (sock := try_connect(path)) is None:  # noqa: ASYNC110 - nothing tells when a backlog has room again
                await trio.sleep(CONNECT_RETRY_SECONDS)
            return cls(sock)
        raise overloaded(path)

    @property
    def is_alive(self) -> bool:
        return is_alive(self._sock)

    async def send(self, req: Request) -> None:
        frame = self.exchange.send(req)
        try:
            await self._stream.send_all(frame)
        except trio.BrokenResourceError as error:
            raise lost(_reason(error)) from error

    async def receive(self) -> Response:
        while (found := self.exchange.next_response()) is None:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError as error:
                raise lost(_reason(error)) from error
            self.exchange.receive(bytes(data))
        return found

    async def ask(self, req: Request) -> Response:
        await self.send(req)
        while isinstance(reply := await self.receive(), response.Delta):
            pass  # whoever wants these opens a stream
        return reply

    def close(self) -> None:
        """Close at once. Also outside of trio, where a forgotten stream may be collected."""
        with contextlib.suppress(RuntimeError):
            trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


def _reason(error: trio.BrokenResourceError) -> str:
    cause = error.__cause__
    return (cause.strerror if isinstance(cause, OSError) else None) or "it broke"


class AsyncClient:
    """A daemon, over its Unix socket, for trio::

        async with await AsyncClient.connect() as client:
            session = await client.create_session()
            await session.user("Name three colours.")
            async with session.stream(64) as stream:
                async for piece in stream:
                    print(piece, end="", flush=True)

    Arguments, connections and errors are those of ``Client``. Tasks may share a client. A cancelled request closes its
    connection, so that the next one does not read its reply; whether it was carried out is unknown.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_SECONDS
    ) -> None:
        self.path = locate(path, os.environ)
        self._timeout = timeout
        self._idle: deque[_Connection] = deque()
        self._closed = False

    @classmethod
    async def connect(
        cls, path: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_SECONDS
    ) -> Self:
        """As ``Client.connect``."""
        client = cls(path, timeout=timeout)
        client._give_back(await client._take())
        return client

    async def aclose(self) -> None:
        """Close the connections. Streams that still run are cancelled as they are closed. Safe to call twice."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def request(self, req: Request) -> Response:
        """As ``Client.request``."""
        return await self._run(ops.whatever(req))

    async def create_session(
        self,
        params: GenParams | None = None,
        *,
        parent: int | None = None,
        system: str | None = None,
        title: str | None = None,
    ) -> "AsyncSession":
        """As ``Client.create_session``."""
        chosen = sampling() if params is None else params
        session = self.session(await self._run(ops.create(parent, chosen)), params=chosen)
        if title is not None:
            await session.set_meta(title=title, expected_version=0)
        if system is not None:
            await session.system(system)
        return session

    def session(self, session_id: int, *, params: GenParams | None = None) -> "AsyncSession":
        """As ``Client.session``."""
        return AsyncSession(self, ops.Handle(session_id), params)

    async def sessions(self, *, include_archived: bool = False) -> tuple[SessionSummary, ...]:
        """As ``Client.sessions``."""
        return await self._run(ops.sessions(include_archived))

    async def tree(self) -> tuple[ops.Node, ...]:
        """As ``Client.tree``."""
        return await self._run(ops.tree())

    async def inspect(self, session_id: int) -> Inspection:
        """As ``Client.inspect``."""
        return await self._run(ops.inspect(session_id))

    async def models(self) -> tuple[ModelInfo, ...]:
        """As ``Client.models``."""
        return await self._run(ops.models())

    async def set_background_rate(self, divisor: int) -> None:
        """As ``Client.set_background_rate``."""
        await self._run(ops.set_background_rate(divisor))

    async def metrics(self) -> str:
        """As ``Client.metrics``."""
        return await self._run(ops.metrics())

    async def _run(self, operation: ops.Operation[T]) -> T:
        """Carry out an operation on one connection."""
        connection = await self._take()
        answer: Response | None = None
        try:
            while True:
                step = operation.send(answer)
                if isinstance(step, ops.Pause):
                    await trio.sleep(step.seconds)
                    answer = None
                else:
                    answer = await connection.ask(step)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            operation.close()
            self._give_back(connection)

    async def _take(self) -> _Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.is_alive:
                return connection
            connection.close()
        if self._closed:
            raise RuntimeError("this client is closed")
        return await _Connection.open(self.path, self._timeout)

    def _give_back(self, connection: _Connection) -> None:
        """Keep a connection for the next request, unless it is out of step: then whatever it still runs ends with it."""
        if connection.exchange.in_step and not self._closed and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


class AsyncSession:
    """One session of a client's daemon.

    Attributes:
        id: Its number, which names it for ever.
        params: Its sampling parameters, where this client knows them; ``AsyncClient.inspect`` always does.
    """

    def __init__(self, client: AsyncClient, handle: ops.Handle, params: GenParams | None) -> None:
        self._client = client
        self._handle = handle
        self.id = handle.id
        self.params = params

    async def user(self, text: str) -> EventMsg:
        """As ``Session.user``."""
        return await self._client._run(ops.message(self._handle, numbers.Role.USER, text))

    async def system(self, text: str) -> EventMsg:
        """As ``Session.system``."""
        return await self._client._run(ops.message(self._handle, numbers.Role.SYSTEM, text))

    async def assistant(self, text: str) -> EventMsg:
        """As ``Session.assistant``."""
        return await self._client._run(ops.message(self._handle, numbers.Role.ASSISTANT, text))

    async def append(self, span: tuple[int, ...] | list[int], text: str | None = None) -> EventMsg:
        """As ``Session.append``."""
        return await self._client._run(ops.append(self._handle, text, tuple(span)))

    def stream(self, max_tokens: int = 1024) -> "AsyncStream":
        """As ``Session.stream``."""
        return AsyncStream(self._client, ReplyReader(self._handle, max_tokens))

    async def generate(self, max_tokens: int = 1024) -> Reply:
        """As ``Session.generate``."""
        async with self.stream(max_tokens) as stream:
            while await stream.next_event() is not None:
                pass
            return stream.result

    async def fork(self, at_event: int | None = None, params: GenParams | None = None) -> "AsyncSession":
        """As ``Session.fork``."""
        forked = await self._client._run(ops.fork(self._handle, at_event, params))
        return self._client.session(forked, params=params or self.params)

    async def trim(self, to_event: int) -> "AsyncSession":
        """As ``Session.trim``."""
        trimmed = await self._client._run(ops.trim(self._handle, to_event))
        return self._client.session(trimmed, params=self.params)

    async def events(self, cursor: int = 0) -> list[EventMsg]:
        """As ``Session.events``."""
        return await self._client._run(ops.events(self._handle, cursor))

    async def inspect(self) -> Inspection:
        """As ``Session.inspect``."""
        return await self._client.inspect(self.id)

    async def cancel(self) -> None:
        """As ``Session.cancel``."""
        await self._client._run(ops.cancel(self._handle))

    async def set_qos(self, qos: int, *, batch_invariant: bool = False) -> EventMsg:
        """As ``Session.set_qos``."""
        return await self._client._run(ops.set_qos(self._handle, qos, batch_invariant))

    async def pin(self, ttl_ms: int) -> int:
        """As ``Session.pin``."""
        return await self._client._run(ops.pin(self._handle, ttl_ms))

    async def set_meta(
        self, *, title: str | None = None, archived: bool | None = None, expected_version: int | None = None
    ) -> int:
        """As ``Session.set_meta``."""
        return await self._client._run(ops.set_meta(self._handle, title, archived, expected_version))


class AsyncStream:
    """A running generation; iterate over it for the text, as over a ``Stream``.

    Use it in ``async with``, or read it to its end: a stream that is left ends its generation only when it is closed. A
    cancelled wait for the next piece closes it.

    Attributes:
        committed: The events received so far, also after a failure.
    """

    def __init__(self, client: AsyncClient, reader: ReplyReader) -> None:
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

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            message = await self.next_event()
            if message is None:
                raise StopAsyncIteration
            if text := text_of(message):
                return text

    def events(self) -> AsyncIterator[EventMsg]:
        """As ``Stream.events``."""
        return _Events(self)

    async def next_event(self) -> EventMsg | None:
        """As ``Stream.next_event``."""
        if self._ended:
            await trio.lowlevel.checkpoint()
            return None
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = await self._client._take()
                await connection.send(self._reader.request)
            while isinstance(found := self._reader.take(await connection.receive()), ops.Pause):
                await trio.sleep(found.seconds)
                await connection.send(self._reader.request)
        except BaseException:
            self._close()
            raise
        if found is None:
            self._close()
        return found

    async def aclose(self) -> None:
        """End it, and with it the generation if that still runs. Safe to call twice."""
        self._close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A loop that was left without `async with` drops its stream; the generation has to end with it.
        with contextlib.suppress(Exception):
            self._close()

    def _close(self) -> None:
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is not None:
            if not connection.exchange.in_step:
                self._reader.left()
            self._client._give_back(connection)


class _Events:
    """The events of a stream. No async generator: one that is dropped half-way could not be finalised under trio."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventMsg:
        message = await self._stream.next_event()
        if message is None:
            raise StopAsyncIteration
        return message
