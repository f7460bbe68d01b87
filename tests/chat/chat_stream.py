"""A session's token stream as the codec sees it, and what a full render of its conversation would be."""

import re
from datetime import datetime

from superfluid.chat.codec import ChatCodec, Context, ReplyEnd
from superfluid.chat.encode import begin
from superfluid.chat.roles import Role
from superfluid.chat.template import ChatTemplate

NOW = datetime(2024, 7, 26)  # noqa: DTZ001 - a wall clock, as templates show it
S, U, A, T = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL


class Stream:
    def __init__(self, vocabulary, codec=None):
        self.vocabulary = vocabulary
        self.codec = ChatCodec.build(vocabulary, now=NOW) if codec is None else codec
        self.ids = []
        self.turns = []
        self.end = ReplyEnd.NONE
        self.histories = 0

    @property
    def context(self):
        return Context(
            empty=not self.ids,
            last_role=int(self.turns[-1][0]) if self.turns else None,
            reply=self.end,
            last_token=self.ids[-1] if self.ids else None,
            history=self._history,
        )

    def _history(self):
        self.histories += 1
        return [(int(role), text) for role, text in self.turns]

    def raw(self, ids):
        self.ids += ids

    def message(self, role, text):
        span = self.codec.message(self.context, int(role), text)
        self.ids += span
        self.turns.append((role, text))
        self.end = ReplyEnd.NONE
        return span

    def reply(self, text, end=None):
        """Generate *text* and then the token with the text *end*, or no end at all."""
        prompt = self.codec.generation_prompt(self.context)
        self.ids += prompt + self.vocabulary.tokenize(text)
        if end is not None:
            self.ids.append(self.vocabulary.special_tokens[end])
        if self.end is not ReplyEnd.CUT:
            self.turns.append((A, text))
        self.end = ReplyEnd.CUT if end is None else ReplyEnd.ENDED
        return prompt

    def tokens(self, ids=None):
        """The stream as a person reads it: special tokens as they are, ordinary text between them."""
        return readable(self.vocabulary, self.ids if ids is None else ids)


def lacking(codec, context):
    """The ids that the last reply lacks to be a whole turn; the span of the next message begins with their text."""
    segments = codec._without_written_end(codec._closing_segments(context), context)
    return codec._encoder.encode(segments, after=context.last_token)


def readable(vocabulary, ids):
    parts = [b""]
    for token in ids:
        if token in vocabulary.special_tokens.values():
            parts += [token, b""]
        else:
            parts[-1] += vocabulary.piece(token)
    names = {token: text for text, token in vocabulary.special_tokens.items()}
    return [names[part] if isinstance(part, int) else part.decode() for part in parts if part != b""]


def full_render(vocabulary, source, turns, *, open_reply=False):
    """The ids of the whole conversation, with special parsing for the scaffold only.

    Contents go through the template as words that no template knows and are put back after the cut at special tokens.
    """
    texts = {token: text for text, token in vocabulary.special_tokens.items()}
    template = ChatTemplate(
        source,
        bos_token=texts.get(vocabulary.bos_id, ""),
        eos_token=texts.get(vocabulary.eos_id, ""),
        now=NOW,
    )
    words = [f"CoNtEnT{index}q" for index in range(len(turns))]
    contents = dict(zip(words, (text for _, text in turns), strict=True))
    text = template.render(
        [(role, word) for (role, _), word in zip(turns, words, strict=True)], open_reply=open_reply
    )
    markers = [text for text in vocabulary.special_tokens if text.strip()]
    special = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    ids = []
    for part in re.split(f"({special})", text):
        if part in markers:
            ids.append(vocabulary.special_tokens[part])
        elif part:
            run = re.sub(r"CoNtEnT\d+q", lambda match: contents[match[0]], part)
            ids += vocabulary.tokenize(run)
    return begin(vocabulary, ids)
