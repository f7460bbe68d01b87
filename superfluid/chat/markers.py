"""Special tokens in text: where they are, and how content is kept from looking like one.

A chat template prints scaffold and content as one string. Only the scaffold's special tokens (*markers*
here) may become control tokens; the same characters inside content are ordinary text. So text is cut into
*segments*: a marker's id, or a run of ordinary text.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from superfluid.core.errors import BadRequest

Segment = int | str
"""A marker's token id, or ordinary text (never empty)."""

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Code points that the Unicode standard gives no meaning (section 23.5): rare in text, and no template's
business."""


class Markers:
    """The special tokens whose text matters.

    Args:
        tokens: text of each token, to its id.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._ids = dict(tokens)
        self._texts = {token: text for text, token in tokens.items()}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._ids:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        # A pattern of all texts would try thousands of alternatives at each "<" of the input.
        self._first = re.compile(f"[{''.join(map(re.escape, self._lengths))}]") if lengths else None

    def __contains__(self, token: object) -> bool:
        return token in self._texts

    def text(self, token: int) -> str:
        """Return the text of a marker."""
        return self._texts[token]

    def split(self, text: str) -> list[Segment]:
        """Cut *text* at its markers: leftmost first, the longest where several begin."""
        segments: list[Segment] = []
        done = 0
        for start, end in self._occurrences(text):
            if start < done:
                continue
            segments += [text[done:start]] if start > done else []
            segments.append(self._ids[text[start:end]])
            done = end
        return segments + ([text[done:]] if done < len(text) else [])

    def starts(self, text: str) -> list[int]:
        """Return where a marker begins in *text*, also inside another."""
        return [start for start, _ in self._occurrences(text)]

    def shield(self, texts: Sequence[str], *, avoid: str) -> tuple[list[str], dict[int, str]]:
        """Return *texts* without any marker in them, and how to undo that (for ``str.translate``).

        The first character of each occurrence is replaced by a stand-in that no text here has, so lengths
        stay the same, and a template that trims or counts does what it would have done.

        Args:
            avoid: text whose characters are no stand-ins either (the template's source).

        Raises:
            BadRequest: the texts use every code point that could stand in.
        """
        starts = [self.starts(text) for text in texts]
        shielded = {text[start] for text, found in zip(texts, starts, strict=True) for start in found}
        if not shielded:
            return list(texts), {}
        used = set(avoid).union(*texts, *self._ids)
        stand_ins = dict(zip(sorted(shielded), _unused(used, len(shielded)), strict=True))
        results = []
        for text, found in zip(texts, starts, strict=True):
            characters = list(text)
            for start in found:
                characters[start] = stand_ins[text[start]]
            results.append("".join(characters))
        return results, {ord(stand_in): character for character, stand_in in stand_ins.items()}

    def _occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        if self._first is None:
            return
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths[match[0]]:
                if text[start : start + length] in self._ids:
                    yield start, start + length
                    break


def _unused(used: Collection[str], count: int) -> list[str]:
    free = (chr(point) for block in _PRIVATE_USE for point in block if chr(point) not in used)
    found = [character for character, _ in zip(free, range(count), strict=False)]
    if len(found) < count:
        raise BadRequest(
            "the text uses every private-use character of Unicode; none is left to quote it with"
        )
    return found


def join(*parts: Iterable[Segment]) -> list[Segment]:
    """Return the parts one after another, with neighbouring runs of text made one."""
    joined: list[Segment] = []
    for part in parts:
        for segment in part:
            last = joined[-1] if joined else None
            if isinstance(last, str) and isinstance(segment, str):
                joined[-1] = last + segment
            elif segment != "":
                joined.append(segment)
    return joined
