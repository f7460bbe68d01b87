"""Short ways to make records, commands and states. Values that a test does not name do not matter to it."""

from collections.abc import Iterable

from superfluid.core.record import Command, Record
from superfluid.core.replay import apply_command
from superfluid.core.session import Decision, stamp
from superfluid.core.state import Session, State
from superfluid_protocol import EventBody, EventMsg, GenParams, event

PARAMS = GenParams(temperature=0.5, top_p=1.0, min_p=0.0, top_k=0, seed=7)
OTHER_PARAMS = GenParams(temperature=0.0, top_p=0.5, min_p=0.25, top_k=40, seed=2**64 - 1)

CREATED = event.Created(parent=None, params=PARAMS)
BUMP = event.EpochBump()


def message(*span: int, role: int = 1, text: str = "m") -> event.Message:
    return event.Message(role=role, text=text, span=span)


def appended(*span: int, text: str | None = None) -> event.Appended:
    return event.Appended(text=text, span=span)


def prompt(*span: int) -> event.GenerationPrompt:
    return event.GenerationPrompt(span=span)


def reply(*span: int, finish: int = 0, text: str = "r") -> event.Generated:
    return event.Generated(span=span, text=text, channel=0, finish=finish)


def forked(parent: int, fork_at: int, params: GenParams = PARAMS) -> event.Forked:
    return event.Forked(parent=parent, fork_at=fork_at, params=params)


def record(session: int, event_id: int, body: EventBody, *, epoch: int = 1, ts: int = 0) -> Record:
    return Record(session=session, event_id=event_id, epoch=epoch, ts_unix_ms=ts, body=body)


def command(*records: Record) -> Command:
    return Command(op_id=None, digest=None, request_id=None, records=records)


def fold(commands: Iterable[Command]) -> State:
    """The state that replay makes of *commands*."""
    state = State()
    for item in commands:
        apply_command(state, item)
    return state


def commit(state: State, decision: Decision, *, epoch: int = 1, now_ms: int = 0) -> Command:
    """Carry a decision out, as the store does; returns the command that was written."""
    made = command(*stamp(state, decision, epoch=epoch, now_ms=now_ms))
    assert apply_command(state, made) is None
    return made


def add(state: State, session: int, *bodies: EventBody, epoch: int = 1) -> None:
    """Append bodies to a session that is there, as they are."""
    start = state.sessions[session].length
    records = [record(session, start + i, body, epoch=epoch) for i, body in enumerate(bodies)]
    assert apply_command(state, command(*records)) is None


def session_of(*bodies: EventBody) -> tuple[State, Session]:
    """A state with one session, 1, that holds a ``Created`` and *bodies*."""
    state = State()
    assert apply_command(state, command(record(1, 0, CREATED))) is None
    if bodies:
        add(state, 1, *bodies)
    return state, state.sessions[1]


def messages(bodies: Iterable[EventBody]) -> list[EventMsg]:
    """Bodies as a session's events, in order."""
    return [EventMsg(event_id=i, epoch=1, ts_unix_ms=0, body=body) for i, body in enumerate(bodies)]
