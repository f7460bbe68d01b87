"""What the name of a park file tells whom."""

from dataclasses import replace

import pytest

from superfluid.core.origin import Origin

LONE = Origin(identity="digest kv=f16 library=1, AVX = 1 | FMA = 1")
PADDED = replace(LONE, rows=8, outputs=4)


@pytest.mark.parametrize("origin", [LONE, PADDED])
@pytest.mark.parametrize("exact", [0, 1, 60_000])
def test_what_was_written_is_trusted_by_the_same_worker(origin, exact):
    assert origin.trusted(origin.name(exact)) == exact


@pytest.mark.parametrize(
    "name", ["", "digest", "digest exact=5", LONE.identity, LONE.name(5) + " ", LONE.name(5)[:-1]]
)
def test_what_is_no_name_is_not_read(name):
    assert LONE.trusted(name) is None


def test_nor_is_another_ones():
    assert LONE.trusted(replace(LONE, identity="other").name(5)) is None


@pytest.mark.parametrize(
    ("written", "read", "trusted"),
    [
        ((8, 8), (1, 1), 5),
        ((8, 8), (4, 1), 5),
        ((8, 1), (4, 1), 5),
        ((1, 1), (8, 8), 0),
        ((4, 1), (8, 1), 0),
        ((8, 1), (8, 4), 0),
        ((4, 4), (8, 4), 0),
    ],
)
def test_exact_are_rows_of_whole_groups(written, read, trusted):
    """What takes more padding to be exact now was not exact before. The file is of use all the same."""
    writer, reader = (replace(LONE, rows=rows, outputs=outputs) for rows, outputs in (written, read))

    assert reader.trusted(writer.name(5)) == trusted


@pytest.mark.parametrize("rows", ["0/1", "1/0", "0/0"])
def test_a_padding_to_nothing_is_no_padding(rows):
    assert LONE.trusted(f"{LONE.identity} exact=5 rows={rows}") == 0
