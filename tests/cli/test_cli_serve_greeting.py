"""What `serve` prints for the person who started it can be pasted into another terminal."""

import shlex
from pathlib import Path

import pytest

from superfluid.cli.serve import _greeting


@pytest.mark.parametrize(
    "socket", ["/people/u/.superfluid/superfluid.sock", "/tmp/a b/it's.sock", "/srv/sf/superfluid.sock"]
)
def test_the_hints_are_whole_commands_that_name_the_socket(monkeypatch, socket: str):
    monkeypatch.setenv("HOME", "/people/u")
    monkeypatch.setenv("SUPERFLUID_HOME", "/srv/sf")

    lines = _greeting("smollm2", Path(socket)).splitlines()
    chat, sessions, python = (shlex.split(line) for line in lines[2:])

    default = socket == "/people/u/.superfluid/superfluid.sock"
    option = [] if default else ["--socket", socket]
    assert chat == ["superfluid", "chat", *option]
    assert sessions == ["superfluid", "session", "list", *option]
    assert python[:2] == ["python", "-c"]
    compile(python[2], "hint", "exec")
    assert (repr(socket) in python[2]) is not default
