"""`superfluid chat`: through a pipe, on a terminal, and when the other side is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from superfluid_client import Client
from superfluid_protocol import Request, event, request, response
from tests.cli.conftest import GREEDY
from tests.cli.terminal import Terminal, superfluid
from tests.client.fake_daemon import FakeDaemon, Step, committed, story
from tests.daemon import Daemon

pytestmark = pytest.mark.slow

Start = Callable[..., FakeDaemon]
Run = Callable[..., Terminal]

GREEDY_OPTIONS = ("--temperature", "0", "--seed", "1")


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Start]:
    """A scripted daemon in the home ``tmp_path``."""
    made: list[FakeDaemon] = []

    def start(script: Callable[[Request], Iterator[Step]] = story) -> FakeDaemon:
        made.append(FakeDaemon(tmp_path / "superfluid.sock", script))
        return made[-1]

    yield start
    for fake in made:
        fake.close()


def home_of(daemon: Daemon) -> Path:
    return daemon.sessions.parent


def texts(home: Path, session: int) -> list[str]:
    """What was said by the user in a session."""
    with Client.connect(home / "superfluid.sock") as client:
        bodies = [message.body for message in client.session(session).events()]
    return [body.text for body in bodies if isinstance(body, event.Message)]


def reply_of(home: Path, session: int) -> str:
    with Client.connect(home / "superfluid.sock") as client:
        bodies = [message.body for message in client.session(session).events()]
    return "".join(body.text for body in bodies if isinstance(body, event.Generated))


# -- pipes ------------------------------------------------------------------------------------------


def test_a_piped_line_gets_its_reply_and_nothing_else_on_stdout(own: Daemon):
    done = superfluid("chat", "--max-tokens", "5", *GREEDY_OPTIONS, home=home_of(own), stdin="hi\n")

    assert done.returncode == 0
    assert done.stdout.rstrip("\n") == reply_of(home_of(own), 1).rstrip("\n")
    notes = done.stderr.splitlines()
    assert notes[0] == "session 1; temperature 0, top_p 0.95, min_p 0.05, top_k 40, seed 1"
    assert notes[1:] == ["The reply was cut at its token limit; /continue goes on."]


def test_each_piped_line_is_a_turn_and_commands_work(own: Daemon):
    lines = "one\n\n/continue\n/fork\ntwo\n//slash\nfirst \\\nsecond\n/sessions\n/tree\n/session 1\n/quit\nnever said\n"

    done = superfluid(
        "chat", "--max-tokens", "2", *GREEDY_OPTIONS, "--system", "s", home=home_of(own), stdin=lines
    )

    assert done.returncode == 0
    assert texts(home_of(own), 1) == ["s", "one"]
    assert texts(home_of(own), 2) == ["s", "one", "two", "/slash", "first \nsecond"]
    assert "session 2, a fork of 1" in done.stderr
    assert "id  from" in done.stdout
    assert "\n  2 @" in done.stdout


def test_a_message_on_the_command_line_or_all_of_the_input(own: Daemon):
    home = home_of(own)

    first = superfluid("chat", "-m", "hello", "--max-tokens", "2", home=home)
    second = superfluid("chat", "--session", "1", "-m", "-", "--max-tokens", "2", home=home, stdin="a\nb\n")

    assert (first.returncode, second.returncode) == (0, 0)
    assert texts(home, 1) == ["hello", "a\nb\n"]


def test_a_failed_line_fails_the_program_after_the_others_had_their_turn(own: Daemon):
    done = superfluid(
        "chat", "--max-tokens", "2", home=home_of(own), stdin="/nonsens\n/fork x\n/session 99\nhi\n"
    )

    assert done.returncode == 1
    assert done.stdout
    assert "There is no /nonsens; /help shows" in done.stderr
    assert "/fork takes the number of an event" in done.stderr
    assert "session 99 does not exist" in done.stderr


def test_a_message_that_may_be_stored_is_not_called_unsent(scripted: Start, tmp_path: Path):
    said = "syncing the log failed (Input/output error): whether this was stored is unknown. Read the session"

    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.AppendMessage):
            yield response.Err(message=said)
        else:
            yield from story(req)

    scripted(script)

    done = superfluid("chat", home=tmp_path, stdin="hi\n")

    assert done.returncode == 1
    assert said in done.stderr
    assert "Not sent" not in done.stderr


def test_a_typo_in_a_command_names_the_closest(scripted: Start, tmp_path: Path):
    scripted()

    done = superfluid("chat", home=tmp_path, stdin="/contineu\n")

    assert "did you mean /continue?" in done.stderr


def test_input_that_is_no_text_is_told_in_a_line(scripted: Start, tmp_path: Path):
    scripted()

    done = superfluid(
        "chat", home=tmp_path, stdin=b"\xff\xfe\n", environ={"PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_character_that_the_output_has_no_sign_for_is_shown_as_its_number(scripted: Start, tmp_path: Path):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate):
            said = (committed(2, "day \u65e5", finish=1),)
            yield response.Delta(event=said[0])
            yield response.Generated(events=said, tokens_generated=1, finish=1, warm_prefix=0)
        else:
            yield from story(req)

    scripted(script)

    done = superfluid("chat", "-m", "x", home=tmp_path, environ={"PYTHONIOENCODING": "latin-1"})

    assert (done.returncode, done.stdout) == (0, "day \\u65e5\n")


def test_a_session_that_is_not_there(own: Daemon):
    done = superfluid("chat", "--session", "9", home=home_of(own), stdin="x\n")

    assert (done.returncode, done.stdout, done.stderr) == (1, "", "superfluid: session 9 does not exist\n")


def test_what_the_model_thinks_goes_with_the_notes(scripted: Start, tmp_path: Path):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate):
            events = (committed(2, "hmm", channel=1), committed(3, "yes", finish=1))
            for message in events:
                yield response.Delta(event=message)
            yield response.Generated(events=events, tokens_generated=2, finish=1, warm_prefix=0)
        else:
            yield from story(req)

    scripted(script)

    done = superfluid("chat", home=tmp_path, stdin="x\n")

    assert done.stdout == "yes\n"
    assert "hmm\n" in done.stderr


def test_a_lost_worker_is_told_and_the_next_line_has_its_turn(scripted: Start, tmp_path: Path):
    failures = ["the worker was lost (killed); what it made is recorded, generate again to continue"]

    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate) and failures:
            yield response.Delta(event=committed(2, "Hel"))
            yield response.Err(message=failures.pop())
        else:
            yield from story(req)

    scripted(script)

    done = superfluid("chat", home=tmp_path, stdin="x\n/continue\n")

    assert done.returncode == 1
    assert done.stdout == "Hel\nHello\n"
    (line,) = (line for line in done.stderr.splitlines() if "worker" in line)
    assert "/continue goes on" in line


# -- terminals --------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_reply_and_not_the_program(own: Daemon, terminal: Run):
    chat = terminal("chat", "--max-tokens", "1900", *GREEDY_OPTIONS, home=home_of(own))
    chat.wait_for("> ")
    chat.type("hello\n")
    chat.wait_for("hello")
    chat.wait_for("\n")
    wait_for_reply(home_of(own))
    chat.type("\x03")
    chat.wait_for("Cancelled; /continue goes on.")
    chat.wait_for("> ")

    chat.type("/quit\n")

    assert chat.wait_end() == 0
    with Client.connect(own.socket) as client:
        events = client.session(1).events()
    assert isinstance(events[-1].body, event.Generated)
    assert events[-1].body.finish == 4


def test_ctrl_c_twice_at_the_prompt_and_ctrl_d_leave(scripted: Start, tmp_path: Path, terminal: Run):
    scripted()
    chat = terminal("chat", home=tmp_path)
    chat.wait_for("> ")
    chat.interrupt()
    chat.wait_for("Ctrl-C again")
    chat.wait_for("> ")
    chat.type("hi\n")
    chat.wait_for("Hello")
    chat.wait_for("> ")
    chat.interrupt()
    chat.wait_for("Ctrl-C again")
    chat.wait_for("> ")
    chat.interrupt()
    assert chat.wait_end() == 0

    other = terminal("chat", home=tmp_path)
    other.wait_for("> ")
    other.type("\x04")
    assert other.wait_end() == 0


def test_a_lost_daemon_is_told_and_the_chat_goes_on_with_the_next_one(own: Daemon, terminal: Run):
    chat = terminal("chat", "--max-tokens", "1900", *GREEDY_OPTIONS, home=home_of(own))
    chat.wait_for("> ")
    chat.type("hello\n")
    wait_for_reply(home_of(own))
    own.kill()
    chat.wait_for("was lost")
    chat.wait_for("> ")
    chat.type("anyone?\n")
    chat.wait_for("Not sent: no superfluid daemon listens")
    chat.wait_for("> ")

    own.start().ready()
    chat.type("/continue\n")
    chat.wait_for("/continue")
    chat.wait_for("> ")

    chat.type("\x04")
    assert chat.wait_end() == 0
    assert texts(home_of(own), 1) == ["hello"]


def test_what_a_model_says_cannot_drive_the_terminal(scripted: Start, tmp_path: Path, terminal: Run):
    def script(req: Request) -> Iterator[Step]:
        if isinstance(req, request.Generate):
            said = (committed(2, "a\nb \x1b]0;owned\x07", finish=1),)
            yield response.Delta(event=said[0])
            yield response.Generated(events=said, tokens_generated=1, finish=1, warm_prefix=0)
        else:
            yield from story(req)

    scripted(script)
    chat = terminal("chat", "-m", "x", home=tmp_path)

    assert chat.wait_end() == 0
    assert "a\r\nb \\x1b]0;owned\\x07" in chat.shown


def test_lines_are_remembered_for_the_user_alone(scripted: Start, tmp_path: Path, terminal: Run):
    scripted()
    chat = terminal("chat", home=tmp_path)
    chat.wait_for("> ")
    chat.type("remember me\n")
    chat.wait_for("Hello")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.wait_end() == 0

    history = tmp_path / "chat-history"
    assert "remember me" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def wait_for_reply(home: Path) -> None:
    """Return when the first session has a part of a reply."""
    with Client.connect(home / "superfluid.sock") as client:
        session = client.session(1)
        cursor = 0
        while True:
            new = session.events(cursor)
            cursor += len(new)
            if any(isinstance(message.body, event.Generated) for message in new):
                return


def test_chat_goes_on_in_a_session_of_another_program(own: Daemon):
    with Client.connect(own.socket) as client:
        session = client.create_session(GREEDY)
        session.user("from a program")

    done = superfluid(
        "chat", "--session", str(session.id), "-m", "from here", "--max-tokens", "1", home=home_of(own)
    )

    assert done.returncode == 0
    assert texts(home_of(own), session.id) == ["from a program", "from here"]
