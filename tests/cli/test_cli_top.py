"""`superfluid top` against a real daemon: on a pipe, as JSON, and live on a terminal."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from superfluid_client import Client
from tests.cli.terminal import COMMAND, Terminal, environment, superfluid
from tests.daemon import Daemon

pytestmark = pytest.mark.slow

FAST = ("--interval", "0.1")
LIVE = "xterm-256color"


def test_one_look_as_json_has_every_figure(served: Path):
    done = superfluid("top", "--once", "--json", *FAST, home=served)

    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    shown = json.loads(line)
    assert shown["lanes"] == 8
    assert shown["lanes_active"] == 0
    assert shown["context"] > 0
    assert shown["model"].endswith(".gguf")
    assert 0 < shown["pool_used"] < shown["pool_cells"]
    assert set(shown["queue"]) == {"interactive", "completion", "agent", "background"}
    assert shown["sessions"] >= 3  # and what other tests make in the same daemon


def test_one_look_as_text(served: Path):
    done = superfluid("top", "--once", *FAST, home=served)

    assert (done.returncode, done.stderr) == (0, "")
    for word in ("lanes", "0 of 8", "queue", "agent 0", "TTFT", "pool", "host", "pins", "respawns"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout


def test_live_on_a_terminal_until_q(served: Path, terminal: Callable[..., Terminal]):
    top = terminal("top", *FAST, home=served, kind=LIVE)
    top.wait_for("\x1b[?1049h")  # the other screen, so that what stood there comes back
    top.wait_for("positions")
    top.wait_for("q leaves")
    top.type("xq")

    assert top.wait_end() == 0
    assert "\x1b[?1049l" in top.shown
    assert "Traceback" not in top.shown


def test_ctrl_c_leaves_too(served: Path, terminal: Callable[..., Terminal]):
    top = terminal("top", *FAST, home=served, kind=LIVE)
    top.wait_for("q leaves")
    top.type("\x03")

    assert top.wait_end() == 0
    assert "Traceback" not in top.shown


def test_a_daemon_that_goes_away_is_said_and_waited_for(own: Daemon, terminal: Callable[..., Terminal]):
    home = own.sessions.parent
    with Client.connect(own.socket) as client:
        session = client.create_session()
        session.user("hello")
        session.generate(5)
    top = terminal("top", *FAST, home=home, kind=LIVE)
    top.wait_for("1 sessions")
    own.kill()
    top.wait_for("no daemon answers")
    own.start().ready()
    top.wait_for("q leaves")
    top.wait_for("0 of 8")
    top.type("q")

    assert top.wait_end() == 0


def test_lines_go_on_until_the_reader_leaves(served: Path):
    command = subprocess.Popen(
        [*COMMAND, "top", "--json", *FAST],
        env=environment(served),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    for _ in range(3):
        assert "lanes" in json.loads(command.stdout.readline())
    os.kill(command.pid, signal.SIGINT)

    _, errors = command.communicate(timeout=15)

    assert (command.returncode, errors) == (0, b"")


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path):
    done = superfluid("top", home=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert "superfluid serve" in done.stderr
