"""A model's own chat template: Jinja source from the model file, rendered in a sandbox.

Templates are written for Hugging Face's ``apply_chat_template``, so the environment here matches that one:
immutable sandbox, trimmed blocks, ``break`` and ``continue``, ``raise_exception``, ``strftime_now``, its
``tojson``, and ``{% generation %}`` (which marks text for training and prints its body).

A template is foreign code. Whatever it raises ends as one of this project's errors. Every render goes through
``ChatTemplate.render``: that is the place where a bound on time and memory belongs.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from superfluid.chat.roles import Role, template_name
from superfluid.core.errors import BadConversation, NoChatTemplate

Turn = tuple[Role, str]
"""One message as a template sees it: who speaks, and the text."""


class ChatTemplate:
    """A compiled template.

    Args:
        source: the Jinja text.
        bos_token: what the template's variable of this name holds ("" when the model has no such token).
        eos_token: likewise.
        now: what ``strftime_now`` formats. Fixed here, so that a conversation begun before midnight goes on
            after it with the same system turn.

    Raises:
        NoChatTemplate: the source does not compile.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str, now: datetime) -> None:
        self.source = source
        self._variables = {"bos_token": bos_token, "eos_token": eos_token, "tools": None, "documents": None}
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise NoChatTemplate(f"it does not compile (line {error.lineno}: {error.message})") from error
        except Exception as error:  # foreign source: too deep for Python's parser, say
            raise NoChatTemplate(f"it does not compile ({type(error).__name__})") from error

    def render(self, turns: Sequence[Turn], *, open_reply: bool = False) -> str:
        """Return the text of this conversation.

        Args:
            turns: the messages in order; at least one (many templates look at the first without asking).
            open_reply: whether the assistant's next turn is opened at the end (``add_generation_prompt``).

        Raises:
            BadConversation: the template refuses the order or role of the messages, or fails on them.
        """
        messages = [{"role": template_name(role), "content": text} for role, text in turns]
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=open_reply, **self._variables
            )
            text.encode()  # a literal in the source may hold a lone surrogate, which no tokenizer takes
        except _Refusal as refusal:
            raise BadConversation(self._explain(refusal)) from refusal
        except Exception as error:  # foreign code may raise anything
            raise BadConversation(
                f"the model's chat template fails on this conversation ({type(error).__name__})"
            ) from error
        return text

    def _explain(self, refusal: "_Refusal") -> str:
        reason = "the model's chat template refuses this conversation"
        # Only a literal of the source is shown: a text that the template put together may hold message
        # content.
        return f"{reason}: {refusal.text}" if refusal.text in self.source else reason


class _Refusal(jinja2.TemplateError):
    """The template called ``raise_exception``."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` prints its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: datetime) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        autoescape=False,  # the text goes to a tokenizer; HTML escapes would change it
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _Refusal(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's HTML escapes; templates pass these arguments by position too."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
