"""Text from a log cannot drive a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.cli.visible import shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edcb", "abc\\u202edcb"),
        ("a\u2028b", "a\\u2028b"),
        ("half \ud83d", "half \\ud83d"),
        ("日本 👩\u200d👧 é", "日本 👩\u200d👧 é"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str):
    assert visible(text) == shown


def test_a_reply_keeps_its_lines():
    assert visible("a\nb\x1b", keep="\n\t") == "a\nb\\x1b"


@given(st.text(st.characters()))
def test_no_control_character_is_left(text: str):
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in visible(text))


@given(st.text(st.characters()), st.integers(1, 40))
def test_shortened_text_fits_and_tells_that_it_was_cut(text: str, width: int):
    shown = shortened(text, width)

    assert len(shown) <= width
    assert shown == visible(text) or shown.endswith("…")
