"""Fixtures: scripted daemons, and both clients behind one awaitable face, so that each scenario runs over both."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from superfluid_client import AsyncClient, Client
from tests.client.fake_daemon import FakeDaemon, Script, story


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., FakeDaemon]]:
    """Start scripted daemons; they end with the test."""
    started: list[FakeDaemon] = []

    def start(script: Script = story, name: str = "s.sock") -> FakeDaemon:
        made = FakeDaemon(tmp_path / name, script)
        started.append(made)
        return made

    yield start
    for made in started:
        made.close()


class Face:
    """A client, a session or a stream of either kind, with every call awaitable."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return wrap(await result if inspect.isawaitable(result) else result)

        return call

    def session(self, session_id: int) -> "Face":
        return Face(self.inner.session(session_id))

    def stream(self, max_tokens: int) -> "Face":
        return Face(self.inner.stream(max_tokens))

    async def close(self) -> None:
        """Close, by the name that each kind has for it."""
        if hasattr(self.inner, "aclose"):
            await self.inner.aclose()
        else:
            self.inner.close()

    async def next_piece(self) -> str:
        """The next text of a stream."""
        if hasattr(self.inner, "__anext__"):
            return str(await anext(self.inner))
        return str(next(self.inner))

    async def pieces(self) -> AsyncIterator[str]:
        """Iterate over a stream."""
        if hasattr(self.inner, "__anext__"):
            async for piece in self.inner:
                yield piece
        else:
            for piece in self.inner:
                yield piece


def wrap(result: Any) -> Any:
    return Face(result) if hasattr(result, "set_meta") else result


@pytest.fixture(params=["blocking", "trio"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Connect a client of each kind; they are closed with the test."""
    made: list[Face] = []

    async def connect_to(path: Path, **kwargs: Any) -> Face:
        if request.param == "trio":
            face = Face(await AsyncClient.connect(path, **kwargs))
        else:
            face = Face(Client.connect(path, **kwargs))
        made.append(face)
        return face

    yield connect_to
    for face in made:
        await face.close()
