"""Where a session stands: one table of event sequences and what they end in."""

import pytest

from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.turn import Phase, Position, position
from superfluid_protocol import event
from superfluid_protocol.numbers import Finish
from tests.core.builders import (
    BUMP,
    CREATED,
    add,
    appended,
    commit,
    message,
    messages,
    prompt,
    reply,
    session_of,
)

FINGERPRINT = event.GenerationFingerprint(digest=1)
META = event.MetaUpdated(version=1, title="t", archived=None)
TOOL_USE = event.ToolUse(name="n", arguments="{}")
RESULT = event.ToolResult(call_id=3, content="c", span=(8,))
BLOCK = event.Block(role=1, kind=1, payload="p", span=(9,), visibility_version=0)

CASES = {
    "nothing at all": ([], Phase.EMPTY, None, None, None),
    "a new session": ([CREATED], Phase.EMPTY, None, None, None),
    "no input among side records": ([CREATED, META, BUMP, FINGERPRINT], Phase.EMPTY, None, None, None),
    "text without ids is no input": ([CREATED, appended(text="raw")], Phase.EMPTY, None, None, None),
    "a message": ([CREATED, message(1, 2)], Phase.MESSAGE, 1, 2, None),
    "a system message": ([CREATED, message(1, role=0)], Phase.MESSAGE, 0, 1, None),
    "a message of no ids": ([CREATED, appended(4), message()], Phase.MESSAGE, 1, None, None),
    "side records behind a message": ([message(1), META, BUMP, TOOL_USE], Phase.MESSAGE, 1, 1, None),
    "a tool result": ([message(1), prompt(2), reply(3, finish=1), RESULT], Phase.MESSAGE, 3, 8, None),
    "a block": ([BLOCK], Phase.MESSAGE, 1, 9, None),
    "a turn that was opened": ([message(1), prompt(2)], Phase.OPEN, 2, 2, 1),
    "a turn opened by no ids": ([message(1), prompt()], Phase.OPEN, 2, None, 1),
    "a piece of a reply": ([message(1), prompt(2), reply(3)], Phase.OPEN, 2, 3, 1),
    "a last piece without ids": ([message(1), prompt(2), reply(3), reply(finish=4)], Phase.OPEN, 2, 3, 1),
    "a crash, then a restart": ([message(1), prompt(2), reply(3), BUMP, FINGERPRINT], Phase.OPEN, 2, 3, 1),
    "a continued reply that ended": (
        [message(1), prompt(2), reply(3, finish=2), BUMP, reply(4, finish=1)],
        Phase.ENDED,
        2,
        4,
        1,
    ),
    "an ended reply, then a side record": (
        [message(1), prompt(2), reply(3, finish=1), META],
        Phase.ENDED,
        2,
        3,
        1,
    ),
    "a message behind a cut reply": ([prompt(2), reply(3, finish=2), message(4)], Phase.MESSAGE, 1, 4, None),
    "a second turn": ([prompt(1), reply(2, finish=1), message(3), prompt(4)], Phase.OPEN, 2, 4, 3),
    "raw ids": ([CREATED, appended(5, 6)], Phase.RAW, None, 6, None),
    "text behind raw ids": ([appended(5), appended(text="x")], Phase.RAW, None, 5, None),
    "raw ids behind an ended reply": ([prompt(1), reply(2, finish=1), appended(3)], Phase.RAW, None, 3, None),
    "a raw reply that was cut": ([appended(5), reply(6, finish=2)], Phase.OPEN, None, 6, None),
    "a raw reply that ended": ([appended(5), reply(6, finish=1)], Phase.ENDED, None, 6, None),
    "a reply behind a message, no prompt": ([message(5), reply(6, finish=2)], Phase.OPEN, 1, 6, None),
    "a reply and nothing before it": ([reply(6, finish=2)], Phase.OPEN, None, 6, None),
}


@pytest.mark.parametrize(("bodies", "phase", "role", "token", "opened"), CASES.values(), ids=CASES)
def test_position(bodies, phase, role, token, opened):
    expected = Position(phase=phase, last_role=role, last_token=token, prompt_event=opened)

    assert position(reversed(messages(bodies))) == expected


@pytest.mark.parametrize("finish", Finish)
def test_what_the_model_ended_is_over_and_everything_else_can_go_on(finish):
    ended = finish in {Finish.END_OF_TURN, Finish.GRAMMAR}

    found = position(reversed(messages([message(1), prompt(2), reply(3, finish=finish)])))

    assert found.phase is (Phase.ENDED if ended else Phase.OPEN)


def test_it_reads_no_further_than_it_must():
    def latest_first():
        yield from reversed(messages([prompt(1), reply(2)]))
        raise AssertionError("the position was known")

    assert position(latest_first()).phase is Phase.OPEN


def test_a_fork_of_a_fork_of_a_fork_stands_where_its_own_events_say():
    """Not where the first fork was made, nor at the latest event by time, nor at a side record."""
    state, root = session_of(message(1), prompt(2), reply(3, finish=2))
    leaf = 1
    for new in (2, 3, 4):
        commit(state, decide.fork(state, new, leaf, state.sessions[leaf].length, None))
        add(state, new, META, message(10 + new), prompt(20 + new), reply(30 + new, finish=2), FINGERPRINT)
        leaf = new
    add(state, 1, message(99))

    def stands(name):
        return position(tree.events_backwards(state, state.sessions[name]))

    assert stands(1) == Position(phase=Phase.MESSAGE, last_role=1, last_token=99)
    for name in (2, 3, 4):
        opened = state.sessions[name].length - 3
        assert stands(name) == Position(
            phase=Phase.OPEN, last_role=2, last_token=30 + name, prompt_event=opened
        )
    assert root.length == 5
