"""What clients were shown, and what the log must therefore hold."""

import threading
from dataclasses import dataclass, field

from superfluid_protocol import EventMsg, event


@dataclass(slots=True)
class Ledger:
    """Everything any client was shown, shared by the threads of all clients.

    Attributes:
        shown: Per session, the events by id.
        sent: Texts of messages that were sent, each used once.
        asked: How many sessions were asked for.
        count: Events shown so far.
    """

    shown: dict[int, dict[int, EventMsg]] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    asked: int = 0
    count: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def ask_session(self) -> None:
        with self.changed:
            self.asked += 1

    def show_session(self, session: int) -> None:
        with self.changed:
            assert session not in self.shown, f"session {session} was given out twice"
            self.shown[session] = {}

    def show(self, session: int, message: EventMsg) -> None:
        with self.changed:
            known = self.shown[session].setdefault(message.event_id, message)
            assert known == message, f"event {message.event_id} of session {session} was shown in two forms"
            self.count += 1
            self.changed.notify_all()

    def new_text(self, text: str) -> str:
        with self.changed:
            assert text not in self.sent
            self.sent.add(text)
        return text

    def wait_for_count(self, count: int, timeout: float) -> bool:
        """Wait until that many events were shown; False when they did not come in time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.count >= count, timeout)

    def check_session(self, session: int, events: list[EventMsg]) -> None:
        """Hold what the log has of a session against what was shown and sent."""
        ids = [message.event_id for message in events]
        assert ids == list(range(len(ids))), f"session {session} has the event ids {ids}"
        for number, message in self.shown.get(session, {}).items():
            assert number < len(events), f"event {number} of session {session} was shown and is gone"
            assert events[number] == message, f"event {number} of session {session} has changed"
        own = events[_first_own(events) :]
        texts = [message.body.text for message in own if isinstance(message.body, event.Message)]
        assert len(texts) == len(set(texts)), f"session {session} holds a message twice"
        assert set(texts) <= self.sent, f"session {session} holds a message that nobody sent"


def _first_own(events: list[EventMsg]) -> int:
    """Where a fork's own events begin."""
    forks = [message.event_id for message in events if isinstance(message.body, event.Forked)]
    return forks[-1] if forks else 0


def in_open_turn(events: list[EventMsg]) -> bool:
    """Whether the session stands in the middle of a reply that nothing ended."""
    for message in reversed(events):
        match message.body:
            case event.Generated(finish=finish):
                return finish == 0
            case event.GenerationPrompt():
                return True
            case event.Message() | event.Created() | event.Forked():
                return False
            case _:
                pass
    return False
