"""What the reading requests answer, built from the state. Nothing here changes it."""

from collections.abc import Iterable, Iterator
from typing import Final

from superfluid.core import tree
from superfluid.core.record import Record
from superfluid.core.state import Session, State
from superfluid_protocol import EventMsg, Inspection, SessionSummary, Tier, encode
from superfluid_protocol.framing import MAX_FRAME

REPLY_BYTES: Final = MAX_FRAME - 4096
"""Encoded events of one reply together; the rest of the frame is for the reply's other fields."""


def message_of(record: Record) -> EventMsg:
    """The record as clients see it."""
    return EventMsg(
        event_id=record.event_id, epoch=record.epoch, ts_unix_ms=record.ts_unix_ms, body=record.body
    )


def summary(state: State, session: Session) -> SessionSummary:
    """The line a session has in a list."""
    return SessionSummary(
        id=session.id,
        parent=session.parent,
        fork_at=session.fork_at,
        title=session.title,
        archived=session.archived,
        meta_version=session.meta_version,
        generation=session.generation,
        events=session.length,
        tokens=session.tokens,
        open_tool_calls=0,
    )


def summaries(state: State, *, include_archived: bool) -> tuple[SessionSummary, ...]:
    """All sessions by id."""
    return tuple(
        summary(state, session)
        for _id, session in sorted(state.sessions.items())
        if include_archived or not session.archived
    )


def nodes(state: State) -> tuple[tuple[int, int | None, int], ...]:
    """(id, parent, fork_at) of every session, archived ones included: a tree with holes would mislead."""
    return tuple((s.id, s.parent, s.fork_at) for _id, s in sorted(state.sessions.items()))


def read(state: State, session_id: int, cursor: int) -> tuple[EventMsg, ...]:
    """Events from *cursor* on, cut at an event boundary where the reply's frame is full; the client asks on from the
    next id. A cursor at or beyond the end reads nothing."""
    session = tree.get(state, session_id)
    return tuple(_within(tree.events(state, session, start=cursor), REPLY_BYTES))


def inspection(state: State, session_id: int, *, wal_version: int, store_id: bytes, tier: Tier) -> Inspection:
    """Everything about one session. Where it does not fit one frame its last events are left out; `Read` has them."""
    session = tree.get(state, session_id)
    stream = tree.tokens(state, session)
    room = REPLY_BYTES - 5 * len(stream)
    return Inspection(
        summary=summary(state, session),
        params=session.params,
        epoch=session.epoch,
        last_finish=session.last_finish,
        qos_class=session.qos_class,
        batch_invariant=session.batch_invariant,
        pin_deadline_unix_ms=session.pin_deadline_unix_ms,
        behavior_fingerprint=session.fingerprint,
        open_tool_calls=(),
        tier=tier,
        tokens=tuple(stream),
        events=tuple(_within(tree.events(state, session), room)),
        wal_version=wal_version,
        store_id=store_id,
    )


def _within(events: Iterable[EventMsg], room: int) -> Iterator[EventMsg]:
    """As many events as fit *room* bytes of their wire form; one at least, since every event fits a frame alone."""
    used = 0
    for index, message in enumerate(events):
        used += _size_bound(message)
        if index and used > room:
            return
        yield message


def _size_bound(message: EventMsg) -> int:
    """Upper bound of an event's wire size, exact only where the cheap bound is large.

    Most events are small, and encoding each one twice would double the cost of a read.
    """
    body = message.body
    text = getattr(body, "text", None)
    span = getattr(body, "span", ())
    if isinstance(text, str) or span:
        return 128 + 4 * len(text or "") + 5 * len(span) + 4 * len(getattr(body, "content", ""))
    return len(encode(message))
