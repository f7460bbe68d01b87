"""Both clients against a scripted daemon: what they send, what they make of the answers, and how they stay in step."""

import contextlib
import errno
import gc
import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from superfluid_client import (
    AsyncClient,
    AsyncSession,
    AsyncStream,
    Client,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    ContextFull,
    NoSuchSession,
    NothingInFlight,
    NotSupported,
    ProtocolError,
    RequestRefused,
    ServerFailed,
    Session,
    SessionBusy,
    ShuttingDown,
    Stream,
    SuperfluidError,
    WorkerLost,
    sampling,
)
from superfluid_protocol import Inspection, Request, SessionSummary, encode, request, response, types
from tests.client.fake_daemon import FakeDaemon, HangUp, Step, WaitForHangUp, appended, committed, story

Start = Callable[..., FakeDaemon]
Connect = Callable[..., Any]


def summary(session: int, *, meta_version: int = 0, events: int = 1) -> SessionSummary:
    return SessionSummary(
        id=session,
        parent=None,
        fork_at=0,
        title=None,
        archived=False,
        meta_version=meta_version,
        generation=0,
        events=events,
        tokens=0,
        open_tool_calls=0,
    )


def inspected(line: SessionSummary) -> response.Inspection:
    """What `Inspect` says of a session."""
    found = Inspection(
        summary=line,
        params=sampling(),
        epoch=1,
        last_finish=0,
        qos_class=0,
        batch_invariant=False,
        pin_deadline_unix_ms=0,
        behavior_fingerprint=None,
        open_tool_calls=(),
        tier=types.Cold(),
        tokens=(),
        events=(),
        wal_version=3,
        store_id=None,
    )
    return response.Inspection(inspection=found)


def missing(session: int) -> response.Err:
    """What any request for a session that is not there says."""
    return response.Err(message=f"session {session} does not exist")


def err(message: str) -> Callable[[Request], Iterator[Step]]:
    """A daemon that refuses everything."""

    def script(_req: Request) -> Iterator[Step]:
        yield response.Err(message=message)

    return script


async def test_a_new_session_shows_the_parameters_that_were_picked(daemon: Start, connect: Connect):
    fake = daemon()
    client = await connect(fake.path)

    session = await client.create_session()

    assert session.id == 9
    assert (session.params.temperature, session.params.top_p, session.params.min_p, session.params.top_k) == (
        0.7,
        0.95,
        0.05,
        40,
    )
    (sent,) = fake.requests
    assert isinstance(sent, request.Create)
    assert sent.params.seed == session.params.seed


def test_two_sets_of_parameters_draw_differently():
    assert sampling().seed != sampling().seed
    assert sampling(seed=5) == sampling(seed=5)


async def test_a_stream_gives_text_as_it_comes_and_a_result_at_its_end(daemon: Start, connect: Connect):
    client = await connect(daemon().path)
    stream = client.session(9).stream(8)

    assert [piece async for piece in stream.pieces()] == ["Hel", "lo"]

    result = stream.result
    assert (result.text, result.finish, result.tokens_generated, result.warm_prefix) == ("Hello", 1, 3, 7)
    assert [message.event_id for message in result.events] == [2, 3, 4]
    assert not result.is_cut


async def test_generate_waits_for_the_whole_reply(daemon: Start, connect: Connect):
    client = await connect(daemon().path)

    reply = await client.session(9).generate(8)

    assert reply.text == "Hello"


async def test_a_generate_sent_as_a_bare_request_answers_with_its_closing_reply(
    daemon: Start, connect: Connect
):
    client = await connect(daemon().path)

    reply = await client.request(request.Generate(session=9, max_tokens=8))

    assert isinstance(reply, response.Generated)


async def test_a_result_before_the_end_is_an_error_of_the_caller(daemon: Start, connect: Connect):
    client = await connect(daemon().path)
    stream = client.session(9).stream(8)

    with pytest.raises(RuntimeError, match="not been read to its end"):
        _ = stream.result


async def test_events_are_read_page_by_page(daemon: Start, connect: Connect):
    fake = daemon()
    client = await connect(fake.path)

    found = await client.session(9).events(1)

    assert [message.event_id for message in found] == [1, 2, 3, 4, 5]
    assert [req.cursor for req in fake.requests if isinstance(req, request.Read)] == [1, 3, 5, 6]


async def test_a_fork_without_an_event_keeps_everything_and_reads_only_what_is_new(
    daemon: Start, connect: Connect
):
    fake = daemon()
    client = await connect(fake.path)
    session = client.session(9)
    await session.generate(8)

    await session.fork()

    cursors = [req.cursor for req in fake.requests if isinstance(req, request.Read)]
    assert cursors[0] == 5, "events 0 to 4 are known from the reply"
    assert fake.requests[-1] == request.Fork(session=9, at_event=6, params=None)


async def test_a_fork_of_a_session_met_for_the_first_time_does_not_read_it(daemon: Start, connect: Connect):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Inspect):
            yield inspected(summary(9, events=4000)) if req.session == 9 else missing(req.session)
        else:
            yield from story(req)

    fake = daemon(script)
    client = await connect(fake.path)

    await client.session(9).fork()
    with pytest.raises(NoSuchSession):
        await client.session(8).fork()

    assert request.Fork(session=9, at_event=4000, params=None) in fake.requests
    assert not any(isinstance(req, request.Read) for req in fake.requests)


async def test_trim_and_raw_append_and_roles_send_what_they_say(daemon: Start, connect: Connect):
    fake = daemon()
    client = await connect(fake.path)
    session = client.session(9)

    await session.system("s")
    await session.user("u")
    await session.assistant("a")
    await session.append([5, 6], "t")
    trimmed = await session.trim(2)

    assert trimmed.id == 10
    assert fake.requests == [
        request.AppendMessage(session=9, role=0, text="s"),
        request.AppendMessage(session=9, role=1, text="u"),
        request.AppendMessage(session=9, role=2, text="a"),
        request.Append(session=9, text="t", span=(5, 6)),
        request.Trim(session=9, to_event=2),
    ]


async def test_the_tree_names_its_fields(daemon: Start, connect: Connect):
    client = await connect(daemon().path)

    nodes = await client.tree()

    assert (nodes[1].id, nodes[1].parent, nodes[1].fork_at) == (10, 9, 3)


async def test_a_session_too_long_to_inspect_is_looked_up_in_the_list(daemon: Start, connect: Connect):
    def script(req: Request) -> Iterator[Step]:
        match req:
            case request.Inspect():
                yield response.Err(
                    message="inspecting session 9 is not supported: its 9 token ids do not fit one reply"
                )
            case request.Sessions():
                yield response.SessionList(sessions=(summary(9, meta_version=4, events=4000),))
            case request.SetMeta():
                yield response.Meta(version=req.expected_version + 1)
            case _:
                yield from story(req)

    fake = daemon(script)
    client = await connect(fake.path)

    assert await client.session(9).set_meta(title="t") == 5
    await client.session(9).fork()
    assert request.Fork(session=9, at_event=4000, params=None) in fake.requests
    with pytest.raises(NoSuchSession):
        await client.session(8).fork()


async def test_a_refusal_behind_events_does_not_say_that_nothing_was_changed(daemon: Start, connect: Connect):
    said = "the log could not be written (No space left on device); nothing of this was stored"

    def script(_req: Request) -> Iterator[Step]:
        yield response.Delta(event=committed(2, "Hel"))
        yield response.Err(message=said)

    client = await connect(daemon(script).path)

    with pytest.raises(ServerFailed, match="could not be written"):
        await client.session(9).generate(8)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("session 3 is generating; wait for the reply or cancel it", SessionBusy),
        ("session 3 does not exist", NoSuchSession),
        ("session 3 has no generation in flight", NothingInFlight),
        ("Purge is not supported yet by this version of superfluid", NotSupported),
        ("the worker was lost (killed by signal 9); what it made is recorded", WorkerLost),
        ("session 3 has metadata version 2, not 1; read it again", Conflict),
        ("session 3 fills the context of 64 tokens; trim it to go on", ContextFull),
        ("session 3 holds 70 tokens and the context 64; trim it", ContextFull),
        ("the daemon is ending; generate again after its restart", ShuttingDown),
        ("top_p must be at most 1", RequestRefused),
    ],
)
async def test_refusals_are_told_apart_by_kind(
    daemon: Start, connect: Connect, text: str, kind: type[Exception]
):
    client = await connect(daemon(err(text)).path)
    session = client.session(3)

    for call in (client.tree(), session.user("x"), session.generate(4)):
        with pytest.raises(SuperfluidError) as caught:
            await call
        assert type(caught.value) is kind
        assert str(caught.value) == text


async def test_a_refused_request_leaves_the_connection_in_use(daemon: Start, connect: Connect):
    fake = daemon()
    client = await connect(fake.path)

    with pytest.raises(NothingInFlight):
        await client.session(9).cancel()
    await client.tree()

    assert fake.connections == 1


async def test_bytes_behind_a_response_are_tolerated(daemon: Start, connect: Connect):
    def newer(_req: Request) -> Iterator[Step]:
        yield encode(response.Tree(nodes=())) + b"\x01\x02\x03"

    client = await connect(daemon(newer).path)

    assert await client.tree() == ()


async def test_garbage_is_an_error_of_its_own_and_the_next_request_starts_afresh(
    daemon: Start, connect: Connect
):
    answers = [b"\xff\xff\xff\xff\xff\xff", encode(response.Tree(nodes=()))]

    def script(_req: Request) -> Iterator[Step]:
        yield answers.pop(0)

    fake = daemon(script)
    client = await connect(fake.path)

    with pytest.raises(ProtocolError, match="does not decode"):
        await client.tree()
    assert await client.tree() == ()
    assert fake.connections == 2


async def test_a_reply_of_another_kind_is_named(daemon: Start, connect: Connect):
    def script(_req: Request) -> Iterator[Step]:
        yield response.Ack()

    client = await connect(daemon(script).path)

    with pytest.raises(ProtocolError, match="Ack where Tree belongs"):
        await client.tree()


async def test_a_daemon_that_goes_in_mid_reply_is_a_lost_connection_and_the_events_stay(
    daemon: Start, connect: Connect
):
    def script(_req: Request) -> Iterator[Step]:
        yield response.Delta(event=committed(2, "Hel"))
        yield HangUp()

    client = await connect(daemon(script).path)
    stream = client.session(9).stream(8)

    got = []
    with pytest.raises(ConnectionLost, match="not known"):  # noqa: PT012 - the loop is what raises
        async for piece in stream.pieces():
            got.append(piece)  # noqa: PERF401 - a comprehension would lose what came before the error

    assert got == ["Hel"]
    assert [message.event_id for message in stream.committed] == [2]
    with pytest.raises(RuntimeError):
        _ = stream.result


async def test_a_connection_that_ended_between_requests_is_replaced_without_a_word(
    daemon: Start, connect: Connect
):
    fake = daemon()
    client = await connect(fake.path)
    await client.tree()
    fake.drop_connections()
    fake.close()
    again = daemon()

    await client.session(9).user("x")

    assert again.connections == 1


async def test_a_stream_left_early_hangs_up_and_the_next_request_is_in_step(daemon: Start, connect: Connect):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate):
            yield response.Delta(event=committed(2, "Hel"))
            yield WaitForHangUp()
        else:
            yield from story(req)

    fake = daemon(script)
    client = await connect(fake.path)
    session = client.session(9)
    stream = session.stream(8)

    assert await stream.next_piece() == "Hel"
    await stream.close()
    assert [piece async for piece in stream.pieces()] == []

    assert len(await client.tree()) == 2
    assert await trio.to_thread.run_sync(fake.hung_up.wait, 5)


async def test_after_a_stream_was_left_a_session_that_is_still_busy_is_waited_for(
    daemon: Start, connect: Connect
):
    busy = [True, True]

    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate) and len(busy) == 2:
            yield response.Delta(event=committed(2, "Hel"))
            yield WaitForHangUp()
        elif busy and isinstance(req, request.AppendMessage | request.Generate):
            busy.pop()
            yield response.Err(message="session 9 is generating; wait for the reply or cancel it")
        else:
            yield from story(req)

    client = await connect(daemon(script).path)
    session = client.session(9)
    stream = session.stream(8)
    assert await stream.next_piece() == "Hel"
    await stream.close()

    assert (await session.user("x")).event_id == 1

    # Settled, so that a busy session is now somebody else's and the caller hears of it.
    busy.append(True)
    with pytest.raises(SessionBusy):
        await session.user("y")


async def test_a_generate_after_a_stream_was_left_waits_too(daemon: Start, connect: Connect):
    seen: list[Request] = []

    def script(req: Request) -> Iterator[Step]:
        seen.append(req)
        if len(seen) == 1:
            yield response.Delta(event=committed(2, "Hel"))
            yield WaitForHangUp()
        elif len(seen) < 4:
            yield response.Err(message="session 9 is generating; wait for the reply or cancel it")
        else:
            yield from story(req)

    client = await connect(daemon(script).path)
    session = client.session(9)
    stream = session.stream(8)
    assert await stream.next_piece() == "Hel"
    await stream.close()

    assert (await session.generate(8)).text == "Hello"
    assert len(seen) == 4


async def test_cancel_inside_a_stream_takes_another_connection(daemon: Start, connect: Connect):
    cancelled = trio.Event()
    token = trio.lowlevel.current_trio_token()
    import threading

    flag = threading.Event()

    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate):
            yield response.Delta(event=committed(2, "Hel"))
            assert flag.wait(5)
            yield response.Generated(
                events=(committed(2, "Hel"),), tokens_generated=1, finish=4, warm_prefix=0
            )
        else:
            flag.set()
            token.run_sync_soon(cancelled.set)
            yield response.Cancelling()

    fake = daemon(script)
    client = await connect(fake.path)
    session = client.session(9)
    stream = session.stream(8)

    async for _piece in stream.pieces():
        await session.cancel()

    await cancelled.wait()
    assert stream.result.finish == 4
    assert stream.result.is_cut
    assert fake.connections == 2


async def test_what_cannot_be_sent_costs_no_connection(daemon: Start, connect: Connect):
    fake = daemon()
    client = await connect(fake.path)

    with pytest.raises(ValueError, match="cannot be sent"):
        await client.session(9).user("\ud83d")
    with pytest.raises(ValueError, match="cannot be sent"):
        await client.session(-1).user("x")
    with pytest.raises(ValueError, match="subscriptions"):
        await client.request(request.Subscribe(session=9, cursor=0, provisional=False))
    await client.tree()

    assert fake.connections == 1


async def test_no_daemon_is_said_with_the_socket_and_the_way_to_start_one(tmp_path: Path, connect: Connect):
    with pytest.raises(ConnectionFailed, match=r"nobody\.sock; start one with 'superfluid serve"):
        await connect(tmp_path / "nobody.sock")


async def test_a_daemon_that_accepts_nobody_is_given_up_after_the_timeout(tmp_path: Path, connect: Connect):
    path = tmp_path / "full.sock"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        while True:  # fill the backlog
            filler = stack.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            if filler.connect_ex(str(path)) == errno.EAGAIN:
                break

        with pytest.raises(ConnectionFailed, match="does not accept connections"):
            await connect(path, timeout=0.03)


async def test_a_path_too_long_for_a_socket_is_found_by_the_daemons_rule(tmp_path: Path, connect: Connect):
    from superfluid_protocol.address import socket_path

    # Multibyte, since the limit is in bytes.
    long = tmp_path / ("ü" * 60) / "superfluid.sock"
    short = socket_path(long, os.getuid())
    short.parent.mkdir(mode=0o700, exist_ok=True)
    fake = FakeDaemon(short, story)
    try:
        client = await connect(long)
        assert len(await client.tree()) == 2
    finally:
        fake.close()


async def test_a_fallback_directory_of_somebody_else_is_not_trusted(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
):
    from superfluid_client import sockets

    planted = tmp_path / "planted"
    planted.symlink_to(tmp_path)
    monkeypatch.setattr(sockets, "socket_path", lambda _path, _uid: planted / "x.sock")

    with pytest.raises(ConnectionFailed, match="belongs to another user"):
        await connect(tmp_path / "any.sock")


async def test_a_closed_client_opens_nothing(daemon: Start, connect: Connect):
    client = await connect(daemon().path)
    await client.close()
    await client.close()

    with pytest.raises(RuntimeError, match="closed"):
        await client.tree()


async def test_set_meta_reads_the_version_it_is_not_given(daemon: Start, connect: Connect):
    line = summary(9, meta_version=4)

    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Inspect):
            yield inspected(line) if req.session == 9 else missing(req.session)
        else:
            assert isinstance(req, request.SetMeta)
            yield response.Meta(version=req.expected_version + 1)

    client = await connect(daemon(script).path)

    assert await client.session(9).set_meta(title="t") == 5
    assert await client.session(9).set_meta(archived=True, expected_version=7) == 8
    with pytest.raises(NoSuchSession):
        await client.session(8).set_meta(title="t")


def test_a_loop_left_with_break_hangs_up(daemon: Start):
    def script(req: Request) -> Iterator[Step]:
        yield response.Delta(event=committed(2, "Hel"))
        yield WaitForHangUp()

    fake = daemon(script)
    with Client.connect(fake.path) as client:
        for _piece in client.session(9).stream(8):
            break
        gc.collect()

        assert fake.hung_up.wait(5)


async def test_a_cancelled_wait_for_the_next_piece_hangs_up(daemon: Start):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate):
            yield response.Delta(event=committed(2, "Hel"))
            yield WaitForHangUp()
        else:
            yield from story(req)

    fake = daemon(script)
    async with await AsyncClient.connect(fake.path) as client:
        with trio.move_on_after(5) as scope:
            async with client.session(9).stream(8) as stream:
                async for _piece in stream:
                    scope.cancel()

        assert scope.cancelled_caught
        assert await trio.to_thread.run_sync(fake.hung_up.wait, 5)
        assert len(await client.tree()) == 2


async def test_a_cancelled_request_does_not_leave_its_reply_to_the_next_one(daemon: Start):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Metrics):
            yield WaitForHangUp()
        else:
            yield from story(req)

    fake = daemon(script)
    async with await AsyncClient.connect(fake.path) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.metrics)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

        assert len(await client.tree()) == 2


async def test_tasks_share_a_client(daemon: Start):
    fake = daemon()
    async with await AsyncClient.connect(fake.path) as client:
        replies: list[str] = []

        async def one() -> None:
            replies.append((await client.session(9).generate(8)).text)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(one)

        assert replies == ["Hello"] * 6


@pytest.mark.parametrize(
    ("blocking", "twin"), [(Client, AsyncClient), (Session, AsyncSession), (Stream, AsyncStream)]
)
def test_both_clients_have_the_same_surface(blocking: type, twin: type):
    def surface(cls: type) -> dict[str, list[str]]:
        found = {}
        for name, member in vars(cls).items():
            if not name.startswith("_"):
                plain = inspect.unwrap(getattr(cls, name)) if callable(getattr(cls, name)) else member
                parameters = inspect.signature(plain).parameters.values() if callable(plain) else ()
                found[name.removeprefix("a") if name == "aclose" else name] = [
                    f"{p.name}: {p.kind.name} = {p.default}" for p in parameters
                ]
        return found

    assert surface(blocking) == surface(twin)


def test_the_blocking_client_works_without_trio():
    code = "import sys, superfluid_client; superfluid_client.Client; assert 'trio' not in sys.modules, 'trio was loaded'"

    subprocess.run([sys.executable, "-c", code], check=True)


async def test_the_events_of_a_stream_can_be_followed_instead_of_its_text(daemon: Start):
    fake = daemon()
    with Client.connect(fake.path) as client:
        assert [message.event_id for message in client.session(9).stream(8).events()] == [2, 3, 4]
    async with await AsyncClient.connect(fake.path) as client, client.session(9).stream(8) as stream:
        assert [message.event_id async for message in stream.events()] == [2, 3, 4]


def test_appended_events_are_returned(daemon: Start):
    with Client.connect(daemon().path) as client:
        assert client.session(9).user("x") == appended(1).event
