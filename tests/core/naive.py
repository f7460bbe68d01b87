"""Sessions as a reader of the specification would first write them: every session is a plain list of all its events,
a fork is a copy, and everything else is found by reading the list from its start."""

from dataclasses import dataclass, field

from superfluid.core.record import Record
from superfluid_protocol import EventMsg, GenParams, event
from superfluid_protocol.types import SessionSummary


@dataclass
class NaiveSession:
    id: int
    parent: int | None
    fork_at: int
    params: GenParams
    events: list[EventMsg] = field(default_factory=list)

    def spans(self, end: int | None = None) -> list[int]:
        """The token ids of the events before *end*, end to end."""
        return [token for message in self.events[:end] for token in getattr(message.body, "span", ())]

    def latest(self, *types: type) -> object:
        """The latest body of one of these types, or None."""
        return next((m.body for m in reversed(self.events) if isinstance(m.body, types)), None)

    def latest_own(self, *types: type) -> object:
        own = NaiveSession(self.id, None, 0, self.params, self.events[self.fork_at :])
        return own.latest(*types)

    @property
    def last_finish(self) -> int:
        return getattr(self.latest(event.Generated, event.GenerationPrompt), "finish", 0)

    @property
    def fingerprint(self) -> int | None:
        return getattr(self.latest(event.GenerationFingerprint), "digest", None)

    @property
    def qos(self) -> tuple[int, bool]:
        body = self.latest(event.QosSet)
        return (2, False) if body is None else (body.class_, body.batch_invariant)

    @property
    def pinned_until(self) -> int:
        return getattr(self.latest_own(event.Pinned), "deadline_unix_ms", 0)

    @property
    def title(self) -> str | None:
        titles = [m.body.title for m in self.events[self.fork_at :] if isinstance(m.body, event.MetaUpdated)]
        return next((title for title in reversed(titles) if title is not None), None)

    @property
    def archived(self) -> bool:
        marks = [
            m.body.archived for m in self.events[self.fork_at :] if isinstance(m.body, event.MetaUpdated)
        ]
        return next((mark for mark in reversed(marks) if mark is not None), False)

    @property
    def meta_version(self) -> int:
        return getattr(self.latest_own(event.MetaUpdated), "version", 0)

    def summary(self) -> SessionSummary:
        return SessionSummary(
            id=self.id,
            parent=self.parent,
            fork_at=self.fork_at,
            title=self.title,
            archived=self.archived,
            meta_version=self.meta_version,
            generation=0,
            events=len(self.events),
            tokens=len(self.spans()),
            open_tool_calls=0,
        )


class NaiveStore:
    """The sessions by id."""

    def __init__(self) -> None:
        self.sessions: dict[int, NaiveSession] = {}

    def apply(self, records: tuple[Record, ...]) -> None:
        for item in records:
            body = item.body
            if isinstance(body, event.Created):
                made = NaiveSession(item.session, body.parent, 0, body.params)
                self.sessions[item.session] = made
            elif isinstance(body, event.Forked):
                shared = list(self.sessions[body.parent].events[: body.fork_at])
                made = NaiveSession(item.session, body.parent, body.fork_at, body.params, shared)
                self.sessions[item.session] = made
            self.sessions[item.session].events.append(
                EventMsg(event_id=item.event_id, epoch=item.epoch, ts_unix_ms=item.ts_unix_ms, body=body)
            )
