"""What keeps a daemon from starting is said by name, soon, and leaves nothing running or changed."""

import signal
from pathlib import Path

import pytest

from superfluid_protocol import request
from tests.daemon import Daemon, workers_of
from tests.unprivileged import UNPRIVILEGED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

REFUSAL_SECONDS = 5.0
"""The longest that a refusal may take (the specification's number)."""


def refusal(daemon: Daemon, *, code: int = 1) -> str:
    """Start it, see it refuse; the line that says why."""
    daemon.start()
    assert daemon.wait(REFUSAL_SECONDS) == code, daemon.errors
    assert workers_of(daemon.pid) == []
    assert "Traceback" not in daemon.errors
    said = daemon.lines[-1]["text"]
    assert said.startswith("superfluid: ")
    return said


def not_a_model(kind: str, path: Path, model: Path) -> str:
    """Make something that is no model at *path*; returns what must be said of it."""
    content = model.read_bytes()
    match kind:
        case "missing":
            return f"model file {path} does not exist"
        case "directory":
            path.mkdir()
            return f"model file {path} is a directory"
        case "empty":
            path.touch()
            return f"model file {path} is empty (0 bytes)"
        case "half":
            path.write_bytes(content[: len(content) // 2])
            return f"model file {path} is truncated or damaged"
        case "head only":
            path.write_bytes(content[:100])
            return f"model file {path} is truncated or damaged"
        case "lfs pointer":
            path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
            return f"model file {path} is a git-lfs pointer, not the model; fetch it with: git lfs pull"
        case "other format":
            path.write_text("PK\3\4 and so on")
            return f"model file {path} is not a GGUF file"
        case "dangling link":
            path.symlink_to(path.with_name("nothing"))
            return f"model file {path} does not exist"
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    ["missing", "directory", "empty", "half", "head only", "lfs pointer", "other format", "dangling link"],
)
def test_a_file_that_is_no_model_is_named_with_its_fault(tmp_path, endless_model, make_daemon, kind):
    path = tmp_path / "model.gguf"
    expected = not_a_model(kind, path, endless_model)
    daemon = make_daemon(tmp_path, path)

    assert expected in refusal(daemon)

    assert not daemon.socket.exists()


def test_a_model_that_may_not_be_read_is_named(tmp_path, endless_model, make_daemon):
    path = tmp_path / "model.gguf"
    path.write_bytes(endless_model.read_bytes())
    path.chmod(0)

    said = refusal(make_daemon(tmp_path, path, prefix=UNPRIVILEGED.prefix))

    assert f"model file {path} may not be read by this user" in said


def test_no_model_is_a_usage_error(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model)
    daemon.command.remove(str(endless_model))

    assert "name a model" in refusal(daemon, code=2)


def test_a_context_beyond_memory_is_refused_by_number(tmp_path, endless_model, make_daemon):
    said = refusal(make_daemon(tmp_path, endless_model, context=2_000_000_000))

    assert "memory" in said


@pytest.mark.parametrize("through", ["the directory", "a link to it"])
def test_a_directory_that_is_served_names_its_server(tmp_path, endless_model, make_daemon, through):
    first = make_daemon(tmp_path, endless_model).start().ready()
    other_home = tmp_path / "other"
    other_home.mkdir()
    second = make_daemon(other_home, endless_model)
    target = first.sessions
    if through == "a link to it":
        target = tmp_path / "link"
        target.symlink_to(first.sessions)
    second.command[second.command.index(str(second.sessions))] = str(target)

    said = refusal(second)

    assert f"is served by process {first.pid}" in said
    assert not second.socket.exists()
    with first.client() as client:
        client.create()


def test_a_socket_that_is_served_names_its_server_and_stays(tmp_path, endless_model, make_daemon):
    first = make_daemon(tmp_path, endless_model).start().ready()
    other_home = tmp_path / "other"
    other_home.mkdir()

    said = refusal(make_daemon(other_home, endless_model, socket_path=first.socket))

    assert f"(pid {first.pid}) serves the socket {first.socket}" in said
    assert not (other_home / "sessions" / "wal.log").exists(), "the conflict is found before anything is made"
    with first.client() as client:
        client.create()


def test_a_killed_server_stops_no_start(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    daemon.kill()
    assert daemon.socket.exists()

    with daemon.start().serving().client() as client:
        client.create()


def test_a_directory_that_may_not_be_written_is_named(tmp_path, endless_model, make_daemon):
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    sessions.chmod(0o500)

    said = refusal(make_daemon(tmp_path, endless_model, prefix=UNPRIVILEGED.prefix))

    assert str(sessions) in said
    assert "Permission denied" in said


def test_sessions_of_another_vocabulary_are_not_served(tmp_path, endless_model, make_daemon):
    first = make_daemon(tmp_path, endless_model).start().ready()
    with first.client() as client:
        session = client.create()
        client.user(session, "hello")
    first.send_signal(signal.SIGTERM)
    first.wait()
    other = tmp_path / "other.gguf"
    changed = endless_model.read_bytes().replace(b"<|endoftext|>", b"<|endofTEXT|>")
    other.write_bytes(changed)

    said = refusal(make_daemon(tmp_path, other))

    assert "whose vocabulary is not that of" in said
    assert str(other) in said
    with first.start().ready().client() as client:
        assert len(client.events(session)) == 2


def test_another_vocabulary_on_a_directory_without_sessions_is_served(tmp_path, endless_model, make_daemon):
    first = make_daemon(tmp_path, endless_model).start().ready()
    first.send_signal(signal.SIGTERM)
    first.wait()
    other = tmp_path / "other.gguf"
    other.write_bytes(endless_model.read_bytes().replace(b"<|endoftext|>", b"<|endofTEXT|>"))

    make_daemon(tmp_path, other).start().ready()


def test_no_append_is_taken_for_a_vocabulary_that_is_not_the_directorys(tmp_path, endless_model, make_daemon):
    """The start answers before the model is compared; what a client sends meanwhile must not get in."""
    first = make_daemon(tmp_path, endless_model).start().ready()
    with first.client() as client:
        session = client.create()
        client.user(session, "hello")
    first.kill()
    log = first.sessions / "wal.log"
    other = tmp_path / "other.gguf"
    other.write_bytes(endless_model.read_bytes().replace(b"<|endoftext|>", b"<|endofTEXT|>"))
    second = make_daemon(tmp_path, other).start().serving()
    with second.client() as client:
        client.send(request.AppendMessage(session=session, role=1, text="in the wrong ids"))
        assert second.wait(REFUSAL_SECONDS) == 1

    assert b"in the wrong ids" not in log.read_bytes()


def test_damage_below_the_mark_names_its_offset_and_the_ways_out(tmp_path, endless_model, make_daemon):
    daemon = make_daemon(tmp_path, endless_model).start().ready()
    with daemon.client() as client:
        session = client.create()
        for number in range(5):
            client.user(session, f"message {number}")
    daemon.kill()
    log = daemon.sessions / "wal.log"
    content = bytearray(log.read_bytes())
    at = content.index(b"message 2")
    content[at] ^= 1
    log.write_bytes(content)

    said = refusal(daemon)

    assert str(log) in said
    assert "offset" in said
    assert log.read_bytes() == content


def test_a_log_filter_that_is_none_is_named(tmp_path, endless_model, make_daemon):
    said = refusal(make_daemon(tmp_path, endless_model, "--log-filter", "loud"))

    assert "'loud' is not a level" in said
