from datetime import datetime

import pytest

from superfluid.chat.roles import Role
from superfluid.chat.template import ChatTemplate
from superfluid.core.errors import BadConversation, NoChatTemplate

NOW = datetime(2024, 7, 26, 23, 59)  # noqa: DTZ001 - a wall clock, as strftime_now shows it
HI = [(Role.USER, "hi")]


def render(source, turns=HI, **arguments):
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", now=NOW).render(turns, **arguments)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m['content'] }}{% endfor %}", "user: hi"),
        ("{{ bos_token }}x{{ eos_token }}", "<s>x</s>"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ {'a': '<é&>'} | tojson }}", '{"a": "<é&>"}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = 5 %}{% endfor %}{{ ns.n }}", "5"),
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ tools is none }}{{ documents is none }}{{ enable_thinking is defined }}", "TrueTrueFalse"),
        ("<b>{{ messages[0].content }}</b>", "<b>hi</b>"),
        ("a\n", "a"),
    ],
)
def test_templates_find_what_they_expect(source, text):
    assert render(source) == text


def test_the_reply_is_opened_on_request():
    source = "{{ 'x' if add_generation_prompt else 'y' }}"

    assert (render(source), render(source, open_reply=True)) == ("y", "x")


def test_content_is_never_taken_for_template_source_nor_escaped():
    assert render("{{ messages[0].content }}", [(Role.USER, "{{ 1 }} & <b>")]) == "{{ 1 }} & <b>"


def test_a_refusal_says_what_the_template_says():
    with pytest.raises(BadConversation, match="refuses this conversation: Roles must alternate"):
        render("{{ raise_exception('Roles must alternate') }}")


def test_a_refusal_that_quotes_content_is_not_passed_on():
    with pytest.raises(BadConversation) as caught:
        render("{{ raise_exception('bad: ' + messages[0].content) }}", [(Role.USER, "secret")])

    assert str(caught.value) == "the model's chat template refuses this conversation"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("{{ messages[9].content.foo }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages.__class__.__mro__[1] }}", "SecurityError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
        ("{{ messages[0].nothing.more }}", "UndefinedError"),
        ("{{ '\\ud83d' }}", "UnicodeEncodeError"),
    ],
)
def test_a_template_that_fails_is_an_error_of_the_conversation(source, kind):
    with pytest.raises(BadConversation, match=rf"fails on this conversation \({kind}\)"):
        render(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", r"line 1: Expected an expression"),
        ("\n\n{% endfor %}", r"line 3: "),
        ("{{ 1 | nosuchfilter }}", r"line 1: No filter named"),
        ("{% import 'x' as y %}{% block z %}", r"line 1"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", r"RecursionError"),
    ],
)
def test_a_template_that_does_not_compile_says_where(source, reason):
    with pytest.raises(NoChatTemplate, match=rf"it does not compile \({reason}"):
        render(source)
