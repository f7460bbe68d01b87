import pytest
from chat_models import CHATML, DEFAULT_SYSTEM, LAST_TURN_THINKS, NUMBERED, PHI
from chat_stream import NOW, A, S, T, U

from superfluid.chat.roles import template_name
from superfluid.chat.scaffold import Refused, Scaffold, Trim, describe_pair, survey
from superfluid.chat.template import ChatTemplate


def surveyed(source):
    return survey(ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=NOW))


def loop(body, rest=""):
    return "{% for m in messages %}" + body + "{% endfor %}" + rest


def test_a_regular_template_has_a_scaffold_for_every_pair_of_roles():
    found = surveyed(CHATML)

    expected = {
        role: Scaffold(
            prefix=f"<|im_start|>{template_name(role)}\n", trim=Trim.NEITHER, suffix="<|im_end|>\n"
        )
        for role in (S, U, A, T)
    }
    assert found.turns == {
        (before, role): expected[role] for before in (None, S, U, A, T) for role in expected
    }
    assert found.openings == dict.fromkeys((S, U, A, T), "<|im_start|>assistant\n")
    assert found.closing == "<|im_end|>\n"
    assert (found.rewrites, found.rewrites_to_open) == (frozenset(), frozenset())
    assert found.appends == found.turns.keys()


def test_a_default_system_turn_belongs_to_the_first_message():
    found = surveyed(DEFAULT_SYSTEM)

    assert found.turns[None, U].prefix.startswith("<|im_start|>system\nYou are")
    assert found.turns[None, S].prefix == "<|im_start|>system\n"
    assert found.turns[S, U].prefix == "<|im_start|>user\n"


@pytest.mark.parametrize(
    ("expression", "trim", "shown"),
    [
        ("m.content", Trim.NEITHER, " \n x\ty \n "),
        ("m.content | trim", Trim.BOTH, "x\ty"),
        ("m.content.lstrip()", Trim.LEFT, "x\ty \n "),
        ("m.content.rstrip()", Trim.RIGHT, " \n x\ty"),
    ],
)
def test_trimming_of_content_is_recognised(expression, trim, shown):
    found = surveyed(loop("<{{ " + expression + " }}>"))

    assert {scaffold.trim for scaffold in found.turns.values()} == {trim}
    assert found.turns[None, U].around(" \n x\ty \n ") == f"<{shown}>"


@pytest.mark.parametrize(
    "source",
    [
        NUMBERED,
        loop("<{{ m.content | upper }}>"),
        loop("<{{ m.content | replace('\n', ' ') }}>"),
        loop("<{{ m.content }}{{ m.content }}>"),
        loop("{% if not m.content %}{{ raise_exception('empty') }}{% endif %}<{{ m.content }}>"),
    ],
    ids=["numbered", "upper", "replace", "twice", "refuses-empty"],
)
def test_what_does_not_follow_from_the_roles_is_left_to_a_full_render(source):
    found = surveyed(source)

    assert (U, A) not in found.turns
    assert (U, A) in found.appends


def test_a_message_that_the_template_drops_is_refused():
    found = surveyed(PHI)

    assert found.turns[None, S] == Refused(
        reason="the model's chat template has no place for a system message at the beginning"
    )
    assert found.turns[A, T] == Refused(
        reason="the model's chat template has no place for a tool message after an assistant message"
    )
    assert isinstance(found.turns[S, U], Scaffold)


def test_a_message_that_is_shown_later_is_not_dropped():
    found = surveyed(
        "{% for m in messages %}{% if m.role != 'system' %}"
        "{{ messages[loop.index0 - 1].content if loop.index0 and messages[loop.index0 - 1].role == 'system' }}"
        "<{{ m.content }}>{% endif %}{% endfor %}"
    )

    assert (None, S) not in found.turns
    assert (S, U) not in found.turns
    assert isinstance(found.turns[A, U], Scaffold)


def test_a_pair_that_the_template_refuses_keeps_its_words():
    found = surveyed(
        loop("{% if m.role == 'tool' %}{{ raise_exception('No tools') }}{% endif %}{{ m.content }}")
    )

    assert found.turns[U, T] == Refused(
        reason="the model's chat template refuses this conversation: No tools"
    )


def test_rewriting_earlier_turns_is_reported_by_pair():
    found = surveyed(LAST_TURN_THINKS)

    assert found.rewrites == {(A, role) for role in (S, U, A, T)}
    assert (A, U) not in found.turns
    assert (A, U) not in found.appends


def test_rewriting_to_open_the_reply_is_reported_by_role():
    found = surveyed(loop("<{{ m.content }}>", "{{ '!' if not add_generation_prompt else 'assistant:' }}"))

    assert found.rewrites_to_open == {S, U, A, T}
    assert found.openings == {}


def test_an_opening_that_the_template_refuses_has_no_entry():
    found = surveyed(
        loop(
            "<{{ m.content }}>",
            "{% if add_generation_prompt %}"
            "{% if messages[-1].role == 'assistant' %}{{ raise_exception('Not again') }}{% endif %}:{% endif %}",
        )
    )

    assert found.openings == dict.fromkeys((S, U, T), ":")


def test_a_closing_that_depends_on_more_than_the_turn_is_unknown():
    assert surveyed(NUMBERED).closing is None
    assert surveyed(loop("{{ m.content | upper }}")).closing is None


def test_pairs_are_described_in_words():
    assert describe_pair((None, U)) == "a user message at the beginning"
    assert describe_pair((A, A)) == "an assistant message after an assistant message"


def test_a_pair_seen_with_empty_content_only_has_no_scaffold():
    found = surveyed("{{ '!' if messages[-1].content and messages|length > 1 }}" + loop("<{{ m.content }}>"))

    assert (S, T) in found.rewrites & found.appends
    assert (S, T) not in found.turns
