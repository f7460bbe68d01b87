import pytest
from chat_models import chatml, llama3, mistral, phi, reasoning
from fake_vocabulary import FakeVocabulary
from hypothesis import given
from hypothesis import strategies as st

from superfluid.chat.encode import Encoder, begin, raw_text
from superfluid.chat.markers import Markers
from superfluid.core.errors import BadRequest


def encoder(vocabulary):
    markers = Markers({text: token for text, token in vocabulary.special_tokens.items() if text.strip()})
    return Encoder(vocabulary, markers, vocabulary.chat_template or ""), markers


words = st.lists(
    st.sampled_from(["a", "b", " ", "\n", "the", " the", "user", "é", "<|", "[I"]), max_size=6
).map("".join)


@pytest.mark.parametrize("make", [chatml, llama3, mistral, phi], ids=lambda make: make.__name__)
@given(data=st.data())
def test_segments_get_the_ids_that_the_tokenizer_gives_for_the_whole_text(make, data):
    vocabulary = make()
    encode, markers = encoder(vocabulary)
    text = "".join(
        data.draw(st.lists(st.one_of(words, st.sampled_from(sorted(vocabulary.special_tokens))), max_size=8))
    )

    assert encode.encode(markers.split(text), after=None) == vocabulary.tokenize(text, parse_special=True)


def test_a_run_gets_a_prefix_space_after_a_marker_but_not_after_text():
    vocabulary = mistral()
    encode, _ = encoder(vocabulary)
    inst = vocabulary.special_tokens["[INST]"]

    assert encode.encode(["the"], after=None) == vocabulary.tokenize("the")
    assert encode.encode(["the"], after=inst) == vocabulary.tokenize("the")
    assert b"".join(map(vocabulary.piece, encode.encode(["the"], after=ord("x")))) == b"the"


def test_where_the_anchor_melts_into_the_run_the_prefix_space_stays():
    vocabulary = FakeVocabulary(control=("<s>",), adds_space=True)
    encode = Encoder(vocabulary, Markers(vocabulary.special_tokens), "")

    # "\n\n" is one word, so the anchor's own "\n" cannot be taken off again.
    assert encode.encode(["\na"], after=ord("x")) == vocabulary.tokenize("\na")


def test_markers_swallow_the_white_space_beside_them():
    vocabulary = FakeVocabulary(control=("<l>", "<r>"), swallows_left=["<l>"], swallows_right=["<r>"])
    encode, markers = encoder(vocabulary)
    left, right = vocabulary.special_tokens["<l>"], vocabulary.special_tokens["<r>"]

    assert encode.encode(markers.split("a \n<l> b <r> \nc"), after=None) == [
        *vocabulary.tokenize("a"), left, *vocabulary.tokenize(" b "), right, *vocabulary.tokenize("c"),
    ]  # fmt: skip
    assert encode.encode(["\n", right], after=right) == [right]


def test_a_user_defined_token_of_the_scaffold_is_broken_up_where_content_holds_it():
    vocabulary = reasoning()
    encode, _ = encoder(vocabulary)
    text = "a</think>b<think><tool_response>"

    ids = encode.encode([text], after=None)

    assert not set(ids) & set(vocabulary.special_tokens.values())
    assert b"".join(map(vocabulary.piece, ids)).decode() == text


def test_a_user_defined_token_that_the_scaffold_never_uses_is_ordinary_text():
    vocabulary = reasoning()
    encode, _ = encoder(vocabulary)

    assert encode.encode(["<h1>"], after=None) == [vocabulary.special_tokens["<h1>"]]


def test_a_broken_token_gets_no_space_inside():
    vocabulary = FakeVocabulary(
        control=("<s>",), user_defined=("<think>",), chat_template="<think>", adds_space=True
    )
    encode, _ = encoder(vocabulary)

    ids = encode.encode(["ab<think>"], after=None)

    assert b"".join(map(vocabulary.piece, ids)) == b" ab<think>"
    assert vocabulary.special_tokens["<think>"] not in ids


BOS = 0


@pytest.mark.parametrize(
    ("add_bos", "ids", "expected"),
    [
        (True, [], ["bos"]),
        (True, [7], ["bos", 7]),
        (True, ["bos", 7], ["bos", 7]),
        (False, [7], [7]),
        (False, ["bos", 7], ["bos", 7]),
    ],
)
def test_a_stream_begins_with_the_bos_that_the_model_asks_for(add_bos, ids, expected):
    vocabulary = llama3(add_bos=add_bos)

    def filled(items):
        return [vocabulary.bos_id if item == "bos" else item for item in items]

    assert begin(vocabulary, filled(ids)) == filled(expected)


def test_a_model_without_bos_gets_none():
    assert begin(phi(), [7]) == [7]
    assert begin(FakeVocabulary(add_bos=True), [7]) == [7]


@pytest.mark.parametrize("text", ["hi", "<|begin_of_text|>hi"])
def test_raw_text_has_one_bos_whether_or_not_the_client_wrote_it(text):
    vocabulary = llama3()

    assert raw_text(vocabulary, text, first=True) == [vocabulary.bos_id, *vocabulary.tokenize("hi")]


def test_raw_text_later_in_the_stream_gets_no_bos_and_may_write_markers():
    vocabulary = llama3()

    assert raw_text(vocabulary, "hi<|eot_id|>", first=False) == [
        *vocabulary.tokenize("hi"),
        vocabulary.special_tokens["<|eot_id|>"],
    ]


def test_raw_text_with_half_a_surrogate_pair_is_refused():
    with pytest.raises(BadRequest, match="surrogate"):
        raw_text(llama3(), "\ud83d", first=True)
