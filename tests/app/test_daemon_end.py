"""A daemon that is to end while its model's text side is still being read."""

import os
import signal
import threading

import pytest
import trio

from superfluid.app import serve
from superfluid.app.config import ServeConfig
from superfluid.app.serve import Daemon
from superfluid.sched.engine import Phase
from superfluid.worker.llama.model import model_digest
from tests.daemon import CONTEXT, wait_gone, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(30)]


@pytest.mark.parametrize("worker", ["ready", "loading"])
def test_a_model_file_that_is_read_for_long_does_not_hold_up_the_end(
    tmp_path, endless_model, monkeypatch, worker
):
    config = ServeConfig(
        model="tiny",
        sessions=tmp_path / "sessions",
        socket=tmp_path / "s.sock",
        max_context=CONTEXT,
        threads=1,
        drain_timeout=0.0,
        flash_attn="off",
    )
    monkeypatch.setenv("SUPERFLUID_CACHE", str(tmp_path / "cache"))
    engine_is_ready = threading.Event()
    if worker == "loading":
        engine_is_ready.set()

    def note(_engine, phase, **_details):
        if phase is Phase.READY:
            engine_is_ready.set()
        return change(_engine, phase, **_details)

    change = serve.Engine._change
    monkeypatch.setattr(serve.Engine, "_change", note)

    def read_for_ever(path, *, now, check_cancelled, on_content):
        if worker == "ready":
            on_content("0" * 32)
        engine_is_ready.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            model_digest(path, check_cancelled=check_cancelled)

    monkeypatch.setattr(serve, "load_text", read_for_ever)
    trio.run(Daemon(config, endless_model, on_ready=lambda _: None).run, strict_exception_groups=True)

    assert not config.socket.exists()
    wait_gone(workers_of(os.getpid()), 5)
