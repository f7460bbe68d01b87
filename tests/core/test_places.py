"""Which sequence a job gets, and what happens to the KV that others left there."""

from array import array

import pytest

from superfluid.core.cache import FIRST_NUMBER, Cache
from superfluid.core.entry import Entry, Found
from superfluid.core.options import Pool
from superfluid.core.pins import Pins
from superfluid.core.places import COPY_GAIN, Placement, place
from superfluid.core.plan import Move, MoveKind


def ids(*tokens):
    return array("I", tokens)


def pool(*contents, jobs=(), host=0, cuts=True):
    """Sequences that hold these ids; used in this order; those at *jobs* are lanes."""
    cache = Cache(
        sequences=len(contents),
        pins=Pins(1 << 20),
        pool=Pool(n_ctx=1 << 20, bytes_per_token=1, host_bytes=host, cuts_freely=cuts),
    )
    for slot, held in zip(cache.slots, contents, strict=True):
        slot.stream, slot.held, slot.used = array("I", held), len(held), slot.key + 1
        slot.job = slot.key if slot.key in jobs else None
        cache.put(slot)
    return cache


def lay(cache, prompt):
    """Where a job with this prompt goes."""
    return place(cache, cache.find(array("I", prompt)))


def copy(seq, dst, n):
    return Move(kind=MoveKind.COPY, seq=seq, dst=dst, n=n)


def clear(seq):
    return Move(kind=MoveKind.CLEAR, seq=seq)


def save(seq, n, entry):
    return Move(kind=MoveKind.SAVE, seq=seq, n=n, entry=entry)


def placed(seq, start, *moves):
    return Placement(seq=seq, start=start, moves=moves)


A = [1, 2, 3, 4, 5, 6]
B = [1, 2, 9, 9, 9, 9]
NONE = []


class TestWhereItGoes:
    def test_an_empty_pool(self):
        assert lay(pool(NONE, NONE), [1, 2]) == placed(0, 0, clear(0))

    def test_a_next_turn_goes_on_where_it_lies(self):
        assert lay(pool(NONE, A, NONE), [*A, 7, 8]) == placed(1, 6)

    def test_the_whole_prompt_is_there_and_one_position_is_computed_again(self):
        assert lay(pool(NONE, A), [*A]) == placed(1, 5)

    def test_the_same_beginning_is_copied_and_not_taken_away(self):
        """Another session with the same system prompt must not cost the first its own next turn."""
        assert lay(pool(A, NONE), [*B]) == placed(1, 2, copy(0, 1, 2))

    def test_a_fork_leaves_its_parent_warm(self):
        assert lay(pool(A, NONE), [*A[:4], 8]) == placed(1, 4, copy(0, 1, 4))

    def test_a_fork_in_a_full_pool_takes_what_was_used_least_recently(self):
        assert lay(pool([7, 7], A, [8, 8]), [*A[:4], 8]) == placed(0, 4, copy(1, 0, 4))

    def test_one_that_has_to_give_way_anyway_is_cut_in_place(self):
        assert lay(pool(A), [*A[:4], 8]) == placed(0, 4)

    def test_what_is_cut_in_place_is_saved_first_where_there_is_room(self):
        """Only sequence 1 touches the running one, and it holds the parent; sequence 2 is empty."""
        cache = pool([9, 9], A, NONE, jobs=[0])

        assert lay(cache, [*A[:4], 8]) == placed(1, 4, copy(1, 2, 6))

    def test_a_short_match_is_not_worth_copying_a_long_sequence(self):
        long = [1, *[2] * COPY_GAIN]

        assert lay(pool(long, NONE), [1, 3]) == placed(1, 0, clear(1))
        assert lay(pool(long[:-1], NONE), [1, 3]) == placed(1, 1, copy(0, 1, 1))

    def test_cold_uses_nothing(self):
        assert place(pool(A, NONE), Found()) == placed(1, 0, clear(1))
        assert place(pool(A), Found()) == placed(0, 0, clear(0))

    def test_positions_that_are_not_held_do_not_match(self):
        cache = pool(A, NONE)
        cache.slots[0].held = 3

        assert lay(cache, [*A, 7]) == placed(0, 3)


class TestTies:
    def test_the_sessions_own_comes_before_a_longer_relative(self):
        assert lay(pool([*A, 8], A, NONE), [*A, 7]) == placed(1, 6)

    def test_a_kept_one_comes_before_a_running_one(self):
        assert lay(pool(A, A, NONE, jobs=[0]), [*A, 7]) == placed(1, 6)
        assert lay(pool(NONE, A, A, jobs=[2]), [*A, 7]) == placed(1, 6)

    def test_a_longer_match_comes_first_even_if_it_runs(self):
        assert lay(pool(A, A[:2], NONE, jobs=[0]), [*A, 7]).moves[-1] == copy(0, 1, 6)


class TestNeighbours:
    """Lanes stay next to each other: a micro-batch takes consecutive sequences only."""

    @pytest.mark.parametrize(
        ("jobs", "allowed"),
        [([0], {1}), ([3], {2}), ([1], {0, 2}), ([1, 2], {0, 3}), ([0, 2], {1}), ([0, 3], {1, 2})],
    )
    def test_a_job_closes_a_gap_or_touches_the_range(self, jobs, allowed):
        taken = set()
        for newest in range(4):
            cache = pool([1], [2], [3], [4], jobs=jobs)
            cache.slots[newest].used = 99
            taken.add(lay(cache, [9]).seq)

        assert taken <= allowed
        assert min(allowed) in taken

    def test_kv_that_lies_elsewhere_moves_there_whole(self):
        cache = pool([9], NONE, NONE, A, jobs=[0])

        assert lay(cache, [*A, 7]) == placed(1, 6, copy(3, 1, 6), clear(3))

    def test_what_lies_there_moves_to_one_that_was_used_less_recently(self):
        cache = pool([9], [8, 8], [7], A, jobs=[0])
        cache.slots[2].used = 0

        assert lay(cache, [*A, 7]) == placed(1, 6, copy(1, 2, 2), copy(3, 1, 6), clear(3))

    def test_what_lies_there_gives_way_when_it_was_used_least_recently(self):
        assert lay(pool([9], [8, 8], [7], A, jobs=[0]), [6]) == placed(1, 0, clear(1))

    def test_an_empty_one_has_nothing_to_move(self):
        cache = pool([9], NONE, NONE, jobs=[0])
        cache.slots[2].used = 0

        assert lay(cache, [6]) == placed(1, 0, clear(1))

    def test_a_running_source_keeps_its_own(self):
        cache = pool(A, NONE, jobs=[0])

        assert lay(cache, [*A, 7]) == placed(1, 6, copy(0, 1, 6))


class TestHostMemory:
    """What a sequence gives up goes there, and comes back from there."""

    LONG = [5] * 20

    def test_what_is_displaced_is_saved_first(self):
        cache = pool(self.LONG, host=100)

        assert lay(cache, [6]).moves == (save(0, 20, FIRST_NUMBER), clear(0))
        assert cache.host_used == 20

    def test_what_is_short_or_held_elsewhere_is_not_saved(self):
        assert lay(pool(A, host=100), [6]).moves == (clear(0),)
        assert lay(pool(self.LONG, self.LONG, host=100), [6]).moves == (clear(0),)

    def test_what_host_memory_has_no_room_for_is_lost(self):
        assert lay(pool(self.LONG, host=19), [6]).moves == (clear(0),)

    def test_it_comes_back_and_stays_there_too(self):
        cache = pool(self.LONG, host=100)
        lay(cache, [6])

        placement = lay(cache, [*self.LONG, 7])

        load = Move(kind=MoveKind.LOAD, seq=0, n=20, entry=FIRST_NUMBER)
        assert placement == Placement(seq=0, start=20, moves=(load,), source=FIRST_NUMBER)
        assert cache.host_used == 20

    def test_room_is_not_made_by_giving_up_what_is_about_to_be_loaded(self):
        cache = pool(self.LONG, host=30)
        lay(cache, [6])
        cache.seed(cache.slots[0], Entry(key=0, stream=ids(*[8] * 25), held=25), 25)

        assert [move.kind for move in lay(cache, [*self.LONG, 7]).moves] == [MoveKind.LOAD]
