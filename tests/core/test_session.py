"""Each refusal with the phrase clients search for, each decision with the bodies it appends."""

import math

import pytest

from superfluid.core import session as decide
from superfluid.core.errors import (
    BadRequest,
    ClientError,
    Conflict,
    LogReadOnly,
    NoSuchSession,
    NothingToCancel,
    SessionBusy,
)
from superfluid.core.limits import MAX_INPUT_CHARACTERS, MAX_PIN_MS, MAX_SPAN_TOKENS, MAX_TITLE_BYTES
from superfluid.core.record import MAX_EVENT_BYTES
from superfluid.core.replay import apply_command
from superfluid.core.session import Decision, stamp
from superfluid.core.state import State
from superfluid.core.turn import Phase, Position
from superfluid.core.view import message_of
from superfluid_protocol import GenParams, encode, event
from tests.core.builders import (
    BUMP,
    OTHER_PARAMS,
    PARAMS,
    appended,
    command,
    commit,
    message,
    prompt,
    record,
    reply,
    session_of,
)

NOBODY = frozenset()
N_VOCAB = 100
AFTER_MESSAGE = Position(phase=Phase.MESSAGE, last_role=1)


def params(**changes):
    return GenParams(**{"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 0, **changes})


WRITES = {
    "append": lambda state, busy: decide.append(state, busy, 1, "x", (1,), n_vocab=N_VOCAB),
    "message": lambda state, busy: decide.message(state, busy, 1, 1, "x", (1,)),
    "open_turn": lambda state, busy: decide.open_turn(state, busy, 1, AFTER_MESSAGE, (1,), 0),
}
BESIDE = {
    "set_meta": lambda state, _busy: decide.set_meta(state, 1, 0, "t", None),
    "set_qos": lambda state, _busy: decide.set_qos(state, 1, 0, batch_invariant=False),
    "pin": lambda state, _busy: decide.pin(state, 1, 1000, now_ms=5),
}
"""What may be written while the session generates."""
GUARDED = WRITES | BESIDE
NAMED = GUARDED | {
    "fork": lambda state, _busy: decide.fork(state, 2, 1, 1, None),
    "create": lambda state, _busy: decide.create(state, 2, 1, PARAMS),
    "cancel": lambda state, busy: decide.check_cancel(state, busy, 1),
}


@pytest.mark.parametrize("make", NAMED.values(), ids=NAMED)
def test_a_session_that_is_not_there(make):
    with pytest.raises(NoSuchSession, match=r"^session 1 does not exist$"):
        make(State(), NOBODY)


@pytest.mark.parametrize("make", WRITES.values(), ids=WRITES)
def test_a_session_with_a_generation_in_flight_takes_no_input(make):
    state, _ = session_of(message(1))

    with pytest.raises(SessionBusy) as caught:
        make(state, {1})

    assert " is generating;" in str(caught.value)
    assert str(caught.value).startswith("session 1 ")
    assert isinstance(caught.value, ClientError)


@pytest.mark.parametrize("make", [NAMED["fork"], NAMED["create"], *BESIDE.values()])
def test_forks_titles_classes_and_pins_do_not_wait_for_a_generation(make):
    state, _ = session_of(message(1), prompt(2), reply(3))

    commit(state, make(state, {1}))


@pytest.mark.parametrize("make", GUARDED.values(), ids=GUARDED)
def test_a_frozen_session_takes_no_writes_and_says_what_to_do(make):
    state, _ = session_of(message(1))
    reason = apply_command(state, command(record(1, 9, message(1))))

    with pytest.raises(LogReadOnly) as caught:
        make(state, NOBODY)

    assert str(caught.value) == f"session 1 is frozen: {reason}; fork it at an earlier event to go on"
    commit(state, decide.fork(state, 2, 1, 2, None))


@pytest.mark.parametrize("class_", [0, 1, 2, 3])
@pytest.mark.parametrize("exact", [False, True])
def test_a_class_is_kept_in_the_session_and_in_its_forks(class_, exact):
    state, session = session_of(message(1))

    made = commit(state, decide.set_qos(state, 1, class_, batch_invariant=exact))
    commit(state, decide.fork(state, 2, 1, session.length, None))

    body = made.records[-1].body
    assert type(body.class_) is int
    assert encode(body)
    for one in (session, state.sessions[2]):
        assert (one.qos_class, one.batch_invariant) == (class_, exact)


@pytest.mark.parametrize("class_", [4, 255])
def test_a_class_that_the_protocol_does_not_know(class_):
    state, _ = session_of(message(1))

    with pytest.raises(
        BadRequest, match=f"class {class_} is unknown; .* 0 interactive, 1 completion, 2 agent, 3 background"
    ):
        decide.set_qos(state, 1, class_, batch_invariant=False)


def test_a_pin_has_a_deadline_and_0_lets_go():
    state, session = session_of(message(1))

    commit(state, decide.pin(state, 1, 1000, now_ms=5))
    assert session.pin_deadline_unix_ms == 1005
    commit(state, decide.fork(state, 2, 1, session.length, None))
    assert state.sessions[2].pin_deadline_unix_ms == 0, "a fork is pinned by itself or not at all"
    commit(state, decide.pin(state, 1, 0, now_ms=9))
    assert session.pin_deadline_unix_ms == 0


def test_a_pin_is_bounded():
    state, _ = session_of(message(1))

    assert decide.pin(state, 1, MAX_PIN_MS, now_ms=0).bodies[0].deadline_unix_ms == MAX_PIN_MS
    with pytest.raises(BadRequest, match=f"at most {MAX_PIN_MS} ms are taken"):
        decide.pin(state, 1, MAX_PIN_MS + 1, now_ms=0)


def test_cancel_with_nothing_in_flight():
    state, _ = session_of()

    with pytest.raises(NothingToCancel, match=r"^session 1 has no generation in flight$"):
        decide.check_cancel(state, {2}, 1)
    decide.check_cancel(state, {1}, 1)


def test_create_begins_a_session_and_names_its_origin():
    state, _ = session_of()

    assert decide.create(state, 2, 1, OTHER_PARAMS) == Decision(
        session=2, bodies=(event.Created(parent=1, params=OTHER_PARAMS),), first_event=0
    )


class TestAppend:
    @pytest.mark.parametrize(
        ("text", "span"), [(None, (0,)), ("x", ()), ("x", (N_VOCAB - 1,)), ("", (1, 2)), (None, (5, 99, 0))]
    )
    def test_takes_ids_text_or_both(self, text, span):
        state, _ = session_of()

        decision = decide.append(state, NOBODY, 1, text, span, n_vocab=N_VOCAB)

        assert decision == Decision(session=1, bodies=(event.Appended(text=text, span=span),))

    @pytest.mark.parametrize("text", [None, ""])
    def test_refuses_nothing(self, text):
        state, _ = session_of()

        with pytest.raises(BadRequest, match="needs token ids, text, or both"):
            decide.append(state, NOBODY, 1, text, (), n_vocab=N_VOCAB)

    @pytest.mark.parametrize("span", [(N_VOCAB,), (0, 2**32 - 1, 3)])
    def test_refuses_ids_that_would_abort_the_engine(self, span):
        state, _ = session_of()

        with pytest.raises(BadRequest, match=f"outside the model's vocabulary of {N_VOCAB} tokens"):
            decide.append(state, NOBODY, 1, None, span, n_vocab=N_VOCAB)


def test_what_is_taken_here_is_never_too_large_for_the_log():
    body = event.Message(role=2**32 - 1, text="", span=(2**32 - 1,) * 100)
    largest = message_of(record(1, 2**64 - 1, body, epoch=2**64 - 1, ts=2**64 - 1))
    besides = len(encode(largest)) - 500

    assert 4 * MAX_INPUT_CHARACTERS + 5 * MAX_SPAN_TOKENS + besides < MAX_EVENT_BYTES


@pytest.mark.parametrize("role", [0, 1, 2, 3])
def test_known_roles(role):
    state, _ = session_of()

    decide.check_role(role)
    decision = decide.message(state, NOBODY, 1, role, "x", (1,))

    assert decision.bodies == (event.Message(role=role, text="x", span=(1,)),)


@pytest.mark.parametrize("role", [4, 2**32 - 1])
def test_unknown_roles(role):
    with pytest.raises(BadRequest, match=f"role {role} is unknown"):
        decide.check_role(role)


class TestOpenTurn:
    def opened(self, phase, *, seen=5, digest=5):
        state, _ = session_of(appended(1), event.GenerationFingerprint(digest=seen))
        return decide.open_turn(state, NOBODY, 1, Position(phase=phase), (7, 8), digest).bodies

    def test_after_a_message_a_prompt(self):
        assert self.opened(Phase.MESSAGE) == (prompt(7, 8),)

    @pytest.mark.parametrize("phase", [Phase.OPEN, Phase.RAW])
    def test_what_goes_on_needs_no_prompt(self, phase):
        assert self.opened(phase) == ()

    @pytest.mark.parametrize("phase", [Phase.MESSAGE, Phase.OPEN, Phase.RAW])
    def test_another_model_is_recorded_first(self, phase):
        bodies = self.opened(phase, digest=6)

        assert bodies[0] == event.GenerationFingerprint(digest=6)
        assert bodies[1:] == self.opened(phase)

    @pytest.mark.parametrize(
        ("phase", "phrase"), [(Phase.EMPTY, "has no input yet"), (Phase.ENDED, "ended its reply")]
    )
    def test_nothing_to_answer(self, phase, phrase):
        with pytest.raises(BadRequest, match=f"^session 1 {phrase}; append a message first$"):
            self.opened(phase)


def test_generated_is_one_event():
    assert decide.generated(3, (1, 2), "x", 1, 2) == Decision(
        session=3, bodies=(event.Generated(span=(1, 2), text="x", channel=1, finish=2),)
    )


class TestFork:
    @pytest.mark.parametrize("at", [0, 4, 2**64 - 1])
    def test_outside_the_parent(self, at):
        state, _ = session_of(message(1), message(2))

        with pytest.raises(BadRequest, match=f"session 1 can be cut at events 1 to 3, not at {at}"):
            decide.fork(state, 2, 1, at, None)

    @pytest.mark.parametrize("at", [1, 2, 3])
    @pytest.mark.parametrize(("given", "taken"), [(None, PARAMS), (OTHER_PARAMS, OTHER_PARAMS)])
    def test_takes_its_first_event_where_it_leaves(self, at, given, taken):
        state, _ = session_of(message(1), message(2))

        decision = decide.fork(state, 2, 1, at, given)

        body = event.Forked(parent=1, fork_at=at, params=taken)
        assert decision == Decision(session=2, bodies=(body,), first_event=at)

    def test_checks_the_params_it_is_given(self):
        state, _ = session_of()

        with pytest.raises(BadRequest, match="temperature"):
            decide.fork(state, 2, 1, 1, params(temperature=-1.0))


class TestSetMeta:
    @pytest.mark.parametrize(("title", "archived"), [("t", None), (None, True), (None, False), ("", True)])
    def test_counts_the_version_up(self, title, archived):
        state, _ = session_of()

        decision = decide.set_meta(state, 1, 0, title, archived)

        assert decision.bodies == (event.MetaUpdated(version=1, title=title, archived=archived),)

    def test_is_guarded_by_the_version(self):
        state, _ = session_of(event.MetaUpdated(version=3, title=None, archived=True))

        with pytest.raises(Conflict, match="has metadata version 3, not 2; read it again"):
            decide.set_meta(state, 1, 2, "t", None)

    def test_refuses_to_change_nothing(self):
        state, _ = session_of()

        with pytest.raises(BadRequest, match="needs a title, an archived mark, or both"):
            decide.set_meta(state, 1, 0, None, None)

    def test_bounds_the_title_in_bytes(self):
        state, _ = session_of()
        longest = "é" * (MAX_TITLE_BYTES // 2)

        decide.set_meta(state, 1, 0, longest, None)
        with pytest.raises(BadRequest, match=f"longer than {MAX_TITLE_BYTES} bytes"):
            decide.set_meta(state, 1, 0, longest + "x", None)


class TestParams:
    @pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
    @pytest.mark.parametrize("value", [-0.001, math.nan, math.inf, -math.inf])
    def test_no_sampler_could_follow(self, name, value):
        with pytest.raises(BadRequest, match=f"^{name} must be a finite number of 0 or more$"):
            decide.create(State(), 1, None, params(**{name: value}))

    @pytest.mark.parametrize("name", ["top_p", "min_p"])
    def test_a_share_is_at_most_one(self, name):
        decide.check_params(params(**{name: 1.0}))
        with pytest.raises(BadRequest, match=f"^{name} must be at most 1$"):
            decide.check_params(params(**{name: 1.5}))

    def test_greedy_hot_and_wide_are_fine(self):
        decide.check_params(params(temperature=0.0, top_p=0.0, top_k=2**32 - 1))
        decide.check_params(params(temperature=100.0, seed=2**64 - 1))


class TestStamp:
    def ids(self, records):
        return [(r.session, r.event_id, r.epoch, r.ts_unix_ms) for r in records]

    def test_numbers_and_dates_every_body(self):
        state, _ = session_of(message(1))
        bodies = (message(2), message(3))

        records = stamp(state, Decision(session=1, bodies=bodies), epoch=1, now_ms=77)

        assert self.ids(records) == [(1, 2, 1, 77), (1, 3, 1, 77)]
        assert tuple(r.body for r in records) == bodies

    def test_an_older_session_gets_its_epoch_bump_first_and_once(self):
        state, session = session_of(message(1))

        first = commit(state, Decision(session=1, bodies=(message(2),)), epoch=4)
        second = commit(state, Decision(session=1, bodies=(message(3),)), epoch=4)

        assert [r.body for r in first.records] == [BUMP, message(2)]
        assert [r.event_id for r in first.records] == [2, 3]
        assert [r.body for r in second.records] == [message(3)]
        assert session.epoch == 4

    def test_nothing_to_append_needs_no_bump(self):
        state, _ = session_of(message(1))

        assert stamp(state, Decision(session=1, bodies=()), epoch=9, now_ms=0) == ()

    def test_a_new_session_begins_in_its_epoch(self):
        state, _ = session_of(message(1))

        made = stamp(state, decide.create(state, 2, None, PARAMS), epoch=4, now_ms=1)
        branch = stamp(state, decide.fork(state, 2, 1, 2, None), epoch=4, now_ms=1)

        assert self.ids(made) == [(2, 0, 4, 1)]
        assert self.ids(branch) == [(2, 2, 4, 1)]

    def test_a_session_that_is_gone(self):
        with pytest.raises(NoSuchSession):
            stamp(State(), Decision(session=1, bodies=(BUMP,)), epoch=1, now_ms=0)
