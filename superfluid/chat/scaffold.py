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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from superfluid.chat.roles import Role
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
        rewrites_to_open: the roles after which opening the assistant's turn did so.
    """

    turns: Mapping[Pair, Scaffold | Refused]
    openings: Mapping[Role, str]
    closing: str | None
    rewrites: frozenset[Pair]
    rewrites_to_open: frozenset[Role]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What one message added in one probe.

    Attributes:
        added: the text, or the refusal; None if earlier text was rewritten.
        shown_later: whether the content stands in the text of the whole probe.
    """

    content: str
    added: str | BadConversation | None
    shown_later: bool


def survey(template: ChatTemplate) -> Scaffolds:
    """Try *template* with the probes and return what they show. Takes some hundred short renders."""
    findings = _Findings(template)
    for probe in _probes():
        findings.take(probe)
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
    lambda index: f"Zq{index}qZ",
    lambda index: f" \n\tZq{index}qZ\t\n ",
    lambda index: f"Zq{index}\n\n  q\t{index}Z",
    lambda index: "",
)
"""How the contents of a probe look: a plain word (which no template prints by itself), white space around
it, white space within, nothing at all."""

_PLAIN: Final = _STYLES[0]


def _probes() -> Iterator[tuple[Turn, ...]]:
    for style in _STYLES:
        for shape in _SHAPES:
            yield tuple((role, style(index)) for index, role in enumerate(shape))


@dataclass(slots=True)
class _Findings:
    template: ChatTemplate
    steps: defaultdict[Pair, list[_Step]] = field(default_factory=lambda: defaultdict(list))
    openings: defaultdict[Role, set[str | None]] = field(default_factory=lambda: defaultdict(set))
    rewrites_to_open: set[Role] = field(default_factory=set)
    closings: set[str | None] = field(default_factory=set)

    def take(self, probe: tuple[Turn, ...]) -> None:
        """Render *probe* message after message, up to the first refusal, and note what each one added."""
        texts: list[str] = []
        refusal: BadConversation | None = None
        for length in range(1, len(probe) + 1):
            try:
                texts.append(self.template.render(probe[:length]))
            except BadConversation as error:
                refusal = error
                break
            self._note_opening(probe[:length], texts[-1])
        self._note_turns(probe, texts)
        if refusal is not None:
            step = _Step(content=probe[len(texts)][1], added=refusal, shown_later=False)
            self.steps[_pair(probe, len(texts))].append(step)

    def _note_turns(self, probe: tuple[Turn, ...], texts: list[str]) -> None:
        before = ""
        for index, text in enumerate(texts):
            role, content = probe[index]
            added = text[len(before) :] if text.startswith(before) else None
            step = _Step(content=content, added=added, shown_later=content in texts[-1])
            self.steps[_pair(probe, index)].append(step)
            if role is Role.ASSISTANT and content == _PLAIN(index):
                self.closings.add(text.rpartition(content)[2] if content in text else None)
            before = text

    def _note_opening(self, turns: tuple[Turn, ...], text: str) -> None:
        role = turns[-1][0]
        opening = None
        try:
            opened = self.template.render(turns, open_reply=True)
        except BadConversation:
            pass  # this conversation cannot be answered; the same is said when a session asks for it
        else:
            if opened.startswith(text):
                opening = opened[len(text) :]
            else:
                self.rewrites_to_open.add(role)
        self.openings[role].add(opening)

    def result(self) -> Scaffolds:
        turns = {}
        for pair, steps in self.steps.items():
            found = _scaffold(pair, steps)
            if found is not None:
                turns[pair] = found
        openings = {role: _only(texts) for role, texts in self.openings.items()}
        return Scaffolds(
            turns=turns,
            openings={role: text for role, text in openings.items() if text is not None},
            closing=_only(self.closings),
            rewrites=frozenset(
                pair for pair, steps in self.steps.items() if any(step.added is None for step in steps)
            ),
            rewrites_to_open=frozenset(self.rewrites_to_open),
        )


def _pair(probe: tuple[Turn, ...], index: int) -> Pair:
    return (probe[index - 1][0] if index else None), probe[index][0]


def _only(texts: set[str | None]) -> str | None:
    return next(iter(texts)) if len(texts) == 1 else None


def _scaffold(pair: Pair, steps: list[_Step]) -> Scaffold | Refused | None:
    """Return what all *steps* of one pair agree on, or None. Steps that rewrote earlier text have no say."""
    added = [(step, step.added) for step in steps if step.added is not None]
    refusals = [text for _, text in added if isinstance(text, BadConversation)]
    texts = [(step.content, text) for step, text in added if isinstance(text, str)]
    if refusals:
        return None if texts else Refused(reason=str(refusals[0]))
    plain = [(content, text) for content, text in texts if content and content == content.strip()]
    if plain and not any(content in text for content, text in plain):
        if any(step.shown_later for step in steps if step.content.strip()):
            return None
        return Refused(reason=f"the model's chat template has no place for {describe_pair(pair)}")
    for content, text in plain[:1]:
        prefix, found, suffix = text.partition(content)
        for trim in Trim:
            candidate = Scaffold(prefix=prefix, trim=trim, suffix=suffix)
            if found and all(candidate.around(content) == text for content, text in texts):
                return candidate
    return None


def describe_pair(pair: Pair) -> str:
    """Return the pair in words: "a user message at the beginning"."""
    before, role = pair
    place = "at the beginning" if before is None else f"after a {before.template_name} message"
    return f"a {role.template_name} message {place}"
