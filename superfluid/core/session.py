"""What each request does to the log: decisions, as plain functions over plain data.

Every function looks at the state, refuses with a `ClientError` or returns a `Decision`: the bodies to append to one
session, in order. It changes nothing; `stamp` turns a decision into the records to write, and `core.replay` applies
them once they are durable. `now`, ids and epochs are arguments.

Which request is legal when a generation is in flight: those that only read, forks of what is committed, and titles,
archive marks, scheduling classes and pins, which put nothing on the model's input.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from superfluid.core import tree
from superfluid.core.errors import (
    BadRequest,
    Conflict,
    LogReadOnly,
    NothingToCancel,
    SessionBusy,
)
from superfluid.core.limits import MAX_PIN_MS, MAX_TITLE_BYTES
from superfluid.core.record import Record
from superfluid.core.state import Session, State
from superfluid.core.turn import Phase, Position
from superfluid_protocol import EventBody, GenParams, event
from superfluid_protocol.numbers import Qos, Role

_Number = TypeVar("_Number", bound=IntEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to append, and to which session.

    Attributes:
        session: The session that grows; for a new one, the id it takes.
        bodies: In order; empty when the request changes nothing (a turn that goes on).
        first_event: For a new session, the id of its first own event; None for an existing one.
    """

    session: int
    bodies: tuple[EventBody, ...]
    first_event: int | None = None


def stamp(state: State, decision: Decision, *, epoch: int, now_ms: int) -> tuple[Record, ...]:
    """Number and date the decision's bodies.

    The first command that an older session gets in this run of the daemon carries its `EpochBump`, so that a start
    costs one frame of the log and not one record a session.
    """
    bodies = decision.bodies
    if decision.first_event is not None:
        first = decision.first_event
    else:
        session = tree.get(state, decision.session)
        first = session.length
        if bodies and session.epoch < epoch:
            bodies = (event.EpochBump(), *bodies)
    return tuple(
        Record(session=decision.session, event_id=first + offset, epoch=epoch, ts_unix_ms=now_ms, body=body)
        for offset, body in enumerate(bodies)
    )


def create(state: State, new_id: int, parent: int | None, params: GenParams) -> Decision:
    """A new session. A parent is recorded as its origin; nothing of it is shared (that is `fork`)."""
    if parent is not None:
        tree.get(state, parent)
    check_params(params)
    return Decision(session=new_id, bodies=(event.Created(parent=parent, params=params),), first_event=0)


def append(
    state: State,
    busy: Collection[int],
    session_id: int,
    text: str | None,
    span: tuple[int, ...],
    *,
    n_vocab: int,
) -> Decision:
    """Token ids as they are, with the text they stand for.

    Args:
        n_vocab: Size of the model's vocabulary. An id outside it would abort the engine, so it is refused here.
    """
    writable(state, busy, session_id)
    if span and max(span) >= n_vocab:
        raise BadRequest(f"token id {max(span)} is outside the model's vocabulary of {n_vocab} tokens")
    if not span and not text:
        raise BadRequest("an append needs token ids, text, or both")
    return Decision(session=session_id, bodies=(event.Appended(text=text, span=span),))


def message(
    state: State, busy: Collection[int], session_id: int, role: int, text: str, span: tuple[int, ...]
) -> Decision:
    """A chat message, with the ids that the template made of it."""
    writable(state, busy, session_id)
    return Decision(session=session_id, bodies=(event.Message(role=role, text=text, span=span),))


def check_role(number: int) -> Role:
    """The role with this number.

    Raises:
        BadRequest: The protocol knows none.
    """
    return _member(Role, number, "role", "roles")


def open_turn(
    state: State,
    busy: Collection[int],
    session_id: int,
    position: Position,
    prompt_span: tuple[int, ...],
    fingerprint: int,
) -> Decision:
    """Begin an assistant turn, or go on with the one that was cut.

    Args:
        prompt_span: The ids that open the turn; ignored where none is opened.
        fingerprint: Digest of model and template. Recorded whenever it differs from what the session last saw, so
            that a reader of the log can tell which replies came from the same model.
    """
    session = writable(state, busy, session_id)
    if position.phase is Phase.EMPTY:
        raise BadRequest(f"session {session_id} has no input yet; append a message first")
    if position.phase is Phase.ENDED:
        raise BadRequest(f"session {session_id} ended its reply; append a message first")
    bodies: list[EventBody] = []
    if session.fingerprint != fingerprint:
        bodies.append(event.GenerationFingerprint(digest=fingerprint))
    if position.phase is Phase.MESSAGE:
        bodies.append(event.GenerationPrompt(span=prompt_span))
    return Decision(session=session_id, bodies=tuple(bodies))


def generated(session_id: int, span: tuple[int, ...], text: str, channel: int, finish: int) -> Decision:
    """What one tick added to a reply. The session is the generation's own, so nothing else can have changed it."""
    body = event.Generated(span=span, text=text, channel=channel, finish=finish)
    return Decision(session=session_id, bodies=(body,))


def fork(state: State, new_id: int, session_id: int, at_event: int, params: GenParams | None) -> Decision:
    """A new session that shares the events before *at_event*. The parent may be generating: only what is committed
    is shared."""
    parent = tree.get(state, session_id)
    if not 0 < at_event <= parent.length:
        raise BadRequest(f"session {session_id} can be cut at events 1 to {parent.length}, not at {at_event}")
    if params is not None:
        check_params(params)
    body = event.Forked(parent=session_id, fork_at=at_event, params=params or parent.params)
    return Decision(session=new_id, bodies=(body,), first_event=at_event)


def set_meta(
    state: State, session_id: int, expected_version: int, title: str | None, archived: bool | None
) -> Decision:
    """Title and archive mark, guarded by the version the client saw."""
    session = tree.get(state, session_id)
    _check_frozen(state, session_id)
    if session.meta_version != expected_version:
        raise Conflict(
            f"session {session_id} has metadata version {session.meta_version}, not {expected_version}; read it again"
        )
    if title is None and archived is None:
        raise BadRequest("SetMeta needs a title, an archived mark, or both")
    if title is not None and len(title.encode()) > MAX_TITLE_BYTES:
        raise BadRequest(f"the title is longer than {MAX_TITLE_BYTES} bytes")
    version = expected_version + 1
    return Decision(
        session=session_id, bodies=(event.MetaUpdated(version=version, title=title, archived=archived),)
    )


def set_qos(state: State, session_id: int, class_: int, *, batch_invariant: bool) -> Decision:
    """The scheduling class, and whether replies have to be exact; legal while the session generates.

    Whether the model can be exact at all is for the caller to know.
    """
    tree.get(state, session_id)
    _check_frozen(state, session_id)
    body = event.QosSet(class_=check_class(class_).value, batch_invariant=batch_invariant)
    return Decision(session=session_id, bodies=(body,))


def check_class(number: int) -> Qos:
    """The scheduling class with this number.

    Raises:
        BadRequest: The protocol knows none.
    """
    return _member(Qos, number, "scheduling class", "classes")


def _member(kind: type[_Number], number: int, one: str, all_of_them: str) -> _Number:
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{member.value} {member.name.lower()}" for member in kind)
        raise BadRequest(f"{one} {number} is unknown; the {all_of_them} are {known}") from None


def pin(state: State, session_id: int, ttl_ms: int, *, now_ms: int) -> Decision:
    """Keep the session's KV until *ttl_ms* from now; 0 lets it go. Legal while the session generates.

    The deadline in the event is in Unix milliseconds, 0 for none.
    """
    tree.get(state, session_id)
    _check_frozen(state, session_id)
    if ttl_ms > MAX_PIN_MS:
        raise BadRequest(
            f"a pin of {ttl_ms} ms is too long; at most {MAX_PIN_MS} ms are taken: renew it in time"
        )
    deadline = now_ms + ttl_ms if ttl_ms else 0
    return Decision(session=session_id, bodies=(event.Pinned(deadline_unix_ms=deadline),))


def check_cancel(state: State, busy: Collection[int], session_id: int) -> None:
    """Refuse a cancel where nothing is in flight."""
    tree.get(state, session_id)
    if session_id not in busy:
        raise NothingToCancel(session_id)


def check_params(params: GenParams) -> None:
    """Refuse sampling parameters that no sampler could follow. The codec lets NaN pass, as the reference does."""
    for name in ("temperature", "top_p", "min_p"):
        value: float = getattr(params, name)
        if not math.isfinite(value) or value < 0:
            raise BadRequest(f"{name} must be a finite number of 0 or more")
    for name in ("top_p", "min_p"):
        if getattr(params, name) > 1:
            raise BadRequest(f"{name} must be at most 1")


def writable(state: State, busy: Collection[int], session_id: int) -> Session:
    """The session, if its log may grow now; raises otherwise."""
    session = tree.get(state, session_id)
    _check_frozen(state, session_id)
    if session_id in busy:
        raise SessionBusy(session_id)
    return session


def _check_frozen(state: State, session_id: int) -> None:
    reason = state.frozen.get(session_id)
    if reason is not None:
        raise LogReadOnly(f"session {session_id} is frozen: {reason}; fork it at an earlier event to go on")
