"""`apply_command(state, command)`: the one place where the log changes state, live and at recovery.

Its effect depends on the state and the command alone, never on where reading began or on who wrote it, so live state
is what replay gives. A command is checked as a whole before anything is touched; one that does not fit freezes
the sessions it names at what they were, and the others are served.
"""

from collections.abc import Callable
from typing import Any, Final

from superfluid.core import tree
from superfluid.core.record import Command, Record
from superfluid.core.state import Session, State
from superfluid.core.view import message_of
from superfluid_protocol import EventBody, event


def apply_command(state: State, command: Command) -> str | None:
    """Change *state* by one command, or not at all.

    Returns:
        None, or why the command does not fit. Its sessions are then frozen: readable, closed for writes.
    """
    reason = _misfit(state, command.records)
    if reason is None:
        for record in command.records:
            _apply(state, record)
        return None
    for record in command.records:
        state.frozen.setdefault(record.session, reason)
        # An id that was ever used is never given out again, not even if its session could not be read.
        state.next_session = max(state.next_session, record.session + 1)
    return reason


def _misfit(state: State, records: tuple[Record, ...]) -> str | None:
    """Why *records*, one after the other, do not fit; None if they do. Looks only."""
    lengths: dict[int, int] = {}  # what the earlier records of the same command will have made of a session
    for record in records:
        name = record.session
        body = record.body
        if name in state.frozen:
            return state.frozen[name]
        if isinstance(body, _NOT_YET):
            return f"session {name} holds a {type(body).__name__} event, which this version does not know"
        known = lengths[name] if name in lengths else _length(state, name)
        if isinstance(body, event.Created | event.Forked):
            if known is not None:
                return f"session {name} begins twice"
            first = body.fork_at if isinstance(body, event.Forked) else 0
            parent = None if body.parent is None else lengths.get(body.parent, _length(state, body.parent))
            if body.parent is not None and parent is None:
                return f"session {name} has a parent, {body.parent}, that is not there"
            if isinstance(body, event.Forked) and not 0 < first <= (parent or 0):
                return f"session {name} shares {first} events of a parent that has {parent}"
            if record.event_id != first:
                return f"session {name} begins with event {record.event_id} instead of {first}"
            lengths[name] = first + 1
        elif known is None:
            return f"session {name} has event {record.event_id} before its beginning"
        elif record.event_id != known:
            return f"session {name} continues with event {record.event_id} instead of {known}"
        else:
            lengths[name] = known + 1
    return None


def _length(state: State, name: int) -> int | None:
    session = state.sessions.get(name)
    return None if session is None else session.length


def _apply(state: State, record: Record) -> None:
    body = record.body
    if isinstance(body, event.Created | event.Forked):
        session = _begin(state, record.session, body)
    else:
        session = state.sessions[record.session]
        effect = _EFFECTS.get(type(body))
        if effect is not None:
            effect(session, body)
    span = getattr(body, "span", None)
    if span:
        session.own_tokens.extend(span)
    session.own.append(message_of(record))
    session.token_ends.append(len(session.own_tokens))


def _begin(state: State, name: int, body: event.Created | event.Forked) -> Session:
    fork_at = body.fork_at if isinstance(body, event.Forked) else 0
    session = Session(id=name, parent=body.parent, fork_at=fork_at, params=body.params)
    if fork_at:
        assert body.parent is not None
        _inherit(state, session, state.sessions[body.parent])
    state.sessions[name] = session
    state.next_session = max(state.next_session, name + 1)
    return session


def _inherit(state: State, session: Session, parent: Session) -> None:
    """Give a fork what the shared events had set by then: an event means the same in every session that holds it.

    Titles and archive marks are a session's own, and stay behind.
    """
    session.base_tokens = tree.tokens_before(state, parent, session.fork_at)
    if session.fork_at == parent.length:
        session.last_finish = parent.last_finish
        session.qos_class = parent.qos_class
        session.batch_invariant = parent.batch_invariant
        session.fingerprint = parent.fingerprint
        return
    for message in tree.events(state, parent, end=session.fork_at):
        effect = _INHERITED.get(type(message.body))
        if effect is not None:
            effect(session, message.body)


def _generated(session: Session, body: Any) -> None:  # noqa: ANN401 - the table's key is its type
    session.last_finish = body.finish


def _prompted(session: Session, _body: Any) -> None:  # noqa: ANN401
    session.last_finish = 0


def _meta(session: Session, body: Any) -> None:  # noqa: ANN401
    session.meta_version = body.version
    if body.title is not None:
        session.title = body.title
    if body.archived is not None:
        session.archived = body.archived


def _qos(session: Session, body: Any) -> None:  # noqa: ANN401
    session.qos_class = body.class_
    session.batch_invariant = body.batch_invariant


def _pinned(session: Session, body: Any) -> None:  # noqa: ANN401
    session.pin_deadline_unix_ms = body.deadline_unix_ms


def _fingerprint(session: Session, body: Any) -> None:  # noqa: ANN401
    session.fingerprint = body.digest


_INHERITED: Final[dict[type[EventBody], Callable[[Session, Any], None]]] = {
    event.Generated: _generated,
    event.GenerationPrompt: _prompted,
    event.QosSet: _qos,
    event.GenerationFingerprint: _fingerprint,
}

_EFFECTS: Final = _INHERITED | {event.MetaUpdated: _meta, event.Pinned: _pinned}

_NOT_YET: Final = (event.Rebased, event.Purged, event.Rerooted)
"""Records that rewrite the tree; a log that holds them was written by a newer version."""
