"""A bug of the daemon's own: it ends, and with it the worker, the socket and, in order, the log."""

import os

import pytest
import trio

from superfluid.app.config import ServeConfig
from superfluid.app.serve import Daemon
from superfluid.wal.log import Log
from tests.daemon import CONTEXT, wait_gone, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def test_a_daemon_that_fails_ends_instead_of_holding_on_to_what_it_has(tmp_path, endless_model):
    config = ServeConfig(
        model="tiny",
        sessions=tmp_path / "sessions",
        socket=tmp_path / "s.sock",
        max_context=CONTEXT,
        threads=1,
    )
    workers = []

    class Bug(Exception):
        pass

    def fail(_daemon):
        workers.extend(workers_of(os.getpid()))
        raise Bug

    daemon = Daemon(config, endless_model, on_ready=fail)

    with pytest.RaisesGroup(Bug, flatten_subgroups=True):
        trio.run(daemon.run, strict_exception_groups=True)

    assert not config.socket.exists()
    wait_gone(workers, 5)
    opened = Log.open(config.sessions, now_ms=0)
    opened.log.close()
    assert opened.clean
