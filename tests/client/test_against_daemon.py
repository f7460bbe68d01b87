"""Both clients against a real daemon with a tiny model, and the examples."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from superfluid_client import (
    AsyncClient,
    Client,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    Finish,
    NoSuchSession,
    NothingInFlight,
    NotSupported,
    RequestRefused,
    SessionBusy,
    WorkerLost,
    sampling,
)
from superfluid_protocol import event, request
from tests.daemon import Daemon, daemons

pytestmark = pytest.mark.slow

GREEDY = sampling(temperature=0, seed=1)
EXAMPLES = Path(__file__).parents[2] / "clients" / "python" / "examples"

Connect = Callable[..., Any]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Iterator[Daemon]:
    """One daemon for the tests that leave it as it was."""
    home = tmp_path_factory.mktemp("home")
    with daemons() as make:
        yield make(home, endless_model, socket_path=home / "superfluid.sock", context=2048).start().ready()


@pytest.fixture
def own(tmp_path: Path, endless_model: Path) -> Iterator[Daemon]:
    """A daemon that a test may kill."""
    with daemons() as make:
        yield make(tmp_path, endless_model, context=2048).start().ready()


async def test_a_conversation(shared: Daemon, connect: Connect):
    client = await connect(shared.socket)
    session = await client.create_session(GREEDY, system="s", title="t")
    said = await session.user("hello")
    stream = session.stream(5)

    pieces = [piece async for piece in stream.pieces()]

    reply = stream.result
    assert "".join(pieces) == reply.text
    assert (reply.finish, reply.tokens_generated) == (Finish.MAX_TOKENS, 5)
    assert tuple(stream.committed) == reply.events
    assert reply.events[0].event_id > said.event_id
    events = await session.events()
    assert [message.event_id for message in events] == list(range(len(events)))
    assert tuple(events[-len(reply.events) :]) == reply.events

    more = await session.generate(5)
    assert not any(isinstance(message.body, event.GenerationPrompt) for message in more.events)


async def test_a_fork_is_warm_and_a_trim_shares(shared: Daemon, connect: Connect):
    client = await connect(shared.socket)
    session = await client.create_session(GREEDY)
    await session.user("hello there")
    await session.generate(8)

    fork = await session.fork()
    await fork.user("more")
    reply = await fork.generate(4)
    trimmed = await session.trim(2)

    assert reply.warm_prefix > 0
    assert await trimmed.events() == [*(await session.events())[:2], *(await trimmed.events())[2:]]
    places = {node.id: (node.parent, node.fork_at) for node in await client.tree()}
    assert places[trimmed.id] == (session.id, 2)
    assert places[fork.id][0] == session.id


async def test_refusals_of_the_real_daemon_have_their_kinds(shared: Daemon, connect: Connect):
    client = await connect(shared.socket)
    session = await client.create_session(GREEDY)
    await session.user("hello")

    with pytest.raises(NoSuchSession):
        await client.session(999_999).user("x")
    with pytest.raises(NothingInFlight):
        await session.cancel()
    with pytest.raises(Conflict):
        await session.set_meta(title="t", expected_version=5)
    with pytest.raises(NotSupported):
        await client.request(request.GcMedia())
    with pytest.raises(RequestRefused, match="vocabulary"):
        await session.append([4_000_000_000])
    with pytest.raises(RequestRefused, match="top_p"):
        await client.create_session(sampling(top_p=2))
    with pytest.raises(RequestRefused, match="max_tokens"):
        await session.generate(0)


async def test_a_session_that_generates_is_busy_for_others_and_can_be_cancelled_by_them(
    shared: Daemon, connect: Connect
):
    client = await connect(shared.socket)
    other = await connect(shared.socket)
    session = await client.create_session(GREEDY)
    await session.user("hello")
    stream = session.stream(1900)
    await stream.next_event()

    with pytest.raises(SessionBusy):
        await other.session(session.id).user("x")
    await other.session(session.id).cancel()

    async for _piece in stream.pieces():
        pass
    assert stream.result.finish == Finish.CANCELLED


async def test_after_a_stream_was_left_the_session_takes_the_next_message(shared: Daemon, connect: Connect):
    client = await connect(shared.socket)
    session = await client.create_session(GREEDY)
    await session.user("hello")
    stream = session.stream(1900)
    await stream.next_event()
    await stream.close()

    await session.user("something else")

    assert (await session.generate(2)).tokens_generated == 2


async def test_metadata_lists_inspection_and_metrics(shared: Daemon, connect: Connect):
    client = await connect(shared.socket)
    session = await client.create_session(GREEDY)

    await session.set_meta(title="old")
    assert await session.set_meta(title="a title", archived=True) == 2

    assert session.id not in {line.id for line in await client.sessions()}
    (line,) = (line for line in await client.sessions(include_archived=True) if line.id == session.id)
    assert (line.title, line.archived, line.meta_version) == ("a title", True, 2)
    found = await session.inspect()
    assert found.summary == line
    assert (found.params.top_p, found.params.seed) == (
        pytest.approx(GREEDY.top_p),
        GREEDY.seed,
    )  # f32 on the wire
    assert list(found.events) == await session.events()
    assert "superfluid_decode_tokens_total" in await client.metrics()


async def test_a_cancelled_task_ends_its_generation(shared: Daemon):
    async with await AsyncClient.connect(shared.socket) as client:
        session = await client.create_session(GREEDY)
        await session.user("hello")
        with trio.CancelScope() as scope:
            async with session.stream(1900) as stream:
                async for _piece in stream:
                    scope.cancel()

        await session.user("still there?")

        assert len(stream.committed) < 1900


async def test_a_lost_worker_is_told_and_the_turn_goes_on(own: Daemon):
    with Client.connect(own.socket) as client:
        session = client.create_session(GREEDY)
        session.user("hello")
        stream = session.stream(1900)
        next(stream)
        os.kill(own.worker(), 9)

        with pytest.raises(WorkerLost):
            for _piece in stream:
                pass

        known = session.events()
        assert [e for e in stream.committed if e not in known] == []
        assert session.generate(3).tokens_generated == 3


def test_a_lost_daemon_is_told_and_after_its_restart_the_same_client_goes_on(own: Daemon):
    with Client.connect(own.socket) as client:
        session = client.create_session(GREEDY)
        session.user("hello")
        stream = session.stream(1900)
        next(stream)
        own.kill()

        with pytest.raises(ConnectionLost):
            for _piece in stream:
                pass
        with pytest.raises(ConnectionFailed, match="superfluid serve"):
            session.user("x")

        own.start().ready()
        known = session.events()
        assert [e for e in stream.committed if e not in known] == []
        assert session.generate(3).tokens_generated == 3


@pytest.mark.parametrize("example", ["quickstart.py", "parallel_forks.py", "cancel.py"])
def test_examples_run(shared: Daemon, example: str):
    environ = {**os.environ, "SUPERFLUID_HOME": str(shared.socket.parent)}

    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / example],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_example_is_run():
    run = {
        "quickstart.py",
        "parallel_forks.py",
        "cancel.py",
        "demo.py",
    }  # the demo: `make demo`, and tests/cli

    assert {path.name for path in EXAMPLES.glob("*.py")} == run
