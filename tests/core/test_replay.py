"""What each kind of record changes, and the exact reason why a command does not fit."""

import pytest

from superfluid.core.replay import apply_command
from superfluid.core.state import State
from superfluid_protocol import PurgeMode, event
from tests.core.builders import (
    CREATED,
    OTHER_PARAMS,
    PARAMS,
    add,
    command,
    forked,
    message,
    prompt,
    record,
    reply,
    session_of,
)

REBASED = event.Rebased(parent=1, fork_at=1, params=PARAMS, edits=())
REROOTED = event.Rerooted(purged_parent=1, prefix=())
PURGED = event.Purged(generation=1, descendants=PurgeMode.REROOT)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(1, 0, CREATED), "session 1 begins twice"),
        (record(1, 2, forked(1, 2)), "session 1 begins twice"),
        (record(2, 1, forked(7, 1)), "session 2 has a parent, 7, that is not there"),
        (
            record(2, 0, event.Created(parent=7, params=PARAMS)),
            "session 2 has a parent, 7, that is not there",
        ),
        (record(2, 3, forked(1, 3)), "session 2 shares 3 events of a parent that has 2"),
        (record(2, 0, forked(1, 0)), "session 2 shares 0 events of a parent that has 2"),
        (record(2, 1, CREATED), "session 2 begins with event 1 instead of 0"),
        (record(2, 1, forked(1, 2)), "session 2 begins with event 1 instead of 2"),
        (record(2, 0, message(1)), "session 2 has event 0 before its beginning"),
        (record(1, 3, message(1)), "session 1 continues with event 3 instead of 2"),
        (record(1, 1, message(1)), "session 1 continues with event 1 instead of 2"),
        (record(1, 2, PURGED), "session 1 holds a Purged event, which this version does not know"),
        (record(1, 2, REROOTED), "session 1 holds a Rerooted event, which this version does not know"),
        (record(2, 1, REBASED), "session 2 holds a Rebased event, which this version does not know"),
    ],
)
def test_a_misfit_says_why_and_freezes_its_session_only(bad, reason):
    state, session = session_of(message(5))
    add_second = command(record(9, 0, CREATED))
    assert apply_command(state, add_second) is None

    assert apply_command(state, command(bad)) == reason

    assert state.frozen == {bad.session: reason}
    assert session.length == 2
    assert state.next_session == 10
    add(state, 9, message(1))
    assert state.sessions[9].length == 2


def test_a_session_is_frozen_for_its_first_reason():
    state, _ = session_of()
    first = apply_command(state, command(record(1, 5, message(1))))

    assert apply_command(state, command(record(1, 1, message(1)))) == first
    assert state.frozen == {1: first}


def test_a_fork_of_a_frozen_session_goes_on():
    state, _ = session_of(message(5), message(6))
    apply_command(state, command(record(1, 9, message(7))))

    assert apply_command(state, command(record(2, 2, forked(1, 2)), record(2, 3, message(8)))) is None
    assert state.sessions[2].tokens == 2


def test_the_id_of_a_session_that_could_not_begin_is_not_used_again():
    state = State()

    apply_command(state, command(record(41, 1, CREATED)))

    assert state.next_session == 42
    assert state.sessions == {}


def test_a_command_without_records_changes_nothing():
    state, _ = session_of()

    assert apply_command(state, command()) is None
    assert state.sessions[1].length == 1


def test_a_turn_that_opens_again_has_no_finish_yet():
    state, session = session_of(message(1), prompt(2), reply(3, finish=1))
    assert session.last_finish == 1

    add(state, 1, message(4), prompt(5))

    assert session.last_finish == 0


@pytest.mark.parametrize("fork_at", range(1, 9))
def test_a_fork_inherits_what_the_shared_events_had_set_and_no_titles(fork_at):
    """The same at the parent's end, where its values are taken over, as before it, where they are read again."""
    bodies = [
        prompt(1),
        event.GenerationFingerprint(digest=11),
        reply(2, finish=2),
        event.QosSet(class_=0, batch_invariant=True),
        event.MetaUpdated(version=1, title="t", archived=True),
        event.Pinned(deadline_unix_ms=5),
        event.GenerationFingerprint(digest=12),
    ]
    whole, _ = session_of(*bodies)
    cut, _ = session_of(*bodies[: fork_at - 1])
    start = record(2, fork_at, forked(1, fork_at, OTHER_PARAMS))

    assert apply_command(whole, command(start)) is None
    assert apply_command(cut, command(start)) is None

    assert whole.sessions[2] == cut.sessions[2]
    child = whole.sessions[2]
    assert (child.title, child.archived, child.meta_version, child.pin_deadline_unix_ms) == (
        None,
        False,
        0,
        0,
    )
    assert child.params == OTHER_PARAMS
    assert (child.last_finish, child.fingerprint, child.qos_class) == (
        2 if fork_at >= 4 else 0,
        None if fork_at < 3 else 12 if fork_at == 8 else 11,
        0 if fork_at >= 5 else 2,
    )


def test_meta_keeps_what_a_change_leaves_out():
    state, session = session_of(event.MetaUpdated(version=1, title="t", archived=None))
    add(state, 1, event.MetaUpdated(version=2, title=None, archived=True))

    assert (session.title, session.archived, session.meta_version) == ("t", True, 2)
