"""Segments to token ids, as llama.cpp's own tokenizer would give them for the whole text.

A run of ordinary text between two markers is tokenized whole, scaffold and content together, with special
parsing off. Three habits of llama.cpp's tokenizer matter where text is cut
(``llama_vocab::impl::tokenize``):

* a vocabulary may put a space before each run that follows a marker or begins the text, but before no other;
* some markers swallow the white space beside them (Phi-3's ``<|end|>``);
* *user-defined* tokens are found even with special parsing off, so the marker-shaped ones (``</think>``)
  have to be broken up where content holds them.
"""

from collections.abc import Sequence

from superfluid.chat.markers import Markers, Segment
from superfluid.chat.text import check_text
from superfluid.chat.vocabulary import Vocabulary

_SPACE = " \t\n\v\f\r"
"""What C's ``isspace`` takes for white space: the rule of the tokenizer that is followed here."""

_ANCHOR = "\n"
"""Text put before a run that must not get a prefix space, and taken off again: a token of its own in such
vocabularies."""


class Encoder:
    """Turns segments into ids.

    Args:
        vocabulary: the model's tokenizer.
        markers: every special token that can stand in a scaffold.
        scaffold: the template's source: a user-defined token named there is a marker, whatever the
            tokenizer says.
    """

    def __init__(self, vocabulary: Vocabulary, markers: Markers, scaffold: str) -> None:
        self._vocabulary = vocabulary
        self._markers = markers
        self._always_found = Markers(
            {
                text: token
                for text, token in vocabulary.special_tokens.items()
                # One character cannot be broken up, and white space is no marker.
                if len(text) > 1
                and text.strip()
                and text in scaffold
                and vocabulary.tokenize(text) == [token]
            }
        )
        self._swallows: dict[int, tuple[bool, bool]] = {}
        self._anchor = vocabulary.tokenize(_ANCHOR)
        start = b"".join(map(vocabulary.piece, vocabulary.tokenize("a")))
        self._adds_space = start.startswith(b" ")

    def encode(self, segments: Sequence[Segment], *, after: int | None) -> list[int]:
        """Return the ids of *segments*.

        Args:
            after: the id that stands before them in the stream, or None at its beginning.
        """
        ids: list[int] = []
        for index, segment in enumerate(segments):
            previous = ids[-1] if ids else after
            if isinstance(segment, int):
                ids.append(segment)
                continue
            following = segments[index + 1] if index + 1 < len(segments) else None
            run = segment
            if previous is not None and self._swallowed_sides(previous)[1]:
                run = run.lstrip(_SPACE)
            if isinstance(following, int) and self._swallowed_sides(following)[0]:
                run = run.rstrip(_SPACE)
            ids += self._ordinary(run, glued=previous is not None and previous not in self._markers)
        return ids

    def _ordinary(self, run: str, *, glued: bool) -> list[int]:
        ids: list[int] = []
        begin = 0
        for start in self._always_found.starts(run):
            ids += self._tokens(run[begin : start + 1], glued=glued or begin > 0)
            begin = start + 1
        return ids + self._tokens(run[begin:], glued=glued or begin > 0)

    def _tokens(self, run: str, *, glued: bool) -> list[int]:
        """Tokenize *run*, which follows other ordinary text if it is *glued*."""
        if not run:
            return []
        if glued and self._adds_space:
            ids = self._vocabulary.tokenize(_ANCHOR + run)
            if ids[: len(self._anchor)] == self._anchor:
                return ids[len(self._anchor) :]
        return self._vocabulary.tokenize(run)

    def _swallowed_sides(self, token: int) -> tuple[bool, bool]:
        """Whether *token* swallows white space to its left and to its right."""
        if token not in self._markers:
            return False, False
        if token not in self._swallows:
            text, tokenize = self._markers.text(token), self._vocabulary.tokenize
            left = tokenize(f"a {text}", parse_special=True) == [*tokenize("a"), token]
            self._swallows[token] = left, tokenize(f"{text} ", parse_special=True) == [token]
        return self._swallows[token]


def begin(vocabulary: Vocabulary, ids: list[int]) -> list[int]:
    """Return *ids* as the beginning of a stream: with exactly the BOS token that the model asks for.

    Where the metadata asks for one, there is one, whether or not *ids* had it. Where it does not, nothing
    is added or taken away: a template that prints one all the same is the model's metadata too.
    """
    bos = vocabulary.bos_id
    if not vocabulary.add_bos or bos is None or ids[:1] == [bos]:
        return ids
    return [bos, *ids]


def raw_text(vocabulary: Vocabulary, text: str, *, first: bool) -> list[int]:
    """Return the ids of text that a client appends as it is, without a template.

    The client writes its own scaffold here, so special tokens are parsed. Ids that a client gives instead
    of text are never touched, and need no function.

    Args:
        first: whether the stream has no token yet.

    Raises:
        BadRequest: the text is not well-formed Unicode.
    """
    ids = vocabulary.tokenize(check_text(text), parse_special=True)
    return begin(vocabulary, ids) if first else ids
