"""`superfluid session`: the daemon's answer and the log's are the same, for people and for programs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from superfluid.cli.describe import describe
from superfluid.cli.visible import visible
from superfluid_protocol import EventBody, GenParams, Inspection, event, from_json, types
from tests.cli.conftest import TITLE
from tests.cli.terminal import Terminal, superfluid
from tests.daemon import Daemon
from tests.protocol.strategies import values

pytestmark = pytest.mark.slow

SHOWN_TITLE = "a [bold]title[/] \\x1b[31mwith\\x07 tricks\\n"


def test_the_list(served: Path):
    done = superfluid("session", "list", home=served)

    assert (done.returncode, done.stderr) == (0, "")
    head, first, second = done.stdout.splitlines()[:3]
    assert head.split() == ["id", "from", "events", "tokens", "title"]
    assert first.split()[0] == "1"
    assert second.split()[:2] == ["2", "1@3"]
    assert second.endswith(SHOWN_TITLE)


def test_archived_sessions_are_listed_when_asked_for(served: Path):
    shown = json.loads(superfluid("session", "list", "--json", home=served).stdout)
    everything = json.loads(superfluid("session", "list", "--all", "--json", home=served).stdout)

    assert {line["id"] for line in everything} - {line["id"] for line in shown} == {3}
    assert shown[1]["title"] == TITLE


@pytest.mark.parametrize(
    "args", [["list"], ["list", "--json", "-a"], ["tree"], ["tree", "--json"], ["inspect", "2", "--full"]]
)
def test_without_a_daemon_the_log_gives_the_same_answer(own: Daemon, args: list[str]):
    from tests.cli.conftest import tell

    home = own.sessions.parent
    tell(home)
    asked = superfluid("session", *args, home=home)
    own.kill()

    read = superfluid("session", *args, home=home)

    assert (asked.returncode, asked.stderr) == (0, "")
    assert read.returncode == 0
    assert read.stdout == asked.stdout.replace("KV: resident", "KV: cold")
    assert read.stderr == f"superfluid: read from the log in {own.sessions}, without the daemon\n"


def test_a_directory_is_read_beside_its_daemon_and_not_changed(served: Path, tmp_path: Path):
    before = {path.name: path.read_bytes() for path in (served / "sessions").iterdir() if path.is_file()}

    done = superfluid("session", "list", "--sessions", str(served / "sessions"), home=tmp_path)

    assert done.stdout == superfluid("session", "list", home=served).stdout
    assert "without the daemon" in done.stderr
    after = {path.name: path.read_bytes() for path in (served / "sessions").iterdir() if path.is_file()}
    assert after["wal.log"] == before["wal.log"]
    assert after.keys() == before.keys()


def test_a_named_socket_means_that_daemon_and_with_a_directory_either(left: Path, tmp_path: Path):
    alone = superfluid("session", "list", "--socket", str(tmp_path / "no.sock"), home=left)
    either = superfluid(
        "session",
        "list",
        "--socket",
        str(tmp_path / "no.sock"),
        "--sessions",
        str(left / "sessions"),
        home=tmp_path,
    )

    assert alone.returncode == 1
    assert "no.sock" in alone.stderr
    assert either.returncode == 0
    assert either.stdout


def test_inspect_json_is_the_wire_value_with_every_event(served: Path):
    done = superfluid("session", "inspect", "1", "--json", home=served)

    found = from_json(Inspection, json.loads(done.stdout))
    assert isinstance(found, Inspection)
    assert len(found.events) == found.summary.events > 4
    assert done.stdout.isascii()


def test_inspect_shows_events_one_a_line(served: Path):
    done = superfluid("session", "inspect", "1", home=served)
    full = superfluid("session", "inspect", "1", "--full", home=served)

    lines = done.stdout.splitlines()
    assert lines[0] == "session 1"
    assert any("temperature 0, top_p 0.95, min_p 0.05, top_k 40, seed 1" in line for line in lines)
    (message,) = (line for line in lines if "Hello" in line)
    assert message.endswith("…")
    assert "Hello\\nthere \\x1b]0;owned\\x07 and so on" in message
    assert max(len(line) for line in lines) <= 100
    assert ("and so on " * 20).strip() in full.stdout
    assert "\x1b" not in full.stdout + done.stdout


def test_a_session_that_is_not_there(served: Path, left: Path):
    for home in (served, left):
        done = superfluid("session", "inspect", "77", home=home)

        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1] == "superfluid: session 77 does not exist"


def test_the_tree_hangs_forks_below_their_parents(served: Path):
    lines = superfluid("session", "tree", home=served).stdout.splitlines()

    assert lines[0].startswith("1  ")
    assert lines[1].startswith("  2 @3")
    assert lines[2].startswith("3  ")
    assert lines[2].endswith("(archived)")


def test_on_a_terminal_nothing_from_the_log_is_obeyed(served: Path, terminal: Callable[..., Terminal]):
    for args in (["list"], ["tree"], ["inspect", "1"], ["inspect", "2", "--full"]):
        run = terminal("session", *args, home=served)

        assert run.wait_end() == 0
        assert "\x1b]0;" not in run.shown
        assert "\x1b[31m" not in run.shown
        assert "\x07" not in run.shown
        if args != ["inspect", "1"]:
            assert "[bold]title[/]" in run.shown, "markup is text"


def test_a_damaged_log_is_shown_up_to_the_damage_and_told(left: Path, tmp_path: Path):
    import shutil

    shutil.copytree(left / "sessions", tmp_path / "sessions")
    log = tmp_path / "sessions" / "wal.log"
    data = bytearray(log.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[end - end // 3] ^= 0xFF
    log.write_bytes(data)

    done = superfluid("session", "list", home=tmp_path)

    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split()[0] == "1"
    assert "damaged at offset" in done.stderr


def test_an_empty_directory_is_told(tmp_path: Path):
    done = superfluid("session", "list", "--sessions", str(tmp_path), home=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert "no session log" in done.stderr


PARAMS = GenParams(temperature=0.7, top_p=0.95, min_p=0.05, top_k=40, seed=7)


@pytest.mark.parametrize(
    ("body", "kind", "role", "tokens", "text"),
    [
        (event.Appended(text=None, span=(1, 2)), "appended", "", 2, ""),
        (event.Appended(text="raw", span=()), "appended", "", 0, "raw"),
        (event.Message(role=3, text="x", span=(1,)), "message", "tool", 1, "x"),
        (event.Message(role=9, text="x", span=(1,)), "message", "9", 1, "x"),
        (
            event.Generated(span=(1,), text="so", channel=1, finish=4),
            "generated",
            "assistant/reasoning",
            1,
            "so [cancelled]",
        ),
        (event.ToolUse(name="f", arguments="{}"), "tool-use", "assistant", None, "f {}"),
        (event.ToolResult(call_id=4, content="ok", span=(1,)), "tool-result", "tool", 1, "to call 4: ok"),
        (event.EpochBump(), "epoch-bump", "", None, ""),
        (event.QosSet(class_=3, batch_invariant=False), "qos-set", "", None, "class=3 batch_invariant=False"),
        (event.MetaUpdated(version=1, title=None, archived=False), "meta-updated", "", None, "not archived"),
        (
            event.Purged(generation=1, descendants=types.PurgeMode.CASCADE),
            "purged",
            "",
            None,
            "generation=1 descendants=<PurgeMode.CASCADE: 0>",
        ),
        (
            event.Created(parent=3, params=PARAMS),
            "created",
            "",
            None,
            "below session 3; temperature 0.7, top_p 0.95, min_p 0.05, top_k 40, seed 7",
        ),
    ],
)
def test_an_event_in_words(body: EventBody, kind: str, role: str, tokens: int | None, text: str):
    line = describe(body)

    assert (line.kind, line.role, line.tokens, line.text) == (kind, role, tokens, text)


@given(values(EventBody))
def test_any_event_has_words(body: EventBody):
    line = describe(body)

    assert line.kind.replace("-", "") == type(body).__name__.lower()
    assert visible(line.text).isprintable() or not line.text.isascii()
