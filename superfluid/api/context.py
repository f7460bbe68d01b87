"""What the chat codec needs to know of a session before it adds to it."""

from superfluid.chat.codec import Context, ReplyEnd
from superfluid.core import tree, turn
from superfluid.core.state import Session, State
from superfluid.sched.model import Text
from superfluid_protocol import numbers
from superfluid_protocol.event import Generated, Message, ToolResult


def chat_context(state: State, session: Session, text: Text) -> Context:
    """What the chat codec needs to know of the session's end."""
    position = turn.position(tree.events_backwards(state, session))
    if position.phase not in {turn.Phase.OPEN, turn.Phase.ENDED}:
        reply = ReplyEnd.NONE
    elif position.last_token in text.vocabulary.eog_ids:
        reply = ReplyEnd.ENDED
    else:
        reply = ReplyEnd.CUT
    return Context(
        empty=session.tokens == 0,
        last_role=position.last_role,
        reply=reply,
        last_token=position.last_token,
        history=lambda: history(state, session),
    )


def history(state: State, session: Session) -> list[tuple[int, str]]:
    """The conversation so far as (role, text), for templates whose turns depend on earlier ones."""
    turns: list[tuple[int, str]] = []
    replying = False
    for message in tree.events(state, session):
        match message.body:
            case Message(role=role, text=text):
                turns.append((role, text))
                replying = False
            case ToolResult(content=content):
                turns.append((numbers.Role.TOOL, content))
                replying = False
            case Generated(text=text) if replying:
                turns[-1] = (numbers.Role.ASSISTANT, turns[-1][1] + text)
            case Generated(text=text):
                turns.append((numbers.Role.ASSISTANT, text))
                replying = True
            case _:
                pass
    return turns
