"""Which cached prefixes go, in which order, and never one more than the need says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core.evict import Candidate, eviction_key, to_evict, victims


def candidate(key, size=10, used=0, pinned=None, *, redundant=False):
    return Candidate(key=key, size=size, used=used, pinned=pinned, redundant=redundant)


def keys(candidates):
    return [c.key for c in candidates]


class TestOrder:
    def test_redundant_then_least_recently_used_then_the_oldest_pin(self):
        offered = [
            candidate(1, used=1, pinned=2),
            candidate(2, used=9, pinned=1),
            candidate(3, used=5),
            candidate(4, used=3),
            candidate(5, used=9, redundant=True),
            candidate(6, used=8, redundant=True),
        ]

        assert keys(victims(offered, 60)) == [6, 5, 4, 3, 2, 1]

    def test_a_pinned_one_is_no_sooner_gone_for_being_redundant(self):
        """Its other copy may have no pin: gone both, the pin would have kept nothing."""
        assert keys(victims([candidate(1, pinned=1, redundant=True), candidate(2, used=99)], 10)) == [2]

    def test_ties_go_by_key(self):
        assert keys(victims([candidate(3), candidate(1), candidate(2)], 20)) == [1, 2]
        assert keys(victims([candidate(2, pinned=1), candidate(1, pinned=1)], 10)) == [1]


class TestNeed:
    def test_none(self):
        assert victims([candidate(1)], 0) == ()
        assert victims([candidate(1)], -5) == ()
        assert victims([], 5) == ()

    def test_as_few_as_do(self):
        assert keys(victims([candidate(1, used=1), candidate(2, used=2), candidate(3, used=3)], 11)) == [1, 2]

    def test_small_ones_are_spared_when_a_large_one_has_to_go_anyway(self):
        assert keys(victims([candidate(1, 3, used=1), candidate(2, 12, used=2)], 10)) == [2]

    def test_the_one_that_was_used_last_is_spared_first(self):
        offered = [candidate(1, 3, used=1), candidate(2, 3, used=2), candidate(3, 9, used=3)]

        assert keys(victims(offered, 10)) == [1, 3]

    def test_all_when_they_are_too_few(self):
        assert keys(victims([candidate(1, used=1), candidate(2)], 1000)) == [2, 1]

    def test_what_frees_nothing_stays(self):
        assert keys(victims([candidate(1, 0), candidate(2, 5, used=1)], 1000)) == [2]


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.integers(0, 50),
        st.integers(0, 9),
        st.integers(0, 5),
        st.none() | st.integers(0, 5),
        redundant=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda c: c.key,
)


@given(CANDIDATES, st.integers(-3, 60))
def test_the_choice_adds_up(offered, need):
    gone = victims(offered, need)
    freed = sum(c.size for c in gone)

    assert set(gone) <= set(offered)
    assert len(set(gone)) == len(gone)
    assert list(gone) == sorted(gone, key=eviction_key)
    if sum(c.size for c in offered) >= need:
        assert freed >= need
        assert all(freed - c.size < need for c in gone), "one of them could have stayed"
    else:
        assert set(gone) == {c for c in offered if c.size}


@given(CANDIDATES, st.integers(1, 60))
def test_pinned_ones_go_only_when_nothing_else_is_left(offered, need):
    gone = victims(offered, need)

    if any(c.pinned is not None for c in gone):
        assert sum(c.size for c in offered if c.pinned is None) < need
    oldest_that_stays = min(
        (c.pinned for c in offered if c.pinned is not None and c not in gone), default=None
    )
    if oldest_that_stays is not None and len({c.size for c in offered}) == 1:
        assert all(c.pinned is None or c.pinned <= oldest_that_stays for c in gone)


@given(CANDIDATES, st.integers(1, 60), st.randoms(use_true_random=False))
def test_the_order_of_the_offer_does_not_matter(offered, need, random):
    shuffled = list(offered)
    random.shuffle(shuffled)

    assert victims(shuffled, need) == victims(offered, need)


class TestWatermarks:
    @pytest.mark.parametrize(
        ("used", "expected"),
        [(0, 0), (700, 0), (849, 0), (850, 150), (900, 200), (1000, 300)],
    )
    def test_none_below_high_and_down_to_low_from_it_on(self, used, expected):
        assert to_evict(used, 1000, 85, 70) == expected

    def test_a_pool_without_cells_needs_nothing(self):
        assert to_evict(0, 0, 85, 70) == 0

    def test_marks_the_wrong_way_round_free_nothing_that_is_not_there(self):
        assert to_evict(60, 100, 50, 70) == 0

    @given(st.integers(0, 10_000), st.integers(1, 10_000), st.integers(1, 100), st.integers(0, 100))
    def test_afterwards_it_is_at_or_below_low_and_needs_no_more(self, used, cells, high, low):
        low = min(low, high - 1)
        freed = to_evict(used, cells, high, low)
        left = used - freed

        assert 0 <= freed <= used
        assert (freed > 0) == (used * 100 >= cells * high and used > cells * low // 100)
        assert left * 100 < cells * high or left * 100 <= cells * low
        if freed:
            assert left == cells * low // 100
