from itertools import pairwise

from chat_models import CHATML_TOKENS, reasoning
from fake_vocabulary import FakeVocabulary
from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.detokenize import Detokenizer, pending_tail

VOCABULARY = reasoning()
GRIN = "\U0001f600".encode()

# Bytes that are mostly UTF-8, with the faults that matter: cut, overlong, surrogate, stray.
awkward_bytes = st.lists(
    st.one_of(
        st.text(max_size=3).map(str.encode),
        st.binary(max_size=3),
        st.sampled_from(
            [b"\xf0\x9f\x98", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90", b"\x80", b"\xff"]
        ),
    ),
    max_size=8,
).map(b"".join)


def cuts(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(ends)]


@given(awkward_bytes, st.lists(st.integers(min_value=0, max_value=100), max_size=6))
def test_any_cut_of_any_bytes_gives_the_text_of_the_whole(data, places):
    detokenizer = Detokenizer(VOCABULARY)

    parts = [detokenizer.feed(part) for part in cuts(data, places)]

    assert "".join(parts) + detokenizer.finish() == data.decode(errors="replace")
    assert detokenizer.pending == b""


@given(awkward_bytes, awkward_bytes)
def test_a_reply_resumed_anywhere_goes_on_as_if_it_had_not_been_cut(before, after):
    whole, first = Detokenizer(VOCABULARY), Detokenizer(VOCABULARY)
    resumed = Detokenizer.resume(VOCABULARY, before)

    text = first.feed(before) + resumed.feed(after) + resumed.finish()

    assert text == whole.feed(before + after) + whole.finish()


@given(st.lists(awkward_bytes, max_size=6))
def test_the_pending_tail_is_what_a_detokenizer_holds_back(pieces):
    detokenizer = Detokenizer(VOCABULARY)
    for piece in pieces:
        detokenizer.feed(piece)

    assert pending_tail(pieces) == detokenizer.pending
    assert len(detokenizer.pending) <= 3


@given(st.text())
def test_no_replacement_character_appears_while_the_bytes_may_be_completed(text):
    detokenizer = Detokenizer(VOCABULARY)

    shown = "".join(detokenizer.feed([byte]) for byte in text.encode())

    assert shown == text
    assert detokenizer.finish() == ""


def test_an_emoji_over_four_tokens_comes_out_whole_with_the_last():
    detokenizer = Detokenizer(VOCABULARY)

    assert [detokenizer.feed([byte]) for byte in GRIN] == ["", "", "", "\U0001f600"]


def test_a_reply_that_ends_inside_a_character_shows_one_replacement():
    detokenizer = Detokenizer(VOCABULARY)

    assert detokenizer.feed(b"ok " + GRIN[:3]) == "ok "
    assert detokenizer.pending == GRIN[:3]
    assert detokenizer.finish() == "�"
    assert detokenizer.pending == b""


def test_a_turn_that_goes_on_completes_the_character_that_was_cut():
    detokenizer = Detokenizer(VOCABULARY, pending=GRIN[:3])

    assert detokenizer.feed(GRIN[3:]) == "\U0001f600"


def test_control_and_end_of_generation_tokens_give_no_text():
    detokenizer = Detokenizer(VOCABULARY)
    tokens = [VOCABULARY.special_tokens[text] for text in CHATML_TOKENS]

    assert detokenizer.feed([ord("a"), *tokens, ord("b")]) == "ab"


def test_user_defined_tokens_are_text():
    detokenizer = Detokenizer(VOCABULARY)

    assert detokenizer.feed([VOCABULARY.special_tokens["<h1>"], *VOCABULARY.tokenize("x")]) == "<h1>x"


def test_an_end_of_generation_token_gives_no_text_even_if_it_is_no_special_one():
    vocabulary = FakeVocabulary(control=("<end>",))
    vocabulary.eog_ids = frozenset({10})

    assert Detokenizer(vocabulary).feed(vocabulary.tokenize("a\nb")) == "ab"


def test_a_control_token_within_a_character_does_not_break_it():
    detokenizer = Detokenizer(VOCABULARY)
    control = VOCABULARY.special_tokens["<|im_start|>"]

    assert detokenizer.feed([*GRIN[:2], control, *GRIN[2:]]) == "\U0001f600"
    assert Detokenizer.resume(VOCABULARY, [*GRIN[:2], control]).pending == GRIN[:2]
