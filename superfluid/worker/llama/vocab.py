"""A model's vocabulary and the metadata that concern text: the daemon's view of the model file, without weights."""

import ctypes
import struct
from pathlib import Path
from typing import Final

import xxhash

from superfluid.worker.llama.library import lib, tokenize_briefly
from superfluid.worker.llama.model import Model

_CONTROL: Final = 1 << 3
_USER_DEFINED: Final = 1 << 4
"""Bits of ``llama_token_attr``."""

_BRIEF_BYTES: Final = 1024
"""Up to this length a text is tokenised in well under a millisecond, without giving up the interpreter's lock."""

_SHORT_CHARACTERS: Final = 16
_SHORT_TEXTS: Final = 1024
"""Texts up to this length are remembered, so many at most: a template's scaffold is the same few in every message, and
one call of llama.cpp's tokenizer costs 30 us however short its text is."""

_PIECE_BYTES: Final = 64
"""First guess of a piece's length; longer ones are read again with their own."""


class Vocabulary:
    """Tokenizer and text metadata of a model file; implements ``superfluid.chat.vocabulary.Vocabulary``.

    Loading reads every token once (a tenth of a second for 50,000), and tokenising a megabyte can take two seconds:
    call both in a thread where others wait.

    Every call but ``close`` may be made from any thread, also while others make one: llama.cpp only reads the vocabulary
    (its functions take it as const, and a call of the tokenizer keeps its state on its own stack), and what is remembered
    here is put into dictionaries one finished value at a time.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._handle = handle = model.vocab
        self.n_tokens = model.n_vocab
        self.metadata = model.metadata
        self.n_ctx_train = model.n_ctx_train
        self.chat_template = model.metadata.get("tokenizer.chat_template") or None
        self.bos_id = self._maybe_id(lib.llama_vocab_bos(handle))
        self.eos_id = self._maybe_id(lib.llama_vocab_eos(handle))
        self.add_bos = bool(lib.llama_vocab_get_add_bos(handle)) and self.bos_id is not None
        self.eog_ids = model.eog_ids()
        self.special_tokens, self.digest = self._read_tokens()
        self._short: dict[tuple[str, bool], list[int]] = {}
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Load the vocabulary of the model file at *path*.

        Raises:
            ModelError: the file is no model; the error names path and cause.
        """
        return cls(Model(path, vocab_only=True))

    def close(self) -> None:
        """Free it. Calling it again does nothing."""
        self._model.close()

    def is_valid_id(self, token: int) -> bool:
        """Whether *token* is in the vocabulary. Any other id would make llama.cpp abort the process."""
        return 0 <= token < self.n_tokens

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Turn *text* into ids, without adding any.

        Args:
            text: well-formed Unicode; NUL is a character like others.
            parse_special: whether the text of a control token becomes that token.
        """
        if len(text) > _SHORT_CHARACTERS:
            return self._tokenize(text, parse_special=parse_special)
        key = (text, parse_special)
        known = self._short.get(key)
        if known is None:
            if len(self._short) >= _SHORT_TEXTS:
                self._short.clear()
            known = self._short[key] = self._tokenize(text, parse_special=parse_special)
        return known.copy()

    def _tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        data = text.encode()
        # A token stands for a byte at least, but some vocabularies put a space in front. The room is a power of two,
        # because ctypes makes a class of each length of array.
        room = 1 << (len(data) + 16).bit_length()
        add_special = False
        tokenize = tokenize_briefly if len(data) <= _BRIEF_BYTES else lib.llama_tokenize
        while True:
            ids = (ctypes.c_int32 * room)()
            count = tokenize(self._handle, data, len(data), ids, room, add_special, parse_special)
            if count >= 0:
                return ids[:count]
            room = -count  # that many there are

    def piece(self, token: int) -> bytes:
        """The bytes that *token* stands for, control tokens included (their text).

        Raises:
            IndexError: it is not in the vocabulary.
        """
        known = self._pieces.get(token)
        if known is not None:
            return known
        if not self.is_valid_id(token):
            raise IndexError(f"token {token} is not in the vocabulary of {self.n_tokens}")
        return self._pieces.setdefault(token, self._read_piece(token, _PIECE_BYTES))

    def _read_piece(self, token: int, room: int) -> bytes:
        buffer = ctypes.create_string_buffer(room)
        render_control, keep_spaces = True, 0
        length = lib.llama_token_to_piece(self._handle, token, buffer, room, keep_spaces, render_control)
        return buffer.raw[:length] if length >= 0 else self._read_piece(token, -length)

    def _maybe_id(self, token: int) -> int | None:
        return token if self.is_valid_id(token) else None

    def _read_tokens(self) -> tuple[dict[str, int], str]:
        """The special tokens' texts, and xxh3-128 over everything that decides how text becomes ids and back."""
        special = {}
        digest = xxhash.xxh3_128()
        handle = self._handle
        for token in range(self.n_tokens):
            text = lib.llama_vocab_get_text(handle, token) or b""
            attributes = lib.llama_vocab_get_attr(handle, token)
            score = lib.llama_vocab_get_score(handle, token)
            digest.update(struct.pack("<IfI", len(text), score, attributes) + text)
            if attributes & (_CONTROL | _USER_DEFINED) and text:
                special[text.decode(errors="replace")] = token
        # Merges and the pre-tokenizer are not to be had from llama.cpp one by one; the names in the metadata are.
        flags = (self.bos_id, self.eos_id, self.add_bos, sorted(self.eog_ids))
        names = sorted(item for item in self.metadata.items() if item[0].startswith("tokenizer.ggml."))
        digest.update(repr((flags, names)).encode())
        return special, digest.hexdigest()
