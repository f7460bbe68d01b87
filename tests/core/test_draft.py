"""Guessing from a job's own text: what is guessed, and when."""

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core.draft import (
    FIRST_PAUSE,
    MARGIN,
    PLAIN_STEPS,
    ROW_PRIOR,
    SIZES,
    Costs,
    Drafter,
    Lookup,
    Pace,
)
from superfluid.core.limits import MAX_DRAFT, MAX_LOOKUP_TOKENS

FEW_IDS = st.lists(st.integers(0, 4), max_size=60)
PLAIN = 10.0


def costs(*, row=0.4):
    """Costs that were measured: each guess adds *row* plain steps."""
    found = Costs()
    for _ in range(PLAIN_STEPS):
        found.note_plain(PLAIN)
    for _ in range(30):
        for size in SIZES:
            found.note_guesses(size, PLAIN * (1 + row * size))
    return found


def pace_after(rights, known):
    """A pace that saw guesses come right or not in plain steps."""
    pace = Pace(known)
    for right in rights:
        pace.note_plain(right=right, duration=PLAIN)
    return pace


# -- what is guessed --------------------------------------------------------------------------------


def test_a_guess_is_what_followed_the_latest_earlier_occurrence():
    lookup = Lookup([1, 2, 3, 10, 9, 1, 2, 3, 20, 21, 22, 1, 2, 3])

    assert lookup.guess(2) == [20, 21]
    assert lookup.guess(99) == [20, 21, 22, 1, 2, 3]


def test_two_tokens_do_where_three_never_occurred():
    assert Lookup([1, 2, 10, 11, 7, 1, 2]).guess(2) == [10, 11]


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 2]])
def test_there_is_no_guess_at_what_never_occurred(text):
    assert Lookup(text).guess(5) == []


def test_a_text_may_overlap_its_own_end():
    assert Lookup([5, 5, 5, 5]).guess(5) == [5]
    assert Lookup([5, 5]).guess(5) == []


def test_only_the_last_tokens_of_a_very_long_text_are_looked_in():
    lookup = Lookup([1, 2, 3, *range(10, MAX_LOOKUP_TOKENS + 10), 1, 2, 3])

    assert len(lookup) == MAX_LOOKUP_TOKENS
    assert lookup.guess(5) == []


def test_what_the_text_follows_is_followed_further_than_a_later_occurrence_of_a_few_tokens():
    lookup = Lookup([1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 8, 9, 1, 2, 3])
    assert lookup.guess(1) == [4]

    for token in (4, 5, 6):
        lookup.extend(token)
    assert lookup.guess(2) == [7, 4]

    lookup.extend(8)  # it does not follow it any more, but the later one
    assert lookup.guess(2) == [9, 1]


@given(FEW_IDS, FEW_IDS, st.integers(1, 8))
def test_a_guess_is_what_a_search_through_the_whole_text_finds(history, generated, most):
    lookup = Lookup(array("I", history))
    for token in generated:
        lookup.extend(token)

    assert lookup.guess(most) == searched(history + generated, most)


@given(FEW_IDS, FEW_IDS, st.integers(1, 8))
def test_a_guess_is_a_part_of_the_text_that_stands_after_its_last_two_tokens(history, generated, most):
    lookup, text = Lookup(history), list(history)
    for token in generated:
        lookup.extend(token)
        text.append(token)

        guess = lookup.guess(most)

        assert len(guess) <= most
        # Whenever the last two tokens occurred before, there is a guess, and it is a place where they did.
        found = [
            text[at + 2 : at + 2 + most] for at in range(len(text) - 2) if text[at : at + 2] == text[-2:]
        ]
        assert guess in found if found else not guess


def searched(text, most):
    for n in (3, 2):
        for start in range(len(text) - 1, n - 1, -1):
            if len(text) >= n and text[start - n : start] == text[-n:]:
                return text[start : start + most]
    return []


# -- when to guess ----------------------------------------------------------------------------------


def test_nothing_is_guessed_before_a_plain_step_is_known():
    pace = pace_after([True] * (PLAIN_STEPS - 1), Costs())
    assert pace.choose(MAX_DRAFT) == 0

    pace.note_plain(right=True, duration=PLAIN)
    assert pace.choose(MAX_DRAFT) > 0


def test_nothing_is_guessed_where_there_is_nothing_to_guess():
    assert pace_after([True] * 50, costs()).choose(0) == 0


def test_a_long_run_of_right_guesses_makes_for_long_ones():
    pace = pace_after([True] * 200, costs())

    assert pace.choose(MAX_DRAFT) == MAX_DRAFT
    assert pace.choose(5) == 3  # five cost as much as seven


def test_a_wrong_guess_ends_a_run():
    pace = pace_after([True] * 200 + [False], costs())

    assert pace.share(0) < pace.share(20)
    assert pace.choose(MAX_DRAFT) == 0


def test_a_token_without_a_guess_ends_a_run():
    assert pace_after([True] * 200 + [None], costs()).choose(MAX_DRAFT) == 0


def test_guesses_that_cost_nothing_are_made_however_seldom_they_are_right():
    # As for exact jobs: a guess takes the place of a row that would have been computed for nothing.
    pace = pace_after([True, False, False, False] * 20, costs(row=0.0))

    assert pace.choose(1) == 1


def test_free_chat_is_left_alone():
    pace = pace_after([False, None, False, False, True, None, False, False] * 50, costs(row=0.55))

    assert pace.choose(MAX_DRAFT) == 0


@given(
    st.lists(st.sampled_from([True, False, None]), max_size=80),
    st.integers(1, MAX_DRAFT),
    st.floats(0.0, 2.0),
)
def test_a_guess_is_never_made_that_costs_more_than_it_is_expected_to_gain(rights, available, row):
    known = costs(row=row)
    pace = pace_after(rights, known)

    guesses = pace.choose(available)

    assert 0 <= guesses <= available
    if guesses and not known.may_probe():
        assert pace.expected(guesses) * 1.0 >= known.steps(guesses) - 1
        assert 1 + pace.expected(guesses) >= MARGIN * known.steps(guesses)


def test_what_never_pays_is_tried_ever_more_seldom():
    """Every guess would be right, and verifying one takes as long as computing it: nothing can be gained."""
    known = Costs()
    pace = pace_after([True] * 50, known)
    steps = 20_000
    tried = []
    for step in range(steps):
        guesses = pace.choose(MAX_DRAFT)
        if guesses:
            tried.append(step)
            pace.note_guesses(guesses, guesses, PLAIN * (1 + guesses) * 1.2)
        else:
            pace.note_plain(right=True, duration=PLAIN)

    late = [step for step in tried if step > FIRST_PAUSE]
    pauses = [after - before for before, after in pairwise(late)]
    assert len(tried) * (MAX_DRAFT + 1) < steps // 50
    assert pauses == sorted(pauses)
    assert len(late) <= 7


def test_a_disturbed_measurement_is_forgotten_by_a_trial():
    known = costs()
    pace = pace_after([True] * 100, known)
    disturbed = 0
    while guesses := pace.choose(MAX_DRAFT):
        pace.note_guesses(guesses, guesses, 1000 * PLAIN)
        disturbed += 1
    assert 0 < disturbed < 20

    for _ in range(8 * FIRST_PAUSE):
        if guesses := pace.choose(MAX_DRAFT):
            pace.note_guesses(guesses, guesses, PLAIN * (1 + 0.4 * guesses))
        else:
            pace.note_plain(right=True, duration=PLAIN)

    assert pace.choose(MAX_DRAFT) == MAX_DRAFT


def test_one_slow_step_counts_as_twice_as_long_at_most():
    known = costs()
    before = known.steps(7)

    known.note_guesses(7, 1e9)
    assert known.steps(7) <= 1.3 * before
    known.note_plain(1e9)
    known.note_guesses(7, PLAIN * before)
    assert known.steps(7) >= 0.7 * before


def test_costs_without_a_plain_step_stay_what_is_believed():
    unknown = Costs()
    unknown.note_guesses(3, 12.0)

    assert unknown.steps(3) == unknown.believed(3) == 1 + 3 * ROW_PRIOR


@pytest.mark.parametrize(
    ("rows", "steps"), [(1, [1.4, 2.2, 3.8, 7.0]), (2, [1.0, 1.8, 3.4, 6.6]), (8, [1.0, 1.0, 1.0, 1.8])]
)
def test_guesses_in_place_of_dummies_are_believed_to_be_free(rows, steps):
    assert [Costs(rows).believed(size) for size in SIZES] == pytest.approx(steps)


# -- both -------------------------------------------------------------------------------------------


def test_a_repeated_text_is_guessed_once_it_has_been_repeated_for_a_while():
    text = list(range(100, 200))
    drafter = Drafter([*text, 7, 8], costs())
    made = []
    at = 0
    while at < len(text):
        guess = drafter.propose(len(text) - at - 1)
        new = text[at : at + len(guess) + 1]
        for token in new:
            drafter.extend(token)
        assert drafter.settle(guess, new, PLAIN) == len(guess)
        made.append(len(guess))
        at += len(new)

    assert made[:3] == [0, 0, 0]
    assert max(made) >= 7
    assert len(made) < len(text) // 2


def test_guesses_are_right_up_to_the_first_that_differs():
    drafter = Drafter([], costs())

    assert drafter.settle([1, 2, 3], [1, 2, 9], PLAIN) == 2
    assert drafter.settle([1, 2, 3], [1, 2, 3, 4], PLAIN) == 3
    assert drafter.settle([1, 2, 3], [1, 2], PLAIN) == 2
    assert drafter.settle([1, 2, 3], [], PLAIN) == 0


def test_a_step_without_a_token_teaches_nothing():
    drafter = Drafter([1, 2, 3, 1, 2], Costs())
    drafter.propose(4)

    assert drafter.settle([], [], PLAIN) == 0
