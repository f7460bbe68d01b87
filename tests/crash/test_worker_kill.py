"""The worker killed, stopped or deprived of its model, under a daemon that goes on."""

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from superfluid_protocol import EventMsg, GenParams, event, numbers, request, response
from tests.crash.draws import consistent, rows
from tests.crash.ledger import Ledger
from tests.daemon import GREEDY, PATIENCE, Client, Daemon, Reply, cpu_ticks, wait_gone, workers_of

pytestmark = pytest.mark.slow

KILLS = 50
KILLS_A_SESSION = 5

CONTEXT = 16_384

SAMPLED = GenParams(temperature=0.9, top_p=1.0, min_p=0.0, top_k=40, seed=20)
"""The end tokens of the test's model are never among its 40 best, so only a limit or a kill ends a reply."""

ERROR_SECONDS = 2.0
"""The longest that a client may wait for its error (the specification's number)."""

LONG = 15_000
"""Tokens of a reply that no test lets come to its end: seconds of work."""


@dataclass(slots=True)
class Streamer(threading.Thread):
    """Asks for one long reply, and notes what it was shown and when it was told of the end."""

    client: Client
    session: int
    ledger: Ledger

    def __post_init__(self) -> None:
        threading.Thread.__init__(self)
        self.reply = Reply()
        self.begun = threading.Event()
        self.told_at = 0.0

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        self.client.send(request.Generate(session=self.session, max_tokens=LONG))
        while isinstance(received := self.client.receive(), response.Delta):
            self.ledger.show(self.session, received.event)
            self.reply.deltas.append(received.event)
            if isinstance(received.event.body, event.Generated):
                self.begun.set()
        self.told_at = time.monotonic()
        self.reply.end = received


@pytest.fixture
def daemon(tmp_path, endless_model, make_daemon) -> Daemon:
    return make_daemon(tmp_path, endless_model, context=CONTEXT).start().ready()


def generated(events: list[EventMsg]) -> list[int]:
    """The ids of all replies, in order."""
    return [token for m in events if isinstance(m.body, event.Generated) for token in m.body.span]


def count(events: list[EventMsg], kind: type) -> int:
    return sum(isinstance(m.body, kind) for m in events)


@pytest.mark.timeout(300)
def test_fifty_kills_in_the_middle_of_generations_cost_an_error_and_nothing_else(daemon, endless_model):
    seed = random.getrandbits(32)
    print(f"seed of this campaign: {seed}")
    dice = random.Random(seed)
    ledger = Ledger()
    with daemon.client() as one, daemon.client() as other:
        for _ in range(KILLS // KILLS_A_SESSION):
            pairs = [(one, begin(one, ledger, GREEDY)), (other, begin(other, ledger, SAMPLED))]
            for _ in range(KILLS_A_SESSION):
                kill_under(daemon, ledger, pairs, dice)
            for client, session in pairs:
                check_one_turn(client, session, ledger)
        check_draws(one, endless_model, ledger)


def begin(client: Client, ledger: Ledger, params: GenParams) -> int:
    session = client.create(params)
    ledger.show_session(session)
    ledger.show(session, client.user(session, ledger.new_text(f"message for session {session}")))
    return session


def check_shown(client: Client, session: int, reply: Reply) -> None:
    first = reply.deltas[0].event_id
    assert client.events(session)[first : first + len(reply.deltas)] == reply.deltas


def kill_under(daemon: Daemon, ledger: Ledger, pairs: list[tuple[Client, int]], dice: random.Random) -> None:
    """Stream two replies, kill the worker under them, and see both clients told."""
    streamers = [Streamer(client, session, ledger) for client, session in pairs]
    for streamer in streamers:
        streamer.start()
    for streamer in streamers:
        # One that still waited for a lane would be none the worse for the kill.
        assert streamer.begun.wait(PATIENCE), daemon.errors
    assert ledger.wait_for_count(ledger.count + dice.randint(0, 5), PATIENCE), daemon.errors
    os.kill(daemon.worker(), signal.SIGKILL)
    killed_at = time.monotonic()
    for streamer in streamers:
        streamer.join(PATIENCE)
        assert not streamer.is_alive(), daemon.errors
        assert "was killed by SIGKILL" in streamer.reply.error
        assert streamer.told_at - killed_at < ERROR_SECONDS


def check_one_turn(client: Client, session: int, ledger: Ledger) -> None:
    """Everything shown is in the log, and some kills later it is still the one turn that was begun."""
    events = client.events(session)
    ledger.check_session(session, events)
    assert count(events, event.GenerationPrompt) == 1
    end = client.generate(session, 3)
    assert end.generated.finish == numbers.Finish.MAX_TOKENS
    assert count(client.events(session), event.GenerationPrompt) == 1


def check_draws(client: Client, model_path, ledger: Ledger) -> None:
    """Each token is the choice at its own position of the stream, and the check can tell one position from another."""
    for session in list(ledger.shown)[-2:]:
        inspection = client.call(request.Inspect(session=session))
        assert isinstance(inspection, response.Inspection)
        stream, params = list(inspection.inspection.tokens), inspection.inspection.params
        first = len(stream) - len(generated(client.events(session)))
        wrong, wrong_elsewhere = [], 0
        for position, logits in zip(range(1, len(stream)), rows(model_path, stream), strict=False):
            if position >= first:
                if not consistent(logits, stream[position], params, position):
                    wrong.append(position)
                wrong_elsewhere += not consistent(logits, stream[position], params, position + 1)
        assert wrong == []
        if params.temperature > 0:
            assert wrong_elsewhere > (len(stream) - first) / 3, "the check proves nothing"


@pytest.mark.timeout(60)
def test_a_stopped_worker_is_found_within_two_seconds(daemon):
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        reply = client.first_delta(session, LONG)
        worker = daemon.worker()
        os.kill(worker, signal.SIGSTOP)
        stopped_at = time.monotonic()

        client.finish(reply)

        assert time.monotonic() - stopped_at < ERROR_SECONDS
        assert "is stopped" in reply.error
        wait_gone([worker], 5)
        check_shown(client, session, reply)
        assert client.generate(session, 5).generated.tokens_generated == 5


@pytest.mark.timeout(60)
def test_a_worker_killed_in_a_prefill_costs_an_error_and_no_token(daemon):
    with daemon.client() as client:
        session = client.create()
        prompt = tuple(range(250)) * 30
        client.call(request.Append(session=session, text=None, span=prompt))
        client.send(request.Generate(session=session, max_tokens=5))
        worker = daemon.worker()
        before = cpu_ticks(worker)
        while cpu_ticks(worker) < before + 5:
            pass
        os.kill(worker, signal.SIGKILL)
        killed_at = time.monotonic()

        assert "was killed by SIGKILL" in client.finish(Reply()).error

        assert time.monotonic() - killed_at < ERROR_SECONDS
        assert generated(client.events(session)) == []
        assert client.generate(session, 5).generated.tokens_generated == 5


@pytest.mark.timeout(60)
def test_a_client_that_does_not_read_yet_finds_its_error_when_it_does(daemon):
    with daemon.client() as client, daemon.client() as late:
        session = client.create()
        client.user(session, "hello")
        late.send(request.Generate(session=session, max_tokens=LONG))
        while not generated(client.events(session)):
            pass
        os.kill(daemon.worker(), signal.SIGKILL)
        daemon.wait_for("worker lost")

        reply = late.finish(Reply())

        assert "was killed by SIGKILL" in reply.error
        check_shown(client, session, reply)
        assert client.events(session)[-1].body.finish == numbers.Finish.ERROR


@pytest.mark.timeout(60)
def test_a_worker_that_died_idle_is_replaced_unnoticed(daemon):
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        for _ in range(3):
            assert client.generate(session, 5).generated.tokens_generated == 5
            worker = daemon.worker()
            os.kill(worker, signal.SIGKILL)
            wait_gone([worker], 5)

        assert client.generate(session, 5).generated.tokens_generated == 5
        assert count(client.events(session), event.GenerationPrompt) == 1


@pytest.mark.timeout(60)
def test_a_worker_killed_while_it_loads_leaves_the_waiting_reply_to_the_next_one(daemon):
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        os.kill(daemon.worker(), signal.SIGKILL)
        daemon.wait_for("worker lost")
        client.send(request.Generate(session=session, max_tokens=5))
        os.kill(next(appearing_workers(daemon)), signal.SIGKILL)

        assert client.finish(Reply()).generated.tokens_generated == 5
        daemon.wait_for("worker lost", count=2)


def appearing_workers(daemon: Daemon) -> Iterator[int]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield from workers_of(daemon.pid)


@pytest.mark.timeout(60)
def test_a_model_file_that_vanished_refuses_generations_until_it_is_back(
    tmp_path, endless_model, make_daemon
):
    model = tmp_path / "model.gguf"
    model.write_bytes(endless_model.read_bytes())
    away = tmp_path / "away.gguf"
    daemon = make_daemon(tmp_path, model, context=CONTEXT).start().ready()
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        reply = client.first_delta(session, LONG)
        model.rename(away)
        os.kill(daemon.worker(), signal.SIGKILL)
        assert "was killed by SIGKILL" in client.finish(reply).error

        refusals = [client.generate(session, 5).error for _ in range(3)]

        assert all(str(model) in refusal and "does not exist" in refusal for refusal in refusals)
        daemon.wait_for("no worker can be started")
        assert sum(line["event"] == "worker lost" for line in daemon.lines) == 1
        check_shown(client, session, reply)
        other = client.create()
        client.user(other, "still here")

        away.rename(model)
        daemon.wait_for("a worker could be started again")
        assert client.generate(session, 5).generated.tokens_generated == 5
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    assert daemon.wait_for("log closed")["clean"]


@pytest.mark.timeout(60)
def test_a_worker_that_died_without_a_descriptor_left_is_replaced_once_there_are_some(daemon):
    with daemon.client() as client:
        session = client.create()
        client.user(session, "hello")
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, hard))
        os.kill(daemon.worker(), signal.SIGKILL)
        daemon.wait_for("worker lost", count=3)
        assert (
            "Too many open files"
            in [line for line in daemon.lines if line["event"] == "worker lost"][-1]["reason"]
        )
        client.user(session, "still here")

        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))

        assert client.generate(session, 5).generated.tokens_generated == 5
