"""Where a session stands in its conversation, read from its latest events.

| phase | the stream ends with | `Generate` | an append |
|---|---|---|---|
| EMPTY | nothing on the model's input | refused | begins the stream |
| MESSAGE | a message or a tool result | opens an assistant turn | follows it |
| OPEN | a turn that was cut: limit, cancel, crash | continues that turn | closes it first |
| ENDED | a reply that the model ended itself | refused | follows it |
| RAW | token ids appended as they are | continues the stream | follows it |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from superfluid_protocol import EventMsg, event, numbers

FINISH_CLOSES: Final = frozenset({numbers.Finish.END_OF_TURN, numbers.Finish.GRAMMAR})
"""Finishes after which the model has nothing more to say in this turn."""


class Phase(Enum):
    """See the module's table."""

    EMPTY = auto()
    MESSAGE = auto()
    OPEN = auto()
    ENDED = auto()
    RAW = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The end of a session's stream.

    Attributes:
        last_role: Role of the latest chat message (the assistant's for a reply); None in a raw stream.
        last_token: The latest token id on the input, if an event near the end has one.
        prompt_event: In OPEN and ENDED, the id of the event that opened the turn, if one did (raw replies have none).
    """

    phase: Phase
    last_role: int | None = None
    last_token: int | None = None
    prompt_event: int | None = None


def position(latest_first: Iterable[EventMsg]) -> Position:
    """Read the position from the events, the latest first; stops at the first that decides."""
    reply_finish: int | None = None
    last_token: int | None = None
    for message in latest_first:
        body = message.body
        span: tuple[int, ...] = getattr(body, "span", ())
        if last_token is None and span:
            last_token = span[-1]
        match body:
            case event.Generated(finish=finish):
                if reply_finish is None:
                    reply_finish = finish
            case event.GenerationPrompt():
                return _reply(reply_finish, numbers.Role.ASSISTANT, last_token, message.event_id)
            case event.Message(role=role) | event.Block(role=role):
                return _settled(Phase.MESSAGE, reply_finish, role, last_token)
            case event.ToolResult():
                return _settled(Phase.MESSAGE, reply_finish, numbers.Role.TOOL, last_token)
            case event.Appended() if span:
                return _settled(Phase.RAW, reply_finish, None, last_token)
            case _:
                pass
    if reply_finish is not None:
        return _reply(reply_finish, None, last_token, None)
    return Position(phase=Phase.EMPTY)


def _reply(
    finish: int | None, role: int | None, last_token: int | None, prompt_event: int | None
) -> Position:
    phase = Phase.ENDED if finish in FINISH_CLOSES else Phase.OPEN
    return Position(phase=phase, last_role=role, last_token=last_token, prompt_event=prompt_event)


def _settled(phase: Phase, reply_finish: int | None, role: int | None, last_token: int | None) -> Position:
    """What stands before a reply that no `GenerationPrompt` opened decides only if there was no such reply."""
    if reply_finish is None:
        return Position(phase=phase, last_role=role, last_token=last_token)
    return _reply(reply_finish, role, last_token, None)
