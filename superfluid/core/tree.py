"""Reading a session through the chain of its parents.

All functions are queries over `core.state`; none changes it. Event ids within one session are consecutive, whoever
committed them, so a position is an index.
"""

from array import array
from collections.abc import Iterator
from itertools import islice

from superfluid.core.errors import NoSuchSession
from superfluid.core.ids import TokenIds
from superfluid.core.state import Session, State
from superfluid_protocol import EventMsg


def get(state: State, session_id: int) -> Session:
    """Return the session, or raise `NoSuchSession`."""
    session = state.sessions.get(session_id)
    if session is None:
        raise NoSuchSession(session_id)
    return session


def segments(state: State, session: Session, end: int | None = None) -> list[tuple[Session, int, int]]:
    """The chain from the root down to *session*: (owner, first own index, last own index + 1) of each part.

    Args:
        end: Cut the session at this many events; None is all of them.
    """
    parts: list[tuple[Session, int, int]] = []
    limit = session.length if end is None else min(end, session.length)
    owner = session
    while True:
        if limit > owner.fork_at:
            parts.append((owner, 0, limit - owner.fork_at))
        limit = min(limit, owner.fork_at)
        if limit == 0 or owner.parent is None:
            break
        owner = state.sessions[owner.parent]
    parts.reverse()
    return parts


def events(state: State, session: Session, start: int = 0, end: int | None = None) -> Iterator[EventMsg]:
    """Events with ids ``start .. end - 1`` in order, those shared with parents included."""
    for owner, low, high in segments(state, session, end):
        first = max(low, start - owner.fork_at)
        if first < high:
            yield from islice(owner.own, first, high)


def events_backwards(state: State, session: Session) -> Iterator[EventMsg]:
    """All events, the latest first. Lazy: the caller usually stops after a few."""
    for owner, low, high in reversed(segments(state, session)):
        for index in range(high - 1, low - 1, -1):
            yield owner.own[index]


def tokens_before(state: State, session: Session, end: int) -> int:
    """Number of token ids that the events ``0 .. end - 1`` put on the model's input."""
    total = 0
    for owner, _low, high in segments(state, session, end):
        total += owner.token_ends[high - 1]
    return total


def tokens(state: State, session: Session) -> TokenIds:
    """The session's whole token stream, as unsigned 32-bit ids."""
    stream = array("I")
    for owner, _low, high in segments(state, session):
        stop = owner.token_ends[high - 1]
        stream.extend(owner.own_tokens if stop == len(owner.own_tokens) else owner.own_tokens[:stop])
    return stream


def event_ends(state: State, session: Session) -> Iterator[int]:
    """Ascending token positions at which the session's events end, each once; the last one is the stream's length.

    Lazy: one step an event, and no copy.
    """
    base = last = 0
    for owner, _low, high in segments(state, session):
        for end in islice(owner.token_ends, high):
            if base + end > last:
                last = base + end
                yield last
        base = last
