"""The text of a reply while it is generated: token ids in, whole code points out.

A token is a piece of bytes, not of text: an emoji may take three tokens. What is shown is cut at code points,
and the bytes of an unfinished one wait here. The ids in the log are untouched by any of this.
"""

import codecs
from collections.abc import Iterable

from superfluid.chat.vocabulary import Vocabulary

_UNFINISHED_BYTES = 3
"""Longest start of a UTF-8 sequence that is not yet a whole one (RFC 3629: at most four bytes make one)."""


class Detokenizer:
    """Turns the ids of one reply into text, piece by piece.

    End-of-generation ids and control tokens give no text. Bytes that can never become UTF-8 give U+FFFD,
    exactly as Python's incremental decoder with ``errors="replace"`` does, but never while more bytes may
    complete them.

    Args:
        vocabulary: gives each token's bytes.
        pending: the held-back bytes of the part of the reply that came before (see ``resume``).
    """

    def __init__(self, vocabulary: Vocabulary, pending: bytes = b"") -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.setstate((pending, 0))

    @classmethod
    def resume(cls, vocabulary: Vocabulary, ids: Iterable[int]) -> "Detokenizer":
        """Return a detokenizer that goes on where the reply with these ids was cut.

        The text of *ids* has been given before; only the bytes that were held back are taken over.
        """
        return cls(vocabulary, pending_tail(_text_bytes(vocabulary, token) for token in ids))

    @property
    def pending(self) -> bytes:
        """The bytes held back: the start of a code point that is not whole yet, at most three."""
        return self._decoder.getstate()[0]

    def feed(self, ids: Iterable[int]) -> str:
        """Return the text that *ids* complete."""
        data = b"".join(_text_bytes(self._vocabulary, token) for token in ids)
        return self._decoder.decode(data)

    def finish(self) -> str:
        """End the text: an unfinished code point, if there is one, is shown as one U+FFFD.

        Its bytes stay in the recorded ids: a reply that goes on later starts from ``resume``, not from here.
        """
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def pending_tail(pieces: Iterable[bytes]) -> bytes:
    """Return what a decoder would hold back after all *pieces*: the start of a code point, if any."""
    tail = b""
    for piece in pieces:
        # A leading byte always starts anew, and no unfinished sequence is longer than this: what came earlier
        # cannot change what is held back.
        tail = (tail + piece)[-_UNFINISHED_BYTES:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(tail)
    return decoder.getstate()[0]


def _text_bytes(vocabulary: Vocabulary, token: int) -> bytes:
    """Return the bytes that *token* adds to the text: none for end-of-generation and control tokens."""
    piece = vocabulary.piece(token)
    if token in vocabulary.eog_ids:
        return b""
    text = piece.decode(errors="replace")
    if vocabulary.special_tokens.get(text) == token and vocabulary.tokenize(text) != [token]:
        # The vocabulary lists control and user-defined tokens together. A user-defined one (a tag, a run of
        # spaces) is ordinary text to the tokenizer, and so it is to the reader.
        return b""
    return piece
