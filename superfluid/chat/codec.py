"""Chat messages to token ids, one turn at a time.

A session's stream only grows. The span of a turn is what the model's template prints for the longer
conversation beyond what it prints for the shorter one; spans that are recorded are never rendered again.
Two things follow:

* *A reply is what the model generated*, not what the template makes of its text. Its ids stand in the
  stream, and in a full render a placeholder stands for it: a template that drops or moves earlier thoughts
  changes nothing here.
* *A reply is closed by what comes next.* The model may have written the template's end marker itself, or
  may have been cut before it. The span of the next turn begins with whatever the reply still lacks.

Which end-of-generation ids count as the end marker? The template closes a turn with one (``<|im_end|>``),
and its source may write others (Llama 3's ``<|eom_id|>``): after any of these only the rest of the closing
scaffold follows. Any other one (``<|endoftext|>`` where the template knows ``<|im_end|>`` only) means that
the model stopped without closing its turn. It stays in the stream as recorded, and the whole closing
scaffold follows: one stray token, and then the turn's end in the only form that the model was taught.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from itertools import product
from typing import Final

import xxhash

from superfluid.chat.encode import Encoder, begin
from superfluid.chat.markers import Markers, Segment, join
from superfluid.chat.roles import Role, check_role
from superfluid.chat.scaffold import Pair, Refused, Scaffold, Scaffolds, describe_pair, survey
from superfluid.chat.template import ChatTemplate, Turn
from superfluid.chat.text import check_text
from superfluid.chat.vocabulary import Vocabulary
from superfluid.core.errors import BadConversation, NoChatTemplate

CODEC_VERSION: Final = 1
"""Part of the fingerprint: goes up when the same template and messages would give other ids."""

CHATML: Final = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The curated template for models that know ChatML and whose own template cannot be used."""

_EXCHANGE: Final[tuple[Pair, ...]] = (
    (None, Role.USER),
    (Role.USER, Role.ASSISTANT),
    (Role.ASSISTANT, Role.USER),
)
"""What every conversation is made of, and no codec can do without."""

_CHATML_TOKENS: Final = ("<|im_start|>", "<|im_end|>")

_PLACEHOLDER: Final = "Zq"
"""Stands for a reply in a full render. Not empty, since templates skip empty content."""

_STOCK_EXCHANGE: Final[tuple[Turn, ...]] = ((Role.USER, _PLACEHOLDER), (Role.ASSISTANT, _PLACEHOLDER))


class ReplyEnd(Enum):
    """How the assistant's turn at the end of the stream stands."""

    NONE = auto()
    """There is none: the stream ends at a boundary between turns (an appended assistant message is a whole
    turn)."""
    ENDED = auto()
    """The reply's last recorded id is an end-of-generation id."""
    CUT = auto()
    """The reply was cut: by its limit, a cancel or a crash, perhaps before its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a session's stream ends with: all that the next span depends on.

    Attributes:
        empty: the stream has no token yet.
        last_role: number of the role of the last message; None if there were none, or raw input only.
        reply: how the last reply stands.
        last_token: the stream's last id, or None.
        history: gives role and text of every message so far, replies included (one without a token may be
            missing). Called only where a pair of roles needs a full render (see ``ChatCodec.describe``); the
            texts of assistant messages are not used.
    """

    empty: bool
    last_role: int | None
    reply: ReplyEnd
    last_token: int | None
    history: Callable[[], Sequence[tuple[int, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """A scaffold with its markers found."""

    before: list[Segment]
    scaffold: Scaffold
    after: list[Segment]


class ChatCodec:
    """A model's way of writing conversations. Made by ``build``; immutable; shared by all sessions of the
    model."""

    def __init__(
        self, vocabulary: Vocabulary, template: ChatTemplate, scaffolds: Scaffolds, *, path: str
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._path = path
        self._markers = Markers(
            {text: token for text, token in vocabulary.special_tokens.items() if text.strip()}
        )
        # What the model's own template names stays a marker when another template is used in its place.
        self._encoder = Encoder(
            vocabulary, self._markers, scaffold=f"{template.source}\n{vocabulary.chat_template}"
        )
        self._frames: dict[Pair, _Frame | Refused] = {
            pair: found if isinstance(found, Refused) else self._frame(found)
            for pair, found in scaffolds.turns.items()
        }
        self._openings = {role: self._markers.split(text) for role, text in scaffolds.openings.items()}
        self._closing = None if scaffolds.closing is None else self._markers.split(scaffolds.closing)
        self._ends = _written_ends(vocabulary, template.source)
        seed = f"{CODEC_VERSION}\0{template.source}".encode(errors="replace")
        self._fingerprint = xxhash.xxh3_64_intdigest(seed)

    @classmethod
    def build(cls, vocabulary: Vocabulary, *, now: datetime) -> "ChatCodec":
        """Read the model's template, try it, and return the codec that serves it.

        A template that cannot be used (it does not compile, refuses a plain user message, rewrites earlier
        turns as a conversation grows) is replaced by ``CHATML`` if the vocabulary has its markers. If it
        has not, and all that is wrong is that some conversations are rewritten (Mistral moves the system
        message along), each turn stays as it was first sent.

        Args:
            now: what the template's ``strftime_now`` says, for as long as this codec lives.

        Raises:
            NoChatTemplate: the model has no template, or none that can be used; the text says why. Such a
                model takes raw appends only.
        """
        if vocabulary.chat_template is None:
            raise NoChatTemplate("the model's file has no chat template: it takes raw Append only")
        try:
            template = _compile(vocabulary.chat_template, vocabulary, now)
            scaffolds = survey(template)
            fault = _fault(scaffolds)
        except NoChatTemplate as error:
            template, scaffolds, fault = None, None, str(error)
        if template is not None and scaffolds is not None and fault is None:
            return cls(vocabulary, template, _with_borrowed(scaffolds), path="the model's chat template")
        if all(text in vocabulary.special_tokens for text in _CHATML_TOKENS):
            chatml = _compile(CHATML, vocabulary, now)
            path = f"curated ChatML, since the model's chat template cannot be used: {fault}"
            return cls(vocabulary, chatml, survey(chatml), path=path)
        if template is not None and scaffolds is not None and _holds_as_first_sent(scaffolds):
            path = f"the model's chat template, each turn as it was first sent: {fault}"
            return cls(vocabulary, template, _with_borrowed(scaffolds), path=path)
        raise NoChatTemplate(
            f"the model's chat template cannot be used: {fault}. The model takes raw Append only"
        )

    @property
    def fingerprint(self) -> int:
        """64-bit digest of the template in use and the codec's version: other value, perhaps other ids."""
        return self._fingerprint

    def describe(self) -> str:
        """Return one line for the log: which template is used, why, and what is rendered in full."""
        every: Iterable[Pair] = product((None, *Role), Role)
        full = [describe_pair(pair) for pair in every if pair not in self._frames]
        return f"{self._path}; rendered in full: {', '.join(full) or 'nothing'}"

    def message(self, context: Context, role: int, text: str) -> list[int]:
        """Return the span of an appended message: what the last reply lacks, and the whole turn.

        The span may be empty where a template prints a system message inside the next turn.

        Raises:
            BadRequest: the role is unknown, or the text is not well-formed Unicode.
            BadConversation: the template has no place for such a message here.
        """
        known = check_role(role)
        check_text(text)
        frame = self._frames.get((_previous(context), known))
        if isinstance(frame, Refused):
            raise BadConversation(frame.reason)
        closing = self._closing_segments(context)
        if frame is None:
            added = self._rendered(context, turn=(known, text))
            segments = self._without_written_end(join(closing, added), context)
        else:
            before = self._without_written_end(join(closing, frame.before), context)
            segments = join(before, [frame.scaffold.trim.apply(text)], frame.after)
        return self._ids(segments, context)

    def generation_prompt(self, context: Context) -> list[int]:
        """Return the span that opens the assistant's turn.

        It is empty where nothing has to be opened: a reply that was cut goes on, raw input goes on raw, and
        some templates end each user turn with what the reply follows. After an ended reply it closes that
        one first.

        Raises:
            BadConversation: the template cannot answer this conversation.
        """
        previous = _previous(context)
        if context.reply is ReplyEnd.CUT or context.last_role is None or previous is None:
            return []
        opening = self._openings.get(previous)
        if opening is None:
            opening = self._rendered(context, turn=None)
        segments = join(self._closing_segments(context), opening)
        return self._ids(self._without_written_end(segments, context), context)

    def _ids(self, segments: Sequence[Segment], context: Context) -> list[int]:
        ids = self._encoder.encode(segments, after=context.last_token)
        return begin(self._vocabulary, ids) if context.empty else ids

    def _frame(self, scaffold: Scaffold) -> _Frame:
        split = self._markers.split
        return _Frame(before=split(scaffold.prefix), scaffold=scaffold, after=split(scaffold.suffix))

    def _closing_segments(self, context: Context) -> list[Segment]:
        if context.reply is ReplyEnd.NONE:
            return []
        if self._closing is not None:
            return self._closing
        texts, back = self._shielded(_turns(context))
        _, found, tail = self._template.render(texts).rpartition(_PLACEHOLDER)
        if not found:
            raise BadConversation("the model's chat template does not show replies, so none can be closed")
        return self._unshielded(tail, back)

    def _without_written_end(self, segments: list[Segment], context: Context) -> list[Segment]:
        """Return *segments* without the end marker, if the reply has written it (or one as good) itself."""
        if context.reply is not ReplyEnd.ENDED:
            return segments
        for index, segment in enumerate(segments):
            if isinstance(segment, int):
                as_good = segment in self._vocabulary.eog_ids and context.last_token in self._ends
                return segments[index + 1 :] if as_good or segment == context.last_token else segments
            if segment.strip():
                break
        return segments

    def _rendered(self, context: Context, *, turn: Turn | None) -> list[Segment]:
        """Return what *turn*, or else the opened reply, adds to the conversation, by rendering it with and
        without."""
        turns = _turns(context) + ([] if turn is None else [turn])
        shielded, back = self._shielded(turns)
        shorter = shielded if turn is None else shielded[:-1]
        longer_text = self._template.render(shielded, open_reply=turn is None)
        shorter_text = self._template.render(shorter) if shorter else ""
        if not longer_text.startswith(shorter_text):
            raise BadConversation("the model's chat template would change earlier turns to go on like this")
        return self._unshielded(longer_text[len(shorter_text) :], back)

    def _shielded(self, turns: Sequence[Turn]) -> tuple[list[Turn], Mapping[int, str]]:
        texts, back = self._markers.shield([text for _, text in turns], avoid=self._template.source)
        return [(role, text) for (role, _), text in zip(turns, texts, strict=True)], back

    def _unshielded(self, text: str, back: Mapping[int, str]) -> list[Segment]:
        return [
            segment.translate(back) if isinstance(segment, str) else segment
            for segment in self._markers.split(text)
        ]


def _previous(context: Context) -> Role | None:
    """Return the role before the next turn. Raw input stands for an earlier exchange: the client opened the
    stream."""
    if context.reply is not ReplyEnd.NONE:
        return Role.ASSISTANT
    if context.last_role is None:
        return None if context.empty else Role.ASSISTANT
    return check_role(context.last_role)


def _turns(context: Context) -> list[Turn]:
    """Return the conversation so far for a full render, with a placeholder for each reply."""
    turns = [
        (check_role(role), _PLACEHOLDER if role == Role.ASSISTANT else text)
        for role, text in context.history()
    ]
    if context.reply is not ReplyEnd.NONE and turns and turns[-1][0] is not Role.ASSISTANT:
        turns.append((Role.ASSISTANT, _PLACEHOLDER))  # cut before its first token
    if not turns and not context.empty:
        return list(_STOCK_EXCHANGE)
    return turns


def _compile(source: str, vocabulary: Vocabulary, now: datetime) -> ChatTemplate:
    texts = {token: text for text, token in vocabulary.special_tokens.items()}
    bos, eos = vocabulary.bos_id, vocabulary.eos_id
    return ChatTemplate(
        source,
        bos_token="" if bos is None else texts.get(bos, ""),
        eos_token="" if eos is None else texts.get(eos, ""),
        now=now,
    )


def _written_ends(vocabulary: Vocabulary, source: str) -> frozenset[int]:
    """Return the end-of-generation ids that the template writes itself, by text or as ``eos_token``."""
    ends = {token for text, token in vocabulary.special_tokens.items() if text in source}
    if "eos_token" in source and vocabulary.eos_id is not None:
        ends.add(vocabulary.eos_id)
    return vocabulary.eog_ids & ends


def _fault(scaffolds: Scaffolds) -> str | None:
    """Return why an append-only stream cannot follow the template, or None if it can."""
    opening = scaffolds.turns.get((None, Role.USER))
    if isinstance(opening, Refused) and isinstance(scaffolds.turns.get((None, Role.SYSTEM)), Refused):
        return opening.reason
    for pair in (*_EXCHANGE, (Role.SYSTEM, Role.USER)):
        if pair in scaffolds.rewrites:  # rarer pairs are bent into shape instead, see _with_borrowed
            return f"it changes earlier turns when the conversation grows by {describe_pair(pair)}"
    if Role.USER in scaffolds.rewrites_to_open:
        return "it changes earlier turns when it opens the assistant's turn"
    return None


def _holds_as_first_sent(scaffolds: Scaffolds) -> bool:
    """Whether plain exchanges only ever grow, though other conversations are rewritten."""
    return (
        scaffolds.appends.issuperset(_EXCHANGE)
        and Role.USER in scaffolds.openings
        and scaffolds.closing is not None
    )


def _with_borrowed(scaffolds: Scaffolds) -> Scaffolds:
    """Give a rewriting pair without a scaffold that of its role after an assistant's turn.

    Templates that gather consecutive tool results (Qwen 2.5) or user messages in one turn would have to
    take back that turn's end; in an append-only stream each is a turn of its own.
    """
    turns = dict(scaffolds.turns)
    for pair in scaffolds.rewrites - turns.keys():
        lent = scaffolds.turns.get((Role.ASSISTANT, pair[1]))
        if isinstance(lent, Scaffold):
            turns[pair] = lent
    return replace(scaffolds, turns=turns)
