"""Daemons and logs for the command line to look at."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from superfluid_client import Client, sampling
from tests.cli.terminal import Terminal
from tests.daemon import Daemon, daemons

GREEDY = sampling(temperature=0, seed=1)

TITLE = "a [bold]title[/] \x1b[31mwith\x07 tricks\n"
"""Markup that rich would obey, and characters that a terminal would."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Iterator[Path]:
    """The home of a daemon with a few sessions, which the tests leave as they are."""
    home = tmp_path_factory.mktemp("served")
    with daemons() as make:
        make(home, endless_model, socket_path=home / "superfluid.sock", context=2048).start().ready()
        tell(home)
        yield home


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Path:
    """The home of a daemon that was killed, with the same sessions; no test may change it."""
    home = tmp_path_factory.mktemp("left")
    with daemons() as make:
        make(home, endless_model, socket_path=home / "superfluid.sock").start().ready()
        tell(home)
    return home


@pytest.fixture
def own(tmp_path: Path, endless_model: Path) -> Iterator[Daemon]:
    """A daemon that a test may change or kill. Its home is ``own.sessions.parent``."""
    with daemons() as make:
        yield (
            make(tmp_path, endless_model, socket_path=tmp_path / "superfluid.sock", context=2048)
            .start()
            .ready()
        )


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Run commands on terminals; they end with the test."""
    made: list[Terminal] = []

    def run(*args: str, home: Path, kind: str = "dumb") -> Terminal:
        made.append(Terminal(*args, home=home, kind=kind))
        return made[-1]

    yield run
    for one in made:
        one.close()


def tell(home: Path) -> None:
    """Sessions 1 (a question and its reply), 2 (a fork of it, with a title full of tricks), 3 (archived)."""
    with Client.connect(home / "superfluid.sock") as client:
        first = client.create_session(GREEDY, system="You are brief.")
        first.user("Hello\nthere \x1b]0;owned\x07 " + "and so on " * 20)
        first.generate(4)
        first.fork(3).set_meta(title=TITLE)
        client.create_session(GREEDY).set_meta(archived=True)
