"""kill -9 of the daemon at random moments under load: what a client was shown is there afterwards, once."""

import random
import threading

import pytest

from superfluid_protocol import request, response
from tests.crash.ledger import Ledger, in_open_turn
from tests.daemon import GREEDY, Client, Daemon, HungUp, wait_gone

KILLS = 200
CLIENTS = 4

EARLY_KILLS = 0.1
"""Share of kills that come at any moment after the start; the others wait until clients are shown something."""

START_SECONDS = 0.6
"""About what a start takes: an early kill comes within it."""


class Chatter(threading.Thread):
    """One client: it talks in sessions of its own, and forks them, until the connection breaks."""

    def __init__(self, name: str, daemon: Daemon, ledger: Ledger, sessions: list[int], seed: int) -> None:
        super().__init__(name=name)
        self.fault: BaseException | None = None
        self.generating = False
        self._daemon = daemon
        self._ledger = ledger
        self._sessions = sessions
        self._random = random.Random(seed)
        self._seed = seed

    def run(self) -> None:
        try:
            with self._daemon.client() as client:
                for number in range(10_000):
                    self._turn(client, f"{self.name}-{self._seed}-{number}")
        except (HungUp, ConnectionRefusedError):
            pass  # the kill
        except BaseException as fault:
            self.fault = fault

    def _turn(self, client: Client, text: str) -> None:
        session = self._session(client)
        if self._random.random() < 0.8:
            self._append(client, session, text)
        self._generate(client, session)

    def _session(self, client: Client) -> int:
        """The latest session, or a new one: made, or forked off an old one."""
        choice = self._random.random()
        if self._sessions and choice < 0.75:
            return self._sessions[-1]
        self._ledger.ask_session()
        if self._sessions and choice < 0.85:
            parent = self._random.choice(self._sessions)
            at = self._random.randint(1, len(self._ledger.shown[parent]) or 1)
            reply = client.call(request.Fork(session=parent, at_event=at, params=None))
        else:
            reply = client.call(request.Create(parent=None, params=GREEDY))
        assert isinstance(reply, response.Created), reply
        self._ledger.show_session(reply.session)
        self._sessions.append(reply.session)
        return reply.session

    def _append(self, client: Client, session: int, text: str) -> None:
        reply = client.call(request.AppendMessage(session=session, role=1, text=self._ledger.new_text(text)))
        if isinstance(reply, response.Committed):
            self._ledger.show(session, reply.event)

    def _generate(self, client: Client, session: int) -> None:
        client.send(request.Generate(session=session, max_tokens=self._random.randint(20, 120)))
        while isinstance(reply := client.receive(), response.Delta):
            self.generating = True
            self._ledger.show(session, reply.event)
        self.generating = False
        if isinstance(reply, response.Generated):
            for message in reply.events:
                self._ledger.show(session, message)
        else:
            # A turn that is over, or a session that is full: the next one is a new session.
            assert isinstance(reply, response.Err), reply
            self._sessions.clear()


class Campaign:
    """The kills, and the books of what was shown before them."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.ledger = Ledger()
        self.in_turn = 0
        self._random = random.Random(seed)
        self._sessions: list[list[int]] = [[] for _ in range(CLIENTS)]
        self._told: set[int] = set()

    def round(self) -> None:
        """Start, look at what the last kill left, make traffic, kill."""
        self.daemon.start()
        if self._random.random() < EARLY_KILLS:
            threading.Event().wait(self._random.uniform(0, START_SECONDS))
            self._kill([])
            return
        self.daemon.serving()
        touched = set(self.ledger.shown) - self._told
        touched |= {sessions[-1] for sessions in self._sessions if sessions}
        self.check(touched)
        self._told = set(self.ledger.shown) - touched
        clients = [
            Chatter(
                f"client {index}",
                self.daemon,
                self.ledger,
                self._sessions[index],
                self._random.getrandbits(32),
            )
            for index in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        enough = self.ledger.count + self._random.randint(1, 40)
        assert self.ledger.wait_for_count(enough, timeout=15), self.daemon.errors
        # The moment of the kill is to be any moment, not only the one after an event.
        threading.Event().wait(self._random.uniform(0, 0.05))
        self._kill(clients)

    def check(self, sessions: set[int]) -> None:
        """Compare sessions with what was shown of them."""
        with self.daemon.client() as client:
            known = client.call(request.List())
            assert isinstance(known, response.Sessions)
            assert set(self.ledger.shown) <= set(known.ids), "a session that was shown is gone"
            assert len(known.ids) <= self.ledger.asked, "there are sessions that nobody asked for"
            for session in sorted(sessions):
                self.ledger.check_session(session, client.events(session))

    def _kill(self, clients: list[Chatter]) -> None:
        generating = any(client.generating for client in clients)
        workers = self.daemon.kill()
        for client in clients:
            client.join(timeout=15)
            assert not client.is_alive(), "a client does not notice that the daemon is gone"
            if client.fault is not None:
                raise client.fault
        self.in_turn += generating and any(client.generating for client in clients)
        wait_gone(workers, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_shown_is_lost_or_doubled_by_random_kills(tmp_path, endless_model, make_daemon):
    seed = random.getrandbits(32)
    print(f"seed of this campaign: {seed}")
    campaign = Campaign(make_daemon(tmp_path, endless_model), seed)

    for _ in range(KILLS):
        campaign.round()

    campaign.daemon.start().serving()
    campaign.check(set(campaign.ledger.shown))
    print(f"{campaign.in_turn} of {KILLS} kills landed while a client was being shown a reply")
    assert campaign.in_turn > KILLS / 2, "most kills are to land in the middle of a turn"
    with campaign.daemon.client() as client:
        cut = [s for s in campaign.ledger.shown if in_open_turn(client.events(s))]
    assert len(cut) > KILLS / 10, "and to leave turns that are cut in the log"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.sock", "s.sock.lock", "sessions"]
    left = {p.name.partition(".torn-")[0] for p in campaign.daemon.sessions.iterdir()}
    assert left <= {"lock", "model.json", "wal.log", "wal.mark"}, "kills leave no rubbish"
