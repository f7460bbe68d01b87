"""Sampling parameters for people: defaults, since the wire has none and fills nothing in."""

import secrets
from typing import Final

from superfluid_protocol import GenParams

TEMPERATURE: Final = 0.7
TOP_P: Final = 0.95
MIN_P: Final = 0.05
TOP_K: Final = 40

SEED_BITS: Final = 53
"""Random seeds stay below 2**53, so that a page or a tool that reads the number as a double shows the same one."""


def sampling(
    *,
    temperature: float = TEMPERATURE,
    top_p: float = TOP_P,
    min_p: float = MIN_P,
    top_k: int = TOP_K,
    seed: int | None = None,
) -> GenParams:
    """Sampling parameters with this client's defaults.

    Args:
        temperature: 0 is greedy.
        top_p: Keep the likeliest tokens that together have this probability; 1 turns it off.
        min_p: Drop tokens less likely than this share of the likeliest one; 0 turns it off.
        top_k: Keep this many of the likeliest tokens; 0 turns it off.
        seed: Decides every draw, together with the position in the session; None picks one at random, which is in the
            result for whoever wants the same draws again.
    """
    return GenParams(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        top_k=top_k,
        seed=secrets.randbits(SEED_BITS) if seed is None else seed,
    )
