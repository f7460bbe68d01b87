"""Reading through chains of forks: every cut of every session, against sessions that are plain lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superfluid.core import tree
from superfluid.core.errors import NoSuchSession
from superfluid.core.replay import apply_command
from superfluid.core.state import State
from superfluid_protocol import event
from tests.core.builders import (
    CREATED,
    PARAMS,
    add,
    appended,
    command,
    forked,
    message,
    prompt,
    record,
    reply,
    session_of,
)
from tests.core.naive import NaiveStore

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 99), st.lists(st.integers(0, 9), max_size=3)),
        st.tuples(st.just("fork"), st.integers(0, 99), st.integers(0, 99)),
    ),
    max_size=25,
)


def grow(steps):
    """A tree grown by *steps*, and the same as plain lists."""
    state, naive = State(), NaiveStore()

    def carry_out(session, event_id, body):
        made = command(record(session, event_id, body))
        assert apply_command(state, made) is None
        naive.apply(made.records)

    carry_out(1, 0, CREATED)
    for kind, which, what in steps:
        name = 1 + which % len(naive.sessions)
        length = len(naive.sessions[name].events)
        if kind == "add":
            carry_out(name, length, message(*what))
        else:
            at = 1 + what % length
            carry_out(state.next_session, at, forked(name, at))
    return state, naive


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_every_cut_of_every_session_reads_as_its_list(steps):
    state, naive = grow(steps)
    for name, plain in naive.sessions.items():
        session = tree.get(state, name)
        length = session.length
        for start in range(length + 2):
            assert list(tree.events(state, session, start)) == plain.events[start:]
            for end in range(start, length + 2):
                assert list(tree.events(state, session, start, end)) == plain.events[start:end]
        for end in range(length + 2):
            assert tree.tokens_before(state, session, end) == len(plain.spans(end))
        assert tree.tokens(state, session).tolist() == plain.spans()
        ends = {len(plain.spans(end)) for end in range(length + 1)} - {0}
        assert list(tree.event_ends(state, session)) == sorted(ends)


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_segments_are_disjoint_in_order_and_name_their_owners(steps):
    state, _ = grow(steps)
    for session in state.sessions.values():
        for end in [None, *range(session.length + 1)]:
            parts = tree.segments(state, session, end)
            ids = [owner.own[i].event_id for owner, low, high in parts for i in range(low, high)]
            assert ids == list(range(session.length if end is None else end))
            owners = [owner.id for owner, _, _ in parts]
            assert len(set(owners)) == len(owners)
            assert owners[-1:] == [session.id] or end is not None
            assert all(low < high for _, low, high in parts)


@pytest.mark.slow
def test_a_chain_of_many_forks_is_walked_without_recursion():
    state, _ = session_of(message(0))
    depth = 1200  # the interpreter's own limit is 1000
    for name in range(2, depth + 2):
        start = record(name, name, forked(name - 1, name))
        assert apply_command(state, command(start)) is None
    leaf = state.sessions[depth + 1]

    assert len(list(tree.events(state, leaf))) == leaf.length == depth + 2
    assert next(tree.events_backwards(state, leaf)).event_id == depth + 1


def test_the_old_end_stays_where_it_was_when_a_fork_goes_on():
    state, parent = session_of(message(1), message(2), message(3))
    apply_command(state, command(record(2, 2, forked(1, 2)), record(2, 3, message(9))))

    assert tree.tokens(state, parent).tolist() == [1, 2, 3]
    assert tree.tokens(state, state.sessions[2]).tolist() == [1, 9]
    add(state, 1, message(4))
    assert tree.tokens(state, state.sessions[2]).tolist() == [1, 9]


def test_event_ends_are_where_events_with_tokens_end():
    state, _ = session_of(message(1, 2), prompt(), message(3), reply(4, 5, 6))
    apply_command(state, command(record(2, 4, forked(1, 4)), record(2, 5, message(7, 8))))

    assert list(tree.event_ends(state, state.sessions[1])) == [2, 3, 6]
    assert list(tree.event_ends(state, state.sessions[2])) == [2, 3, 5]
    assert list(tree.event_ends(*session_of())) == []


def test_an_origin_shares_nothing():
    state, _ = session_of(appended(1, 2))
    apply_command(state, command(record(2, 0, event.Created(parent=1, params=PARAMS))))

    child = state.sessions[2]
    assert list(tree.events(state, child)) == child.own
    assert child.tokens == 0


def test_get_names_what_is_missing():
    with pytest.raises(NoSuchSession, match=r"^session 3 does not exist$") as caught:
        tree.get(State(), 3)

    assert caught.value.session == 3
