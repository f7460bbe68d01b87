"""What the clients can do, each written once, as a generator of steps.

An operation yields a ``Request`` and is sent its ``Response``, refusals included, or yields a ``Pause`` and is sent None;
what it returns is the result. The synchronous and the trio client differ in who carries out the steps.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

from superfluid_client.errors import NoSuchSession, NotSupported, SessionBusy, refusal
from superfluid_client.exchange import R, expect
from superfluid_protocol import (
    EventMsg,
    GenParams,
    Inspection,
    ModelInfo,
    Request,
    Response,
    SessionSummary,
    request,
    response,
)

SETTLE_SECONDS: Final = 5.0
"""How long a session may stay busy after this client left a stream of it early: the daemon notices the hang-up at once,
and ends the reply at the engine's next step."""

SETTLE_STEP_SECONDS: Final = 0.02
SETTLE_TRIES: Final = round(SETTLE_SECONDS / SETTLE_STEP_SECONDS)


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for this many seconds."""

    seconds: float


T = TypeVar("T")
Operation: TypeAlias = Generator[Request | Pause, Response | None, T]


class Node(NamedTuple):
    """A session's place in the tree: it shares its parent's events 0 .. ``fork_at`` - 1."""

    id: int
    parent: int | None
    fork_at: int


@dataclass(slots=True)
class Handle:
    """What a client remembers of a session.

    Attributes:
        seen: Events 0 .. ``seen`` - 1 are known to be committed. Events never go away, so this is where to read on.
        left_stream: A stream of it was left early, so it may look busy for a moment.
    """

    id: int
    seen: int = 0
    left_stream: bool = False

    def note(self, event_id: int) -> None:
        """An event was committed."""
        self.seen = max(self.seen, event_id + 1)

    def retry(self, reply: Response, tries: int) -> bool:
        """Whether *reply* only says that the stream this client left has not ended yet."""
        busy = isinstance(reply, response.Err) and isinstance(refusal(reply.message), SessionBusy)
        if self.left_stream and busy and tries < SETTLE_TRIES:
            return True
        self.left_stream = False
        return False


# -- the daemon ---------------------------------------------------------------------------------------


def create(parent: int | None, params: GenParams) -> Operation[int]:
    """A new session's id."""
    return (yield from _ask(response.Created, request.Create(parent=parent, params=params))).session


def sessions(include_archived: bool) -> Operation[tuple[SessionSummary, ...]]:
    """Summaries of the sessions."""
    return (
        yield from _ask(response.SessionList, request.Sessions(include_archived=include_archived))
    ).sessions


def tree() -> Operation[tuple[Node, ...]]:
    """Every session's place."""
    return tuple(Node(*node) for node in (yield from _ask(response.Tree, request.Tree())).nodes)


def metrics() -> Operation[str]:
    """Prometheus text."""
    return (yield from _ask(response.Text, request.Metrics())).text


def models() -> Operation[tuple[ModelInfo, ...]]:
    """What is served."""
    return (yield from _ask(response.ModelList, request.Models())).models


def set_background_rate(divisor: int) -> Operation[None]:
    """How often background sessions run beside others."""
    yield from _ask(response.Ack, request.SetBackgroundRate(divisor=divisor))


def inspect(session: int) -> Operation[Inspection]:
    """Everything about a session, with all of its events, also where they do not fit one reply."""
    found = (yield from _ask(response.Inspection, request.Inspect(session=session))).inspection
    if len(found.events) < found.summary.events:
        cursor = found.events[-1].event_id + 1 if found.events else 0
        rest = yield from events(Handle(session), cursor)
        found = replace(found, events=(*found.events, *rest))
    return found


# -- one session --------------------------------------------------------------------------------------


def message(handle: Handle, role: int, text: str) -> Operation[EventMsg]:
    """Append a chat message; its event."""
    return (yield from _append(handle, request.AppendMessage(session=handle.id, role=role, text=text)))


def append(handle: Handle, text: str | None, span: tuple[int, ...]) -> Operation[EventMsg]:
    """Append raw input; its event."""
    return (yield from _append(handle, request.Append(session=handle.id, text=text, span=span)))


def events(handle: Handle, cursor: int) -> Operation[list[EventMsg]]:
    """Events from the id *cursor* to the end, however many replies that takes."""
    found: list[EventMsg] = []
    while True:
        page = (yield from _ask(response.Events, request.Read(session=handle.id, cursor=cursor))).events
        if not page:
            return found
        found.extend(page)
        cursor = page[-1].event_id + 1
        handle.note(page[-1].event_id)


def fork(handle: Handle, at_event: int | None, params: GenParams | None) -> Operation[int]:
    """A session that shares the events before *at_event*, or all there are; its id."""
    if at_event is None:
        at_event = yield from _length(handle)
    asked = request.Fork(session=handle.id, at_event=at_event, params=params)
    return (yield from _ask(response.Created, asked)).session


def trim(handle: Handle, to_event: int) -> Operation[int]:
    """A session that keeps the events before *to_event*; its id."""
    return (yield from _ask(response.Created, request.Trim(session=handle.id, to_event=to_event))).session


def cancel(handle: Handle) -> Operation[None]:
    """End the generation in flight."""
    yield from _ask(response.Cancelling, request.Cancel(session=handle.id))


def set_meta(
    handle: Handle, title: str | None, archived: bool | None, expected_version: int | None
) -> Operation[int]:
    """Set title, archive mark or both; the new version."""
    if expected_version is None:
        expected_version = (yield from _summary(handle.id)).meta_version
    asked = request.SetMeta(
        session=handle.id, expected_version=expected_version, title=title, archived=archived
    )
    return (yield from _ask(response.Meta, asked)).version


def set_qos(handle: Handle, qos: int, batch_invariant: bool) -> Operation[EventMsg]:
    """Set the scheduling class and the exactness; the event."""
    asked = request.SetQos(session=handle.id, class_=qos, batch_invariant=batch_invariant)
    message = (yield from _ask(response.Committed, asked)).event
    handle.note(message.event_id)
    return message


def pin(handle: Handle, ttl_ms: int) -> Operation[int]:
    """Keep the KV for a time; until when."""
    asked = request.Pin(session=handle.id, ttl_ms=ttl_ms)
    return (yield from _ask(response.Pinned, asked)).deadline_unix_ms


def whatever(req: Request) -> Operation[Response]:
    """Any request; its reply."""
    return (yield from _ask(Response, req))


def _length(handle: Handle) -> Operation[int]:
    """The number of events there are now. Reads what is new, and not a long session that is met for the first time."""
    if handle.seen == 0:
        handle.seen = (yield from _summary(handle.id)).events
    else:
        yield from events(handle, handle.seen)
    return handle.seen


def _summary(session: int) -> Operation[SessionSummary]:
    """What one session is, asked of it alone: the list of all grows without a bound."""
    try:
        return (yield from _ask(response.Inspection, request.Inspect(session=session))).inspection.summary
    except NotSupported:  # it is too long to be inspected, and only the list tells without its content
        for summary in (yield from sessions(include_archived=True)):
            if summary.id == session:
                return summary
        raise NoSuchSession(f"session {session} does not exist") from None


def _append(handle: Handle, req: Request) -> Operation[EventMsg]:
    tries = 0
    while True:
        reply = yield req
        assert reply is not None
        if not handle.retry(reply, tries):
            message = expect(response.Committed, reply).event
            handle.note(message.event_id)
            return message
        tries += 1
        yield Pause(SETTLE_STEP_SECONDS)


def _ask(kind: type[R], req: Request) -> Operation[R]:
    reply = yield req
    assert reply is not None
    return expect(kind, reply)
