"""What the reading requests answer, built from the state. Nothing here changes it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from superfluid.core import tree
from superfluid.core.errors import NotSupported
from superfluid.core.limits import KIB, MAX_PAGE_EVENTS, MAX_TITLE_BYTES
from superfluid.core.record import Record
from superfluid.core.state import Session, State
from superfluid_protocol import EventMsg, Inspection, SessionSummary, Tier, encode, event
from superfluid_protocol.framing import MAX_FRAME

REPLY_BYTES: Final = MAX_FRAME - MAX_TITLE_BYTES - 4 * KIB
"""Encoded events of one reply together; the rest of the frame is for the reply's other fields, a title among them."""

_CHEAP: Final = 1024
"""Texts beyond ASCII of up to so many characters are taken at four bytes each instead of being measured."""


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


def read(state: State, session_id: int, cursor: int, *, room: int = REPLY_BYTES) -> tuple[EventMsg, ...]:
    """Events from *cursor* on, cut at an event boundary where the room or `MAX_PAGE_EVENTS` is reached; the client asks
    on from the next id. A cursor at or beyond the end reads nothing.

    Args:
        room: Bytes for the events. One event at least is read, since every event fits a frame alone.
    """
    session = tree.get(state, session_id)
    return tuple(_within(tree.events(state, session, start=cursor), room, least=1))


def inspection(
    state: State,
    session_id: int,
    *,
    wal_version: int,
    store_id: bytes | None,
    tier: Tier,
    room: int = REPLY_BYTES,
) -> Inspection:
    """Everything about one session. Where it does not fit one frame its last events are left out; `read` has them.

    Args:
        room: Bytes for the token stream and the events.

    Raises:
        NotSupported: The token stream alone does not fit.
    """
    session = tree.get(state, session_id)
    left = room - 5 * session.tokens
    if left < 0:
        raise NotSupported(
            f"inspecting session {session_id} is not supported: its {session.tokens} token ids do not fit one reply;"
            " read its events"
        )
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
        tokens=tuple(tree.tokens(state, session)),
        events=tuple(_within(tree.events(state, session), left, least=0)),
        wal_version=wal_version,
        store_id=store_id,
    )


def _within(events: Iterable[EventMsg], room: int, *, least: int) -> Iterator[EventMsg]:
    """As many events as fit *room* bytes of their wire form, but *least* at least and `MAX_PAGE_EVENTS` at most."""
    used = 0
    for index, message in enumerate(islice(events, MAX_PAGE_EVENTS)):
        used += size_bound(message)
        if index >= least and used > room:
            return
        yield message


def size_bound(message: EventMsg) -> int:
    """Upper bound of an event's wire size.

    A session is mostly made of these three, and encoding each one twice would double the cost of a read.
    """
    match message.body:
        case event.Generated(text=text, span=span) | event.Message(text=text, span=span):
            return 128 + text_bound(text) + 5 * len(span)
        case event.Appended(text=maybe, span=span):
            return 128 + text_bound(maybe or "") + 5 * len(span)
        case _:
            return len(encode(message))


def text_bound(text: str) -> int:
    """Upper bound of a text's bytes in UTF-8, exact where it is long."""
    if text.isascii():  # a flag of the object
        return len(text)
    return len(text.encode()) if len(text) > _CHEAP else 4 * len(text)
