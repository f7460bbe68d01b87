#!/usr/bin/env python3
"""One story on the real model: a session outlives its worker and its daemon, and loses nothing that was shown.

It starts a daemon of its own in a temporary directory, tells what it does, and ends by itself: with exit code 0 when
every step went as it should, and with 1 and the reason when one did not.

    python clients/python/examples/demo.py [MODEL]
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from superfluid_client import (
    Client,
    ConnectionFailed,
    ConnectionLost,
    EventMsg,
    Reply,
    Session,
    SuperfluidError,
    WorkerLost,
    sampling,
)

WORKER_MARK = b"superfluid-worker-llamacpp"
"""What a worker process carries in its command line."""

START_SECONDS = 120
"""A cold disk has to deliver the model first."""

ERROR_SECONDS = 2.0
"""The longest that a client may wait for its error after the worker was lost."""

SHOWN_BEFORE_KILL = 6
"""Events of a reply that are read before something is killed, so that it happens in the middle."""


class Wrong(Exception):
    """A step is not as it should be."""


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    with tempfile.TemporaryDirectory(prefix="superfluid-demo-") as home:
        daemon = Daemon(model, Path(home))
        try:
            with daemon.started() as client:
                tell_story(daemon, client)
        except (Wrong, SuperfluidError) as error:
            print(f"\nWRONG: {error}", file=sys.stderr)
            print(f"The daemon's last lines:\n{daemon.last_lines()}", file=sys.stderr)
            return 1
        finally:
            daemon.end()
    print("\nEvery step was as it should be.")
    return 0


def tell_story(daemon: "Daemon", client: Client) -> None:
    step("Create a session")
    # A seed, so that every run tells the same story.
    session = client.create_session(
        sampling(temperature=0.7, seed=20), system="You are a friendly storyteller.", title="the demo"
    )
    session.user("Tell me a long story about a lighthouse keeper and a whale.")
    print(f"session {session.id}, {session.params}")

    step("Stream a reply")
    stream = session.stream(max_tokens=40)
    for piece in stream:
        print(piece, end="", flush=True)
    print(f"\n-- {stream.result.tokens_generated} tokens, {len(session.events())} events in the session")
    check(stream.result.tokens_generated > 0, "the model said nothing")

    step("Fork it: the fork starts warm, because the worker holds what both share")
    fork_it(client, session)

    step("Kill -9 the worker in the middle of a reply")
    ask_on(session, stream.result)
    lose_the_worker(daemon, session)

    step("Continue the turn: the daemon has started another worker, and the reply goes on where it was cut")
    reply = go_on(session)

    step("Kill -9 the daemon in the middle of a reply")
    ask_on(session, reply)
    expected = [*session.events(), *lose_the_daemon(daemon, session)]

    step("Start it again: every event that was shown is there, under the same id")
    with daemon.start() as client:
        session = client.session(session.id)
        events = session.events()
        check(events[: len(expected)] == expected, "an event that was shown is missing or changed")
        check([e.event_id for e in events] == list(range(len(events))), "the event ids have a gap")
        print(
            f"-- {len(expected)} events had been shown, {len(events)} are there, ids 0 to {len(events) - 1}"
        )

        step("Continue")
        go_on(session)

        step(f"The log of the session: superfluid session inspect {session.id}")
        daemon.run("session", "inspect", str(session.id))


def fork_it(client: Client, session: Session) -> None:
    shared = client.inspect(session.id).summary.tokens
    fork = session.fork()
    fork.user("Stop. Say it in one sentence.")
    reply = fork.generate(max_tokens=24)
    fresh = client.inspect(fork.id).summary.tokens - reply.tokens_generated - reply.warm_prefix
    print(f"session {fork.id}: {reply.text!r}")
    print(f"-- {reply.warm_prefix} prompt tokens came from the cache, {fresh} were prefilled")
    check(reply.warm_prefix > 0, "the fork started cold")
    check(reply.warm_prefix >= shared // 2, f"only {reply.warm_prefix} of {shared} shared tokens were warm")


def go_on(session: Session) -> Reply:
    """Continue a reply that was cut."""
    before = session.events()
    reply = session.generate(max_tokens=16)
    print(
        f"… {reply.text!r}\n-- {reply.tokens_generated} tokens, {reply.warm_prefix} of the prompt from the cache"
    )
    check(reply.tokens_generated > 0, "the turn did not continue")
    check(not prompts(reply.events), "a new turn was opened instead of continuing the old one")
    check(session.events()[: len(before)] == before, "what was there before changed")
    return reply


def ask_on(session: Session, reply: Reply) -> None:
    """See to it that there is something to go on with, if the model found an end by itself."""
    if not reply.is_cut:
        session.user("And then?")


def lose_the_worker(daemon: "Daemon", session: Session) -> None:
    worker = daemon.worker()
    stream = session.stream(max_tokens=400)
    killed = 0.0
    try:
        for piece in stream:
            print(piece, end="", flush=True)
            if not killed and len(stream.committed) >= SHOWN_BEFORE_KILL:
                os.kill(worker, signal.SIGKILL)
                killed = time.monotonic()
                print(f" [kill -9 {worker}]", end="", flush=True)
    except WorkerLost as error:
        waited = time.monotonic() - killed
        print(f"\n-- after {waited:.2f} s the client got: {type(error).__name__}: {error}")
        check(killed > 0, "the worker was lost before it was killed")
        check(waited < ERROR_SECONDS, f"the client waited {waited:.1f} s for its error")
    else:
        raise Wrong("the reply ended as if nothing had happened")
    known = {event.event_id: event for event in session.events()}
    check(
        all(known.get(e.event_id) == e for e in stream.committed), "an event that was shown is not in the log"
    )


def lose_the_daemon(daemon: "Daemon", session: Session) -> list[EventMsg]:
    """Returns the events of the reply that was cut."""
    stream = session.stream(max_tokens=400)
    killed = False
    try:
        for piece in stream:
            print(piece, end="", flush=True)
            if not killed and len(stream.committed) >= SHOWN_BEFORE_KILL:
                print(f" [kill -9 {daemon.pid}]", end="", flush=True)
                daemon.kill()
                killed = True
    except ConnectionLost as error:
        print(f"\n-- the client got: {type(error).__name__}: {error}")
    check(killed, "the reply was over before the daemon could be killed")
    return stream.committed


def prompts(events: tuple[EventMsg, ...]) -> list[EventMsg]:
    """The events that open a new assistant turn."""
    return [event for event in events if type(event.body).__name__ == "GenerationPrompt"]


class Daemon:
    """A daemon of this story's own, with its own home, which is its socket's and its log's directory."""

    def __init__(self, model: str, home: Path) -> None:
        self._model = model
        self._home = home
        self._log = home / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @contextlib.contextmanager
    def started(self) -> Iterator[Client]:
        with self.start() as client:
            yield client

    def start(self) -> Client:
        """Start it and wait until it answers."""
        step(f"superfluid serve {self._model}")
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "superfluid.cli", "serve", self._model]
            self._process = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                client = Client.connect(self._home / "superfluid.sock")
            except ConnectionFailed as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise Wrong(f"the daemon does not start: {error}") from error
                time.sleep(0.05)
            else:
                print(f"-- pid {self.pid}, answering on {client.path}")
                return client

    def worker(self) -> int:
        """The pid of its worker process."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == self.pid and WORKER_MARK in (entry / "cmdline").read_bytes():
                        return int(entry.name)
        raise Wrong("the daemon has no worker process")

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End it in order, whatever state it is in."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def run(self, *arguments: str) -> None:
        """Run a command of the command line against it."""
        subprocess.run([sys.executable, "-m", "superfluid.cli", *arguments], env=self._environ, check=True)

    def last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(lines[-10:])

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, "SUPERFLUID_HOME": str(self._home)}


def step(title: str) -> None:
    print(f"\n=== {title}", flush=True)


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Wrong(otherwise)


if __name__ == "__main__":
    sys.exit(main())
