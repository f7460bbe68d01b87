"""Pins: what they keep, who yields to whom, and that their book adds up."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core import limits, pins
from superfluid.core.errors import CapacityError, PinBudget
from superfluid.core.pins import Granted, Pin, Pins

NOW = 1_000
LATER = 2_000


def ids(*tokens):
    return array("I", tokens)


def book(budget, *streams):
    """Pins of the sessions 0, 1, … until LATER."""
    made = Pins(budget)
    for session, stream in enumerate(streams):
        assert made.put(session, array("I", stream), LATER, NOW) == Granted()
    return made


def sessions(made):
    return [pin.session for pin in made.protects()]


class TestPut:
    def test_a_pin_keeps_the_tokens_of_its_time(self):
        made = Pins(10)
        stream = ids(1, 2, 3)
        assert made.put(7, stream, LATER, NOW) == Granted()
        stream.append(4)

        assert list(made.protects()) == [Pin(session=7, stream=ids(1, 2, 3), deadline_ms=LATER, order=1)]
        assert 7 in made
        assert (len(made), made.tokens) == (1, 3)

    def test_the_oldest_yield_as_many_as_are_needed(self):
        made = book(9, [1, 1, 1], [2, 2, 2], [3, 3, 3])

        assert made.put(9, ids(4, 4, 4, 4), LATER, NOW) == Granted(yielded=(0, 1))
        assert sessions(made) == [2, 9]
        assert (made.yielded, made.expired) == (2, 0)

    def test_what_forks_share_is_counted_once(self):
        made = book(6, [1, 2, 3, 4])

        assert made.put(1, ids(1, 2, 3, 9, 9), LATER, NOW) == Granted()
        assert made.tokens == 6

    def test_a_fork_stays_whole_when_its_parent_yields(self):
        made = book(6, [1, 2, 3, 4], [1, 2, 3, 9, 9])

        assert made.put(2, ids(7), LATER, NOW) == Granted(yielded=(0,))
        assert [pin.stream for pin in made.protects()] == [ids(1, 2, 3, 9, 9), ids(7)]
        assert made.tokens == 6

    def test_pinning_again_replaces_and_counts_as_new(self):
        made = book(6, [1, 1, 1], [2, 2, 2])

        assert made.put(0, ids(1, 1, 1), LATER + 5, NOW) == Granted()
        assert [(pin.session, pin.deadline_ms) for pin in made.protects()] == [(1, LATER), (0, LATER + 5)]
        assert made.put(2, ids(3), LATER, NOW) == Granted(yielded=(1,))

    def test_pinning_a_grown_session_again_does_not_count_it_twice(self):
        made = book(6, [1, 2, 3, 4])

        assert made.put(0, ids(1, 2, 3, 4, 5, 6), LATER, NOW) == Granted()
        assert made.tokens == 6

    def test_those_that_are_over_expire_before_anyone_yields(self):
        made = Pins(4)
        made.put(0, ids(1, 1), LATER, NOW)
        made.put(1, ids(2, 2), NOW + 1, NOW)

        assert made.put(2, ids(3, 3), LATER, NOW + 1) == Granted(expired=(1,))
        assert sessions(made) == [0, 2]
        assert (made.yielded, made.expired) == (0, 1)

    def test_a_session_without_tokens_may_be_pinned(self):
        assert list(book(0, []).protects()) == [
            Pin(session=0, stream=array("I"), deadline_ms=LATER, order=1),
        ]

    def test_there_are_not_more_than_the_limit_however_little_they_hold(self, monkeypatch):
        monkeypatch.setattr(pins, "MAX_PINS", 2)
        made = book(100, [1], [1])

        assert made.put(2, ids(1), LATER, NOW) == Granted(yielded=(0,))
        assert sessions(made) == [1, 2]

    def test_the_limit_is_wide(self):
        assert limits.MAX_PINS >= 256


class TestTooLarge:
    def test_it_is_refused_and_nothing_changes(self):
        made = book(4, [1, 1], [2, 2])
        before = list(made.protects())

        with pytest.raises(PinBudget) as refused:
            made.put(0, ids(1, 1, 3, 4, 5), LATER + 9, LATER)
        with pytest.raises(PinBudget):
            made.put(0, ids(1, 1, 3, 4, 5), LATER, NOW)

        assert list(made.protects()) == before
        assert (refused.value.tokens, refused.value.budget) == (5, 4)

    def test_the_whole_budget_is_not_too_large(self):
        made = book(4, [1, 1], [2, 2])

        assert made.put(2, ids(1, 2, 3, 4), LATER, NOW) == Granted(yielded=(0, 1))

    def test_it_can_be_asked_before(self):
        made = Pins(4)
        made.check(4)

        with pytest.raises(PinBudget, match="a pin of 5 tokens is larger than the 4 that all pins"):
            made.check(5)

    def test_the_refusal_says_what_to_do(self):
        assert issubclass(PinBudget, CapacityError)
        assert "--pin-budget-pct" in str(PinBudget(5, 4))


class TestEnd:
    def test_a_deadline_that_is_not_ahead_unpins(self):
        made = book(4, [1, 1], [2, 2])

        assert made.put(0, ids(*[1] * 99), 0, NOW) == Granted()
        assert sessions(made) == [1]
        assert made.put(1, ids(2, 2), NOW, NOW) == Granted()
        assert (len(made), made.tokens, made.yielded, made.expired) == (0, 0, 0, 0)

    def test_unpinning_tells_of_those_that_are_over(self):
        made = book(4, [1, 1], [2, 2])

        assert made.put(0, ids(), 0, LATER) == Granted(expired=(1,))

    def test_expire(self):
        made = Pins(9)
        for session, deadline in enumerate((NOW + 3, NOW + 1, NOW + 2)):
            made.put(session, ids(session), deadline, NOW)

        assert made.expire(NOW) == ()
        assert made.expire(NOW + 2) == (1, 2)
        assert made.expire(NOW + 2) == ()
        assert sessions(made) == [0]
        assert made.expired == 2

    def test_drop(self):
        made = book(4, [1, 1])

        assert made.drop(0)
        assert not made.drop(0)
        assert 0 not in made
        assert (made.tokens, made.yielded, made.expired) == (0, 0, 0)


CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.integers(0, 4),
            st.lists(st.integers(0, 1), max_size=9),
            st.integers(0, 20),
        ),
        st.tuples(st.just("drop"), st.integers(0, 4)),
        st.tuples(st.just("expire")),
    ),
    max_size=25,
)


def distinct(held):
    return len({tuple(stream[: end + 1]) for stream, _ in held.values() for end in range(len(stream))})


class Naive:
    """Pins as the specification says them: whole copies in a dict, oldest first."""

    def __init__(self, budget):
        self.budget = budget
        self.held = {}

    def expire(self, now):
        over = tuple(session for session, (_, deadline) in self.held.items() if deadline <= now)
        self.held = {session: pin for session, pin in self.held.items() if session not in over}
        return over

    def put(self, session, stream, deadline, now):
        if deadline > now and len(stream) > self.budget:
            return None
        self.held.pop(session, None)
        over = self.expire(now)
        yielded = []
        if deadline > now:
            self.held[session] = (stream, deadline)
        while distinct(self.held) > self.budget:
            yielded.append(next(iter(self.held)))
            del self.held[yielded[-1]]
        return Granted(yielded=tuple(yielded), expired=over)


@given(st.integers(0, 12), CALLS)
def test_the_book_is_that_of_a_naive_keeper(budget, calls):
    made, naive = Pins(budget), Naive(budget)
    yielded = expired = 0
    for now, (what, *values) in enumerate(calls, 1):
        if what == "put":
            session, stream, ttl = values
            expected = naive.put(session, stream, now + ttl, now)
            if expected is None:
                with pytest.raises(PinBudget):
                    made.put(session, array("I", stream), now + ttl, now)
            else:
                assert made.put(session, array("I", stream), now + ttl, now) == expected
                yielded += len(expected.yielded)
                expired += len(expected.expired)
        elif what == "drop":
            assert made.drop(values[0]) == (naive.held.pop(values[0], None) is not None)
        else:
            over = naive.expire(now)
            assert made.expire(now) == over
            expired += len(over)

        found = list(made.protects())
        assert [(p.session, (p.stream.tolist(), p.deadline_ms)) for p in found] == list(naive.held.items())
        assert [p.order for p in found] == sorted({p.order for p in found})
        assert made.tokens == distinct(naive.held) <= budget
        assert (len(made), made.yielded, made.expired) == (len(naive.held), yielded, expired)
