"""Prompts of exact lengths that no cache knows: prose of random words, as ids of the model's own vocabulary.

Prose and not random ids, because a model goes on with prose for as long as it is asked to, and its choices are neither
certain nor flat there.
"""

import random

from superfluid.worker.llama.models import find_model
from superfluid.worker.llama.vocab import Vocabulary

_WHO = (
    "the keeper",
    "a young sailor",
    "my neighbour",
    "the old doctor",
    "her brother",
    "the captain",
    "the baker",
)
_DID = (
    "found",
    "repaired",
    "forgot",
    "carried",
    "described",
    "sold",
    "painted",
    "followed",
    "measured",
    "counted",
)
_WHAT = (
    "a lamp",
    "the bridge",
    "two letters",
    "an island",
    "the clock",
    "a garden",
    "seven birds",
    "the engine",
)
_WHEN = (
    "in the morning",
    "before the storm",
    "last winter",
    "without a word",
    "near the harbour",
    "at midnight",
)
_LINK = (
    "Then",
    "Later",
    "After that",
    "Because of this",
    "Meanwhile",
    "Nobody knew why, but",
    "As the letter says,",
)

_SENTENCE_TOKENS = 8
"""At least so many tokens a sentence."""


class Prompts:
    """Makes prompts for one model. The same *dice* give the same prompts."""

    def __init__(self, model: str, dice: random.Random) -> None:
        self._vocabulary = Vocabulary.load(find_model(model))
        self.dice = dice

    def close(self) -> None:
        """Release the vocabulary."""
        self._vocabulary.close()

    def ids(self, text: str) -> list[int]:
        """A text as ids; what looks like a marker of the chat template is one."""
        return self._vocabulary.tokenize(text, parse_special=True)

    def prose(self, tokens: int) -> list[int]:
        """So many ids of prose."""
        dice = self.dice
        # The number at the start tells two prompts apart from their first tokens on.
        parts = [f"{dice.randrange(10**9)}:"]
        for _ in range(tokens // _SENTENCE_TOKENS + 1):
            who, did, what, when = (dice.choice(words) for words in (_WHO, _DID, _WHAT, _WHEN))
            parts.append(f"{dice.choice(_LINK)} {who} {did} {what} {when}, {dice.randrange(2, 99)} times.")
        ids = self.ids(" ".join(parts))
        assert len(ids) >= tokens
        return ids[:tokens]
