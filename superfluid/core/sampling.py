"""Sampling: its parameters, and the draw that belongs to a position of a token stream.

The draw for a token is a pure function of the seed and of how many tokens stand before it in the session's
stream. It does not depend on how the reply was cut into plans, on a continuation after a kill, or on the
neighbours in the batch, so a seeded session draws the same whatever happened to it.
"""

from dataclasses import dataclass
from typing import Final

GREEDY_BELOW: Final = 1e-4
"""Temperatures below this are greedy. The distribution has long collapsed to its maximum there, and dividing
logits by less overflows the 32-bit floats that llama.cpp computes with."""

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
"""The increment of splitmix64: 2**64 divided by the golden ratio, made odd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. The values are those of ``GenParams``, checked where they came in.

    Args:
        temperature: 0 is greedy.
        top_p: keep the smallest set of candidates that holds this much probability; 1 turns it off.
        min_p: drop candidates below this share of the most likely one's probability; 0 turns it off.
        top_k: keep this many candidates; 0 turns it off.
        seed: unsigned, 64 bits.
    """

    temperature: float
    top_p: float
    min_p: float
    top_k: int
    seed: int

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken, so that no draw is needed."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def draw(seed: int, position: int) -> float:
    """The uniform number in [0, 1) for the token that has *position* tokens before it in its stream.

    Two rounds of the splitmix64 finaliser (Steele, Lea, Flood 2014), the seed first and then the position, so
    that neighbouring seeds and neighbouring positions are both unrelated. The value keeps 53 bits: every
    result is an exact double. Recorded sessions depend on it: it never changes.
    """
    mixed = _mix((_mix((seed + _GAMMA) & _MASK) + (position + 1) * _GAMMA) & _MASK)
    return (mixed >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
