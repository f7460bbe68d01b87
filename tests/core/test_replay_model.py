"""``state == fold(apply, records)``: random commands against plain lists, and against a fresh replay after each one."""

import copy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from superfluid.core import session as decide
from superfluid.core import tree, turn, view
from superfluid.core.errors import BadRequest, Conflict, LogReadOnly, SessionBusy
from superfluid.core.replay import apply_command
from superfluid.core.session import stamp
from superfluid.core.state import State
from superfluid_protocol import PurgeMode, event
from tests.core.builders import CREATED, OTHER_PARAMS, PARAMS, command, fold, forked, message, record
from tests.core.naive import NaiveStore

SPANS = st.lists(st.integers(0, 99), max_size=4).map(tuple)
PICK = st.integers(0, 2**32)
N_VOCAB = 100


class Sessions(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.state = State()
        self.commands = []
        self.naive = NaiveStore()
        self.frozen = {}
        self.used = set()
        self.busy = set()
        self.epoch = 1
        self.now = 0

    # -- what the rules are made of -----------------------------------------------------------------

    def pick(self, number):
        """One of the sessions."""
        ids = sorted(self.naive.sessions)
        return ids[number % len(ids)]

    def writable(self, session):
        return session not in self.frozen and session not in self.busy

    def names_one_of(self, sessions, refusal):
        assert any(str(refusal).startswith(f"session {name} ") for name in sessions)

    def submit(self, make, *, refused=()):
        """Decide and carry out; a refusal is one of those that the model expects."""
        try:
            decision = make()
        except refused:
            return None
        except LogReadOnly as refusal:
            self.names_one_of(self.frozen, refusal)
            return None
        except SessionBusy as refusal:
            self.names_one_of(self.busy, refusal)
            return None
        self.now += 1
        records = stamp(self.state, decision, epoch=self.epoch, now_ms=self.now)
        self.carry_out(command(*records))
        return records

    def carry_out(self, made, *, misfit=False):
        self.commands.append(made)
        reason = apply_command(self.state, made)
        assert (reason is not None) is misfit
        if misfit:
            for item in made.records:
                self.frozen.setdefault(item.session, reason)
        else:
            self.naive.apply(made.records)
        self.used.update(item.session for item in made.records)

    # -- decided commands ---------------------------------------------------------------------------

    @rule(parent=st.none() | PICK, other=st.booleans())
    def create(self, parent, other):
        new = self.state.next_session
        assert new not in self.used
        named = self.pick(parent) if parent is not None and self.naive.sessions else None
        self.submit(lambda: decide.create(self.state, new, named, OTHER_PARAMS if other else PARAMS))

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, at=PICK, params=st.sampled_from([None, OTHER_PARAMS]))
    def fork(self, name, at, params):
        parent, new = self.pick(name), self.state.next_session
        assert new not in self.used
        at_event = 1 + at % len(self.naive.sessions[parent].events)
        records = self.submit(lambda: decide.fork(self.state, new, parent, at_event, params))
        assert records is not None, "a fork of what is committed is always allowed"

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, span=SPANS, role=st.integers(0, 3))
    def message(self, name, span, role):
        session = self.pick(name)
        may = self.writable(session)
        records = self.submit(lambda: decide.message(self.state, self.busy, session, role, "text", span))
        assert (records is not None) is may

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, span=SPANS, text=st.sampled_from([None, "", "raw"]))
    def append(self, name, span, text):
        session = self.pick(name)
        may = self.writable(session) and bool(span or text)
        records = self.submit(
            lambda: decide.append(self.state, self.busy, session, text, span, n_vocab=N_VOCAB),
            refused=BadRequest,
        )
        assert (records is not None) is may

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, span=SPANS, fingerprint=st.integers(0, 1))
    def open_turn(self, name, span, fingerprint):
        session = self.pick(name)
        position = turn.position(reversed(self.naive.sessions[session].events))
        may = self.writable(session) and position.phase not in {turn.Phase.EMPTY, turn.Phase.ENDED}
        records = self.submit(
            lambda: decide.open_turn(self.state, self.busy, session, position, span, fingerprint),
            refused=BadRequest,
        )
        assert (records is not None) is may
        if may:
            self.busy.add(session)

    @precondition(lambda self: self.busy)
    @rule(which=PICK, span=SPANS, finish=st.integers(0, 5))
    def generated(self, which, span, finish):
        session = sorted(self.busy)[which % len(self.busy)]
        if session in self.frozen:
            self.busy.discard(session)  # its record could not be applied; the generation has failed
            return
        self.submit(lambda: decide.generated(session, span, "text", 0, finish))
        if finish:
            self.busy.discard(session)

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, title=st.sampled_from([None, "a", "b"]), archived=st.sampled_from([None, True, False]))
    def set_meta(self, name, title, archived):
        session = self.pick(name)
        version = self.naive.sessions[session].meta_version
        stale = self.submit(
            lambda: decide.set_meta(self.state, session, version + 1, title, archived), refused=Conflict
        )
        assert stale is None
        may = session not in self.frozen and (title is not None or archived is not None)
        records = self.submit(
            lambda: decide.set_meta(self.state, session, version, title, archived), refused=BadRequest
        )
        assert (records is not None) is may

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, class_=st.integers(0, 4), exact=st.booleans())
    def set_qos(self, name, class_, exact):
        session = self.pick(name)
        records = self.submit(
            lambda: decide.set_qos(self.state, session, class_, batch_invariant=exact), refused=BadRequest
        )
        assert (records is not None) is (session not in self.frozen and class_ < 4)

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, ttl=st.integers(0, 9))
    def pin(self, name, ttl):
        session = self.pick(name)
        records = self.submit(lambda: decide.pin(self.state, session, ttl, now_ms=100))
        assert (records is not None) is (session not in self.frozen)

    # -- what other versions of the daemon write ----------------------------------------------------

    @precondition(lambda self: self.naive.sessions)
    @rule(
        name=PICK,
        bodies=st.lists(
            st.sampled_from(
                [
                    event.QosSet(class_=0, batch_invariant=True),
                    event.QosSet(class_=3, batch_invariant=False),
                    event.Pinned(deadline_unix_ms=99),
                    event.ToolUse(name="n", arguments="{}"),
                    event.ToolResult(call_id=1, content="c", span=(5, 6)),
                ]
            ),
            min_size=1,
            max_size=3,
        ),
    )
    def several_records(self, name, bodies):
        session = self.pick(name)
        if session in self.frozen:
            return
        start = len(self.naive.sessions[session].events)
        self.carry_out(command(*(record(session, start + i, b) for i, b in enumerate(bodies))))

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK)
    def session_and_its_fork_in_one_command(self, name):
        old, new = self.pick(name), self.state.next_session
        if old in self.frozen:
            return
        length = len(self.naive.sessions[old].events)
        self.carry_out(
            command(
                record(old, length, message(1)),
                record(new, length + 1, forked(old, length + 1)),
                record(new, length + 2, message(2)),
                record(new + 1, length + 3, forked(new, length + 3)),
            )
        )

    @precondition(lambda self: self.naive.sessions)
    @rule(name=PICK, kind=st.integers(0, 10), behind_good_ones=st.booleans())
    def misfit(self, name, kind, behind_good_ones):
        """A command that does not apply: whatever stands before the fault in it leaves no trace either."""
        old, new = self.pick(name), self.state.next_session
        length = len(self.naive.sessions[old].events)
        bad = (
            record(old, length + 1, message(1)),
            record(old, length - 1, message(1)),
            record(old, 0, CREATED),
            record(old, length, forked(old, length)),
            record(new, 0, message(1)),
            record(new, 1, CREATED),
            record(new, length + 1, forked(old, length + 1)),
            record(new, 0, forked(old, 0)),
            record(new, 1, forked(new + 5, 1)),
            record(new, 0, event.Created(parent=new + 5, params=PARAMS)),
            record(old, length, event.Purged(generation=1, descendants=PurgeMode.CASCADE)),
        )[kind]
        good = ()
        if behind_good_ones:
            fresh = new + 1
            good = (record(fresh, 0, CREATED), record(fresh, 1, message(9)))
        before = copy.deepcopy(self.state.sessions)
        self.carry_out(command(*good, bad), misfit=True)
        assert self.state.sessions == before
        assert not self.state.sessions.keys() & {item.session for item in good}

    @precondition(lambda self: self.frozen)
    @rule(which=PICK, other=PICK)
    def write_to_a_frozen_session(self, which, other):
        session = sorted(self.frozen)[which % len(self.frozen)]
        known = self.naive.sessions.get(session)
        records = [record(session, len(known.events) if known else 0, message(1) if known else CREATED)]
        if self.naive.sessions:
            good = self.pick(other)
            records.insert(0, record(good, len(self.naive.sessions[good].events), message(1)))
        self.carry_out(command(*records), misfit=True)
        assert self.state.frozen[session] == self.frozen[session]

    @rule()
    def restart(self):
        """A daemon that is gone leaves the log: the next one replays it and opens a new epoch."""
        self.state = fold(self.commands)
        self.busy.clear()
        self.epoch += 1

    # -- after every command ------------------------------------------------------------------------

    @invariant()
    def replay_gives_the_live_state(self):
        assert fold(self.commands) == self.state

    @invariant()
    def the_state_says_what_the_lists_say(self):
        state = self.state
        assert state.sessions.keys() == self.naive.sessions.keys()
        assert state.frozen == self.frozen
        assert state.next_session == max(self.used, default=0) + 1
        for name, naive in self.naive.sessions.items():
            session = tree.get(state, name)
            assert list(tree.events(state, session)) == naive.events
            assert [m.event_id for m in naive.events] == list(range(session.length))
            assert list(tree.events_backwards(state, session)) == naive.events[::-1]
            assert tree.tokens(state, session).tolist() == naive.spans()
            assert view.summary(state, session) == naive.summary()
            assert session.params == naive.params
            assert session.last_finish == naive.last_finish
            assert session.fingerprint == naive.fingerprint
            assert (session.qos_class, session.batch_invariant) == naive.qos
            assert session.pin_deadline_unix_ms == naive.pinned_until
            assert session.epoch == naive.events[-1].epoch


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSessions = pytest.mark.slow(Sessions.TestCase)
