"""How every command begins and ends: help, versions, typos, exit codes, errors in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from superfluid import __version__
from superfluid.cli import main
from tests.cli.terminal import COMMAND, environment, superfluid

pytestmark = pytest.mark.slow

WITHOUT_ENGINE = """
import sys
sys.modules["llama_cpp"] = None
sys.modules["numpy"] = None  # comes with it
from superfluid.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
"""The command line where llama-cpp-python was never installed."""


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_teaches_with_examples(tmp_path: Path, args: list[str]):
    done = superfluid(*args, home=tmp_path)

    shown = done.stdout if args else done.stderr
    assert done.returncode == (0 if args else 2)
    for word in ("serve", "chat", "session", "superfluid serve smollm2", "SUPERFLUID_HOME"):
        assert word in shown


@pytest.mark.parametrize(
    "command", ["serve", "chat", "session", "session list", "session inspect", "session tree"]
)
def test_each_command_has_help(tmp_path: Path, command: str):
    done = superfluid(*command.split(), "--help", home=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert f"superfluid {command}" in done.stdout


def test_help_loads_neither_engine_nor_event_loop_nor_tables():
    code = (
        "import sys; from superfluid.cli.main import run; code = run(['--help']);"
        "heavy = {'trio', 'llama_cpp', 'rich', 'numpy', 'superfluid_client', 'superfluid_protocol'} & set(sys.modules);"
        "assert not heavy, heavy; sys.exit(code)"
    )

    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_version(tmp_path: Path):
    assert superfluid("--version", home=tmp_path).stdout == f"superfluid {__version__}\n"


@pytest.mark.parametrize(
    ("args", "closest"),
    [
        (["sesion", "list"], "'session'"),
        (["session", "lsit"], "'list'"),
        (["session", "inspekt", "1"], "'inspect'"),
        (["chat", "--sesion", "1"], "--session"),
        (["session", "list", "--jsn"], "--json"),
        (["serve", "--sokcet", "x", "m"], "--socket"),
        (["--versoin"], "--version"),
    ],
)
def test_a_typo_names_the_closest_and_is_a_usage_error(tmp_path: Path, args: list[str], closest: str):
    done = superfluid(*args, home=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert closest in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["session", "inspect", "x"],
        ["session", "inspect"],
        ["chat", "--session", "1", "--temperature", "0"],
        ["chat", "--top-p", "2"],
        ["serve"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(tmp_path: Path, args: list[str]):
    done = superfluid(*args, home=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args", [["chat"], ["session", "list"], ["session", "list", "--socket", "./no.sock"]]
)
def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: Path, args: list[str]):
    done = superfluid(*args, home=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert "superfluid serve" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_bug_of_ours_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(main.cli, "main", broken)

    assert main.run([]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("superfluid: internal error: ZeroDivisionError: boom")
    assert len(captured.err.splitlines()) == 1


def test_a_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(main.cli, "main", broken)
    monkeypatch.setenv("SUPERFLUID_TRACEBACK", "1")

    assert main.run([]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_without_the_engine_help_and_sessions_work(left: Path):
    for args in (["--help"], ["session", "list"], ["session", "inspect", "1"], ["session", "tree", "--json"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_ENGINE, *args],
            env=environment(left),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_without_the_engine_serve_says_what_is_missing(tmp_path: Path, endless_model: Path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE, "serve", str(endless_model)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )

    assert done.returncode == 1
    assert "llama-cpp-python" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_error_to_tell(served: Path):
    command = subprocess.Popen(
        [*COMMAND, "session", "inspect", "1", "--json"],
        env=environment(served),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    command.stdout.close()

    _, errors = command.communicate(timeout=15)

    assert (command.returncode, errors) == (1, b"")


def test_ctrl_c_ends_quietly(served: Path):
    command = subprocess.Popen(
        [*COMMAND, "chat"],
        env=environment(served),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stderr is not None
    assert b"session" in command.stderr.readline()  # it waits for a line now
    command.send_signal(2)

    output, errors = command.communicate(timeout=15)

    assert (command.returncode, output, errors.strip()) == (130, b"", b"")
