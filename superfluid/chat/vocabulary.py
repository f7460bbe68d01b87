"""What the text side needs of a model's vocabulary.

The llama.cpp implementation lives in ``superfluid.worker.llama``; this package sees the protocol only, so
that it stays pure and testable without a model.
"""

from typing import Protocol


class Vocabulary(Protocol):
    """A model's tokenizer and the metadata of its file that concern text.

    Everything here is fixed for the life of the object, and every call is a pure function of its arguments.
    Two vocabularies of the same model file answer alike, in every process.
    """

    @property
    def n_tokens(self) -> int:
        """Number of tokens: legal ids are ``0 .. n_tokens - 1``."""

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence token, or None when the model has none."""

    @property
    def eos_id(self) -> int | None:
        """The end-of-sequence token, or None when the model has none."""

    @property
    def add_bos(self) -> bool:
        """Whether the model's metadata asks that a sequence begins with ``bos_id``."""

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every id that ends a generation (end of turn, end of text, …)."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text of each control and user-defined token, to its id; the same object at every call.

        The texts are never empty, and are what ``tokenize(..., parse_special=True)`` matches.
        """

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's own chat template, or None when the file carries none."""

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Turn *text* into ids. Never adds a BOS or EOS token.

        Args:
            text: well-formed Unicode (no lone surrogates).
            parse_special: whether the text of a control token becomes that token. False treats it as
                ordinary text. (llama.cpp turns the text of *user-defined* tokens into them either way;
                ``superfluid.chat`` knows and copes.)
        """

    def piece(self, token: int) -> bytes:
        """The bytes that *token* stands for, control tokens included (their text).

        Args:
            token: an id in ``0 .. n_tokens - 1``; anything else raises ``IndexError``.
        """
