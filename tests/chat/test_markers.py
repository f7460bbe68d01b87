import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.markers import Markers, join
from superfluid.core.errors import BadRequest

MARKERS = Markers({"<s>": 1, "</s>": 2, "<s><s>": 3, "[X]": 4, "#": 5, "<<": 6})
marker_soup = st.text(alphabet="<s>/[X]#a \n", max_size=30)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("", []),
        ("plain", ["plain"]),
        ("a<s>b</s>", ["a", 1, "b", 2]),
        ("<s><s><s>", [3, 1]),
        ("<<s>", [6, "s>"]),
        ("[X]#[X", [4, 5, "[X"]),
    ],
)
def test_text_is_cut_at_markers_leftmost_and_longest_first(text, segments):
    assert MARKERS.split(text) == segments


def test_a_vocabulary_without_special_tokens_has_no_markers():
    none = Markers({})

    assert none.split("<s>") == ["<s>"]
    assert none.shield(["<s>"], avoid="") == (["<s>"], {})
    assert 1 not in none


def test_a_marker_knows_its_text():
    assert 2 in MARKERS
    assert MARKERS.text(2) == "</s>"


def test_markers_that_begin_inside_another_are_found():
    assert MARKERS.starts("<<s>#") == [0, 1, 4]


@given(st.lists(marker_soup, max_size=4))
def test_shielded_text_has_no_marker_keeps_its_length_and_comes_back(texts):
    shielded, back = MARKERS.shield(texts, avoid="\ue000 in the source")

    assert [len(text) for text in shielded] == [len(text) for text in texts]
    assert [MARKERS.starts(text) for text in shielded] == [[] for _ in texts]
    assert [text.translate(back) for text in shielded] == texts
    assert 0xE000 not in back


def test_a_stand_in_is_never_a_character_that_the_texts_use():
    shielded, back = MARKERS.shield(["\ue000<s>\ue001"], avoid="")

    assert shielded == ["\ue000\ue002s>\ue001"]
    assert back == {0xE002: "<"}


def test_text_that_uses_up_the_private_use_area_is_refused():
    every = "".join(map(chr, (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))))

    with pytest.raises(BadRequest, match="private-use"):
        MARKERS.shield([every, "<s>"], avoid="")


def test_joining_makes_neighbouring_runs_one_and_drops_empty_ones():
    assert join(["a"], [1], ["", "b"], ["c", 2], [""]) == ["a", 1, "bc", 2]
