"""What a template prints around each message, found by trying it.

A span must cost O(message), and rendering a long conversation to take its last turn costs O(conversation).
But nearly every template prints the same text around a message whenever its role and the role before it are
the same. So at load the template renders some dozens of short conversations (*probes*), each message after
message, and what each message added is taken apart into a prefix, the content and a suffix. Where all
probes agree, that is the *scaffold* of this pair of roles, and no render is needed again.

Pairs that disagree (Gemma prints the system message inside the first user turn) are left out: the caller
renders those in full. A pair that the template refuses, or whose message it drops, has a ``Refused`` entry.
A template that changes what it printed before when a conversation grows (*rewrites*) cannot be followed by
an append-only stream; which pairs did so is reported too.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from superfluid.chat.roles import Role, template_name
from superfluid.chat.template import ChatTemplate, Turn
from superfluid.core.errors import BadConversation

Pair = tuple[Role | None, Role]
"""The role of the message before (None at the beginning of a conversation), and a message's own."""


class Trim(Enum):
    """What the template does to the white space around a message's content."""

    NEITHER = "neither"
    BOTH = "both"
    LEFT = "left"
    RIGHT = "right"

    def apply(self, content: str) -> str:
        """Return *content* as the template prints it (Jinja's ``trim`` is Python's ``strip``)."""
        if self in (Trim.BOTH, Trim.LEFT):
            content = content.lstrip()
        if self in (Trim.BOTH, Trim.RIGHT):
            content = content.rstrip()
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """The text that goes around one message."""

    prefix: str
    trim: Trim
    suffix: str

    def around(self, content: str) -> str:
        """Return what a message with this content adds to the conversation's text."""
        return self.prefix + self.trim.apply(content) + self.suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The template has no place for such a message."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffolds:
    """All that the probes showed.

    Attributes:
        turns: what each pair of roles adds. An absent pair needs a full render.
        openings: what opens the assistant's turn after a message of this role. Absent: full render.
        closing: what the template prints after the content of an assistant's turn that ends a conversation;
            None if that depends on more than the turn.
        rewrites: the pairs at which the template changed what it had printed before.
        appends: the pairs at which it did not, in some probe at least.
        rewrites_to_open: the roles after which opening the assistant's turn did so.
    """

    turns: Mapping[Pair, Scaffold | Refused]
    openings: Mapping[Role, str]
    closing: str | None
    rewrites: frozenset[Pair]
    appends: frozenset[Pair]
    rewrites_to_open: frozenset[Role]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What one message added in one probe.

    Attributes:
        added: the text, or the refusal; None if earlier text was rewritten.
    """

    content: str
    added: str | BadConversation | None


def survey(template: ChatTemplate) -> Scaffolds:
    """Try *template* with the probes and return what they show. Takes some hundred short renders."""
    findings = _Findings(template)
    for shape in _SHAPES:
        findings.take(shape)
    return findings.result()


_S, _U, _A, _T = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL

_SHAPES: Final[tuple[tuple[Role, ...], ...]] = (
    # Each pair of roles comes early in some shape, since a template that refuses a pair hides what follows;
    # the common pairs come at several depths, with and without a system message.
    (_U, _A, _U, _A, _U),
    (_S, _U, _A, _U, _A, _U),
    (_U, _U, _A),
    (_U, _A, _A, _U),
    (_S, _S, _U),
    (_S, _A, _U),
    (_U, _S, _U),
    (_U, _A, _S, _U, _A),
    (_A, _U, _A),
    (_U, _A, _T, _A, _U),
    (_S, _U, _A, _T, _T, _A),
    (_U, _T, _U),
    (_U, _A, _T, _S),
    (_S, _T),
    (_T, _U),
)

_STYLES: Final[tuple[Callable[[int], str], ...]] = (
    lambda index: f" \n\tZq{index}qZ\t\n ",
    lambda index: f"Zq{index}\n\n  q\t{index}Z",
    lambda index: "",
)
"""How one content of a probe may look, while the others are plain: white space around it, white space
within, nothing at all."""


def _plain(index: int) -> str:
    """Return a content that no template prints by itself."""
    return f"Zq{index}qZ"


@dataclass(slots=True)
class _Findings:
    template: ChatTemplate
    steps: defaultdict[Pair, list[_Step]] = field(default_factory=lambda: defaultdict(list))
    shown: set[Pair] = field(default_factory=set)
    openings: defaultdict[Role, set[str | None]] = field(default_factory=lambda: defaultdict(set))
    rewrites_to_open: set[Role] = field(default_factory=set)
    closings: set[str | None] = field(default_factory=set)
    rendered: dict[tuple[Turn, ...], str | BadConversation] = field(default_factory=dict)

    def take(self, shape: tuple[Role, ...]) -> None:
        """Try a conversation of these roles: with plain contents, then with one content in each other
        style."""
        plain = tuple((role, _plain(index)) for index, role in enumerate(shape))
        texts = self._grow(plain)
        for index, role in enumerate(shape):
            for style in _STYLES:
                other = self._grow((*plain[:index], (role, style(index)), *plain[index + 1 :]))
                if other[-1:] != texts[-1:] and index < len(texts):
                    self.shown.add(_pair(plain, index))

    def _grow(self, probe: tuple[Turn, ...]) -> list[str]:
        """Render *probe* message after message, up to the first refusal, and note what each one added."""
        texts: list[str] = []
        for length in range(1, len(probe) + 1):
            turns = probe[:length]
            text = self.rendered.get(turns)
            if text is None:
                text = self.rendered[turns] = self._render(turns)
                self._note_step(turns, text, before=texts[-1] if texts else "")
            if isinstance(text, BadConversation):
                break
            texts.append(text)
        return texts

    def _render(self, turns: tuple[Turn, ...], *, open_reply: bool = False) -> str | BadConversation:
        try:
            return self.template.render(turns, open_reply=open_reply)
        except BadConversation as error:
            return error

    def _note_step(self, turns: tuple[Turn, ...], text: str | BadConversation, *, before: str) -> None:
        added: str | BadConversation | None = text
        if isinstance(text, str):
            added = text[len(before) :] if text.startswith(before) else None
            self._note_ends(turns, text)
        self.steps[_pair(turns, len(turns) - 1)].append(_Step(content=turns[-1][1], added=added))

    def _note_ends(self, turns: tuple[Turn, ...], text: str) -> None:
        """Note what opens a reply after *turns*, and what closes the reply that they end with."""
        role, content = turns[-1]
        if role is Role.ASSISTANT and content == _plain(len(turns) - 1):
            self.closings.add(text.rpartition(content)[2] if content in text else None)
        opened = self._render(turns, open_reply=True)
        opening = None
        if isinstance(opened, str):
            if opened.startswith(text):
                opening = opened[len(text) :]
            else:
                self.rewrites_to_open.add(role)
        self.openings[role].add(opening)

    def result(self) -> Scaffolds:
        turns = {}
        for pair, steps in self.steps.items():
            found = _scaffold(pair, steps, shown=pair in self.shown)
            if found is not None:
                turns[pair] = found
        openings = {role: _only(texts) for role, texts in self.openings.items()}
        return Scaffolds(
            turns=turns,
            openings={role: text for role, text in openings.items() if text is not None},
            closing=_only(self.closings),
            rewrites=self._pairs_with(type(None)),
            appends=self._pairs_with(str),
            rewrites_to_open=frozenset(self.rewrites_to_open),
        )

    def _pairs_with(self, kind: type) -> frozenset[Pair]:
        return frozenset(
            pair for pair, steps in self.steps.items() if any(isinstance(step.added, kind) for step in steps)
        )


def _pair(turns: tuple[Turn, ...], index: int) -> Pair:
    return (turns[index - 1][0] if index else None), turns[index][0]


def _only(texts: set[str | None]) -> str | None:
    return next(iter(texts)) if len(texts) == 1 else None


def _scaffold(pair: Pair, steps: list[_Step], *, shown: bool) -> Scaffold | Refused | None:
    """Return what all *steps* of one pair agree on, or None. Steps that rewrote earlier text have no say."""
    refusals = [step.added for step in steps if isinstance(step.added, BadConversation)]
    texts = [(step.content, step.added) for step in steps if isinstance(step.added, str)]
    if not texts:
        return Refused(reason=str(refusals[0])) if refusals else None
    if not shown:
        return Refused(reason=f"the model's chat template has no place for {describe_pair(pair)}")
    if refusals:
        return None  # it hangs on the content
    for content, text in [(content, text) for content, text in texts if content][:1]:
        prefix, _, suffix = text.partition(content)
        for trim in Trim:
            candidate = Scaffold(prefix=prefix, trim=trim, suffix=suffix)
            if all(candidate.around(content) == text for content, text in texts):
                return candidate
    return None


def describe_pair(pair: Pair) -> str:
    """Return the pair in words: "a user message at the beginning"."""
    before, role = pair
    place = "at the beginning" if before is None else f"after {_message(before)}"
    return f"{_message(role)} {place}"


def _message(role: Role) -> str:
    return f"{'an' if role is Role.ASSISTANT else 'a'} {template_name(role)} message"
