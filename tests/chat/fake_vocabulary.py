"""A small deterministic tokenizer that cuts text as llama.cpp's does: special tokens first, then merges.

Ids 0 to 255 are bytes. Words follow: text is matched greedily, longest word first, so a cut in the wrong place
changes ids. Special tokens come last.
"""

from collections.abc import Iterable, Sequence

WORDS = (
    " the", "the", "user", "assistant", "system", "tool", "\n\n", ".\n", "\n ", "  ", "<|", "|>", "<|im",
    "_end|>", "im_start", ">\n", "ab", "abc", "user\n", "r\nab", "\nab", "[I", "NST]", "INST", "] ", " [",
    "think", "</", "é", "€",
)  # fmt: skip


class FakeVocabulary:
    """Implements ``superfluid.chat.vocabulary.Vocabulary``."""

    def __init__(
        self,
        *,
        control: Sequence[str] = (),
        user_defined: Sequence[str] = (),
        bos: str | None = None,
        eos: str | None = None,
        add_bos: bool = False,
        eog: Iterable[str] = (),
        chat_template: str | None = None,
        adds_space: bool = False,
        swallows_left: Iterable[str] = (),
        swallows_right: Iterable[str] = (),
    ) -> None:
        self._pieces = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
        self.special_tokens = {}
        for text in (*control, *user_defined):
            self.special_tokens[text] = len(self._pieces)
            self._pieces.append(text.encode())
        self._words = {piece: token for token, piece in enumerate(self._pieces[: 256 + len(WORDS)])}
        self._longest = max(map(len, self._words))
        self._control = frozenset(control)
        self.control_ids = frozenset(self.special_tokens[text] for text in control)
        self.n_tokens = len(self._pieces)
        self.bos_id = None if bos is None else self.special_tokens[bos]
        self.eos_id = None if eos is None else self.special_tokens[eos]
        self.add_bos = add_bos
        self.eog_ids = frozenset(self.special_tokens[text] for text in eog)
        self.chat_template = chat_template
        self._adds_space = adds_space
        self._swallows_left = frozenset(swallows_left)
        self._swallows_right = frozenset(swallows_right)

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        ids: list[int] = []
        after_special = True
        for fragment in self._partition(text, parse_special):
            if isinstance(fragment, int):
                ids.append(fragment)
                after_special = True
            else:
                space = " " if self._adds_space and after_special else ""
                ids += self._merge((space + fragment).encode())
                after_special = False
        return ids

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise IndexError(token)
        return self._pieces[token]

    def _partition(self, text: str, parse_special: bool) -> list[int | str]:
        fragments: list[int | str] = [text] if text else []
        for special in sorted(self.special_tokens, key=len, reverse=True):
            if special in self._control and not parse_special:
                continue
            cut: list[int | str] = []
            for fragment in fragments:
                cut += [fragment] if isinstance(fragment, int) else self._cut(fragment, special)
            fragments = cut
        return fragments

    def _cut(self, fragment: str, special: str) -> list[int | str]:
        parts = fragment.split(special)
        cut: list[int | str] = []
        for index, part in enumerate(parts):
            if index:
                cut.append(self.special_tokens[special])
                part = part.lstrip() if special in self._swallows_right else part
            if index < len(parts) - 1 and special in self._swallows_left:
                part = part.rstrip()
            cut += [part] if part else []
        return cut

    def _merge(self, data: bytes) -> list[int]:
        ids = []
        at = 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 0, -1):
                token = self._words.get(data[at : at + length])
                if token is not None:
                    ids.append(token)
                    at += length
                    break
        return ids
