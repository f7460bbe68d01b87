"""Properties of the codec over random conversations, with contents that try to look like scaffold."""

import pytest
from chat_models import (
    CHATML,
    DEFAULT_SYSTEM,
    GEMMA,
    LLAMA3,
    NUMBERED,
    PHI,
    PLAIN_TEXT,
    REASONING,
    chatml,
    gemma,
    llama3,
    phi,
    reasoning,
)  # fmt: skip
from chat_stream import A, S, Stream, T, U, full_render, lacking, readable
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core.errors import BadConversation

pytestmark = pytest.mark.slow

MODELS = {
    "chatml": (Stream(chatml()), CHATML),
    "default-system": (Stream(chatml(DEFAULT_SYSTEM)), DEFAULT_SYSTEM),
    "llama3": (Stream(llama3()), LLAMA3),
    "gemma": (Stream(gemma()), GEMMA),
    "phi": (Stream(phi(swallows_right=())), PHI),
    "reasoning": (Stream(reasoning()), REASONING),
    "numbered": (Stream(chatml(NUMBERED)), NUMBERED),
}
TRIMMING = {"llama3", "gemma"}

fragments = st.sampled_from(
    ["the", " the", "\n", "\n\n", " ", "ab", "é", "€", "\ue000", "<|", "|>", "im_end", "im_start|>", "<", ">", "/",
     "<|im_end|>", "<|im_start|>", "<|im_<|im_end|>end|>", "<|eot_id|>", "<|begin_of_text|>", "<bos>", "<end_of_turn>",
     "<|end|>", "<|user|>", "{{ 1 }}", "{% endfor %}", "system\n", "Zq", "<h1>"]
)  # fmt: skip
contents = st.lists(st.one_of(fragments, st.text(max_size=2)), min_size=1, max_size=6).map("".join)
roles = st.lists(st.sampled_from([U, A, S]), min_size=1, max_size=6)


def new_stream(name):
    known, source = MODELS[name]
    return Stream(known.vocabulary, known.codec), source


def content(name):
    """Contents that the oracle can follow: it cannot tell that a template trims them or skips empty ones."""
    if name in TRIMMING:
        return contents.map(lambda text: text.strip() or "x")
    return contents.filter(bool)


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_the_spans_of_any_conversation_are_the_render_of_the_whole(name, data):
    stream, source = new_stream(name)
    for role in data.draw(roles):
        text = data.draw(content(name))
        before = list(stream.ids)
        try:
            stream.message(role, text)
        except BadConversation:
            assert stream.ids == before

    if stream.turns:
        assert stream.ids == full_render(stream.vocabulary, source, stream.turns)


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_no_content_ever_yields_a_control_token(name, data):
    stream, _ = new_stream(name)
    plain, _ = new_stream(name)
    for role in data.draw(roles):
        text = data.draw(content(name).filter(str.strip))
        try:
            stream.message(role, text)
        except BadConversation:
            continue
        plain.message(role, "x")

    control = stream.vocabulary.control_ids
    assert [t for t in stream.ids if t in control] == [t for t in plain.ids if t in control]


@pytest.mark.parametrize("name", ["chatml", "default-system", "llama3", "gemma", "numbered"])
@given(
    questions=st.lists(contents.map(lambda text: text.strip() or "x"), min_size=1, max_size=4), data=st.data()
)
def test_replies_that_end_and_go_on_make_the_conversation_of_the_template(name, questions, data):
    stream, source = new_stream(name)
    end = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(name, "<|im_end|>")
    for question in questions:
        stream.message(U, question)
        stream.reply(
            data.draw(st.sampled_from(["yes", "é\n\nno", "the user"])),
            data.draw(st.sampled_from([end, None])),
        )

    ids = stream.ids + lacking(stream.codec, stream.context)
    expected = full_render(stream.vocabulary, source, stream.turns)
    # The reply's own tokens are the model's; what stands in the stream is compared as text and markers.
    assert readable_runs(stream.vocabulary, ids) == readable_runs(stream.vocabulary, expected)


def readable_runs(vocabulary, ids):
    """``readable`` with white-space tokens taken for the text that they are."""
    runs = [""]
    for part in readable(vocabulary, ids):
        if part in vocabulary.special_tokens and vocabulary.special_tokens[part] in vocabulary.control_ids:
            runs += [part, ""]
        else:
            runs[-1] += part
    return runs


@given(st.lists(contents, min_size=1, max_size=5))
def test_a_template_without_markers_loses_no_text(texts):
    stream = Stream(chatml(PLAIN_TEXT), PLAIN.codec)
    for text in texts:
        stream.message(U, text)

    data = b"".join(map(stream.vocabulary.piece, stream.ids))
    assert data.decode() == "".join(f"### user:\n{text}\n\n" for text in texts)


PLAIN = Stream(chatml(PLAIN_TEXT))


@given(contents, contents)
def test_tool_results_never_close_their_frame(first, second):
    stream, _ = new_stream("reasoning")
    stream.message(U, "x")
    for text in (first, f"</tool_response>{second}</think>"):
        span = stream.message(T, text)

        specials = [
            stream.vocabulary.special_tokens[name] for name in ("<tool_response>", "</tool_response>")
        ]
        assert [token for token in span if token in specials] == specials
