"""Which sequence a job gets, and what happens to the KV that others left there."""

from array import array

import pytest

from superfluid.core.places import COPY_GAIN, Placement, Slot, carry_out, place
from superfluid.core.plan import Move, MoveKind


def ids(*tokens):
    return array("I", tokens)


def pool(*contents, jobs=()):
    """Sequences that hold these ids; used in this order; those at *jobs* are lanes."""
    return [
        Slot(seq=seq, stream=array("I", held), held=len(held), job=seq if seq in jobs else None, used=seq + 1)
        for seq, held in enumerate(contents)
    ]


def copy(seq, dst, n):
    return Move(kind=MoveKind.COPY, seq=seq, dst=dst, n=n)


def clear(seq):
    return Move(kind=MoveKind.CLEAR, seq=seq)


def placed(seq, start, *moves):
    return Placement(seq=seq, start=start, moves=moves)


A = [1, 2, 3, 4, 5, 6]
B = [1, 2, 9, 9, 9, 9]
NONE = []


class TestWhereItGoes:
    def test_an_empty_pool(self):
        assert place(pool(NONE, NONE), ids(1, 2)) == placed(0, 0, clear(0))

    def test_a_next_turn_goes_on_where_it_lies(self):
        assert place(pool(NONE, A, NONE), ids(*A, 7, 8)) == placed(1, 6)

    def test_the_whole_prompt_is_there_and_one_position_is_computed_again(self):
        assert place(pool(NONE, A), ids(*A)) == placed(1, 5)

    def test_the_same_beginning_is_copied_and_not_taken_away(self):
        """Another session with the same system prompt must not cost the first its own next turn."""
        assert place(pool(A, NONE), ids(*B)) == placed(1, 2, copy(0, 1, 2))

    def test_a_fork_leaves_its_parent_warm(self):
        assert place(pool(A, NONE), ids(*A[:4], 8)) == placed(1, 4, copy(0, 1, 4))

    def test_a_fork_in_a_full_pool_takes_what_was_used_least_recently(self):
        assert place(pool([7, 7], A, [8, 8]), ids(*A[:4], 8)) == placed(0, 4, copy(1, 0, 4))

    def test_one_that_has_to_give_way_anyway_is_cut_in_place(self):
        assert place(pool(A), ids(*A[:4], 8)) == placed(0, 4)

    def test_what_is_cut_in_place_is_saved_first_where_there_is_room(self):
        """Only sequence 1 touches the running one, and it holds the parent; sequence 2 is empty."""
        slots = pool([9, 9], A, NONE, jobs=[0])

        assert place(slots, ids(*A[:4], 8)) == placed(1, 4, copy(1, 2, 6))

    def test_a_short_match_is_not_worth_copying_a_long_sequence(self):
        long = [1, *[2] * COPY_GAIN]

        assert place(pool(long, NONE), ids(1, 3)) == placed(1, 0, clear(1))
        assert place(pool(long[:-1], NONE), ids(1, 3)) == placed(1, 1, copy(0, 1, 1))

    def test_cold_uses_nothing(self):
        assert place(pool(A, NONE), ids(*A, 7), cold=True) == placed(1, 0, clear(1))
        assert place(pool(A), ids(*A, 7), cold=True) == placed(0, 0, clear(0))

    def test_positions_that_are_not_held_do_not_match(self):
        slots = pool(A, NONE)
        slots[0].held = 3

        assert place(slots, ids(*A, 7)) == placed(0, 3)


class TestTies:
    def test_the_sessions_own_comes_before_a_longer_relative(self):
        assert place(pool([*A, 8], A, NONE), ids(*A, 7)) == placed(1, 6)

    def test_a_kept_one_comes_before_a_running_one(self):
        assert place(pool(A, A, NONE, jobs=[0]), ids(*A, 7)) == placed(1, 6)
        assert place(pool(NONE, A, A, jobs=[2]), ids(*A, 7)) == placed(1, 6)

    def test_a_longer_match_comes_first_even_if_it_runs(self):
        assert place(pool(A, A[:2], NONE, jobs=[0]), ids(*A, 7)).moves[-1] == copy(0, 1, 6)


class TestNeighbours:
    """Lanes stay next to each other: a micro-batch takes consecutive sequences only."""

    @pytest.mark.parametrize(
        ("jobs", "allowed"),
        [([0], {1}), ([3], {2}), ([1], {0, 2}), ([1, 2], {0, 3}), ([0, 2], {1}), ([0, 3], {1, 2})],
    )
    def test_a_job_closes_a_gap_or_touches_the_range(self, jobs, allowed):
        taken = set()
        for newest in range(4):
            slots = pool([1], [2], [3], [4], jobs=jobs)
            slots[newest].used = 99
            taken.add(place(slots, ids(9)).seq)

        assert taken <= allowed
        assert min(allowed) in taken

    def test_kv_that_lies_elsewhere_moves_there_whole(self):
        slots = pool([9], NONE, NONE, A, jobs=[0])

        assert place(slots, ids(*A, 7)) == placed(1, 6, copy(3, 1, 6), clear(3))

    def test_what_lies_there_moves_to_one_that_was_used_less_recently(self):
        slots = pool([9], [8, 8], [7], A, jobs=[0])
        slots[2].used = 0

        assert place(slots, ids(*A, 7)) == placed(1, 6, copy(1, 2, 2), copy(3, 1, 6), clear(3))

    def test_what_lies_there_gives_way_when_it_was_used_least_recently(self):
        assert place(pool([9], [8, 8], [7], A, jobs=[0]), ids(6)) == placed(1, 0, clear(1))

    def test_an_empty_one_has_nothing_to_move(self):
        slots = pool([9], NONE, NONE, jobs=[0])
        slots[2].used = 0

        assert place(slots, ids(6)) == placed(1, 0, clear(1))

    def test_a_running_source_keeps_its_own(self):
        slots = pool(A, NONE, jobs=[0])

        assert place(slots, ids(*A, 7)) == placed(1, 6, copy(0, 1, 6))


def test_the_books_follow_the_moves_in_order():
    slots = pool(A, NONE, B)

    carry_out(slots, [copy(0, 1, 3), clear(0), copy(2, 0, 2), clear(1)])

    assert [slot.stream[: slot.held].tolist() for slot in slots] == [[1, 2], [], B]
    assert [slot.used for slot in slots] == [3, 1, 3]
