from contextlib import asynccontextmanager

import pytest
import trio

from superfluid.core.replay import apply_command
from superfluid.core.state import State
from superfluid.store.store import Store
from superfluid.wal.log import Log
from tests.store.faulty_files import FaultyFiles

NOW_MS = 1_700_000_000_000


def replay(directory):
    """The state that a start finds in the log; nothing of it is changed."""
    opened = Log.open(directory, now_ms=NOW_MS)
    state = State()
    for command in opened.commands:
        apply_command(state, command)
    opened.log.close()
    return state


@asynccontextmanager
async def serving(directory, files=None):
    """A store on the log in *directory*, as a daemon runs it."""
    opened = Log.open(directory, now_ms=NOW_MS, files=files)
    state = State()
    for command in opened.commands:
        apply_command(state, command)
    opened.log.begin()
    store = Store(opened.log, state, now_ms=lambda: NOW_MS)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            try:
                yield store
            finally:
                store.close()
    finally:
        opened.log.close()


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
async def store(tmp_path, files):
    async with serving(tmp_path, files) as store:
        yield store
