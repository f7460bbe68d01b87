"""Events and sessions in words: what a line about them says."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, cast

from superfluid_protocol import EventBody, GenParams, event, numbers


@dataclass(frozen=True, slots=True)
class Line:
    """One event as the columns of a table."""

    kind: str
    role: str
    tokens: int | None
    text: str


def describe(body: EventBody) -> Line:
    """What one event says. Its text is as it was committed: whoever prints it makes it visible."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(body).__name__).lower()
    span = getattr(body, "span", None)
    return Line(kind, _role(body), None if span is None else len(span), _text(body))


def _role(body: EventBody) -> str:
    match body:
        case event.Message(role=role) | event.Block(role=role):
            return name(numbers.Role, role)
        case event.Generated(channel=channel):
            part = name(numbers.Channel, channel)
            return "assistant" if channel == numbers.Channel.TEXT else f"assistant/{part}"
        case event.GenerationPrompt() | event.ToolUse():
            return "assistant"
        case event.ToolResult():
            return "tool"
        case _:
            return ""


def _text(body: EventBody) -> str:
    match body:
        case event.Created(parent=parent, params=params):
            return _with_parent(params_text(params), parent)
        case event.Forked(parent=parent, fork_at=at, params=params):
            return f"from session {parent}, events 0 to {at - 1}; {params_text(params)}"
        case event.Generated(text=text, finish=finish):
            return (
                text if finish == numbers.Finish.OPEN else f"{text} [{name(numbers.Finish, finish)}]".lstrip()
            )
        case event.Message(text=text) | event.Appended(text=str(text)):
            return text
        case event.GenerationFingerprint(digest=digest):
            return f"{digest:016x}"
        case event.ToolUse(name=tool, arguments=arguments):
            return f"{tool} {arguments}"
        case event.ToolResult(call_id=call_id, content=content):
            return f"to call {call_id}: {content}"
        case event.MetaUpdated(title=title, archived=archived):
            said = [] if title is None else [f"title: {title}"]
            return ", ".join(
                said + ([] if archived is None else ["archived" if archived else "not archived"])
            )
        case event.Appended() | event.GenerationPrompt() | event.EpochBump():
            return ""
        case _:
            return _fields(body)


def _fields(body: EventBody) -> str:
    """Any other event: its fields by name."""
    whole = cast("Any", body)  # its variants are dataclasses, the sealed class they belong to is none
    names = [field.name for field in dataclasses.fields(whole) if field.name != "span"]
    return " ".join(f"{field.rstrip('_')}={getattr(body, field)!r}" for field in names)


def _with_parent(text: str, parent: int | None) -> str:
    return text if parent is None else f"below session {parent}; {text}"


def params_text(params: GenParams) -> str:
    """Sampling parameters on one line."""
    return (
        f"temperature {number(params.temperature)}, top_p {number(params.top_p)}, "
        f"min_p {number(params.min_p)}, top_k {params.top_k}, seed {params.seed}"
    )


def number(value: float) -> str:
    """A 32-bit float as people write it: 0.7, not 0.699999988."""
    return f"{value:.7g}"


def name(kind: type[numbers.Role | numbers.Channel | numbers.Finish], value: int) -> str:
    """The name of a number on the wire, or the number where a newer server sent one."""
    try:
        return kind(value).name.lower().replace("_", " ")
    except ValueError:
        return str(value)
