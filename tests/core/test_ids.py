"""Token ids in memory: their packed form, and how far two streams agree."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from superfluid.core.ids import TOKEN_WIDTH, common_prefix, packed

IDS = st.lists(st.integers(0, 2), max_size=30)


@given(IDS, IDS, IDS, st.integers(0, 40))
def test_common_prefix_is_the_loop_it_spares(shared, a, b, limit):
    left, right = shared + a, shared + b
    expected = 0
    while expected < min(len(left), len(right), limit) and left[expected] == right[expected]:
        expected += 1

    assert common_prefix(array("I", left), array("I", right), limit) == expected


def test_ids_are_compared_whole_and_not_by_their_bytes():
    """The two differ in the last byte only, of ids whose other bytes agree."""
    assert common_prefix(array("I", [7, 0x01020304]), array("I", [7, 0x02020304]), 2) == 1


def test_an_id_takes_the_four_bytes_it_has_on_the_link():
    assert TOKEN_WIDTH == 4
    assert packed(bytes([1, 0, 0, 0, 2, 1, 0, 0])) == array("I", [1, 258])
