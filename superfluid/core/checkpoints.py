"""Where a model that cannot cut keeps checkpoints.

The KV of such a model (a sliding window, recurrent layers) is good for exactly the positions that it holds. A prompt that
shares only a part of them is computed from the start, unless its state was kept at the place where the two part.
Conversations part where messages end, mostly near the end: there the checkpoints lie, ever farther apart before it.
"""

from collections.abc import Iterable
from typing import Final

from superfluid.core.cache import Cache
from superfluid.core.job import Job
from superfluid.core.plan import Move

LEAST_DISTANCE: Final = 64
"""Positions between the last two checkpoints of a prompt: computing that many again costs less than half a second."""

GROWTH: Final = 2
"""Each distance is so many times the one behind it: a long conversation has few checkpoints."""


def stops(start: int, length: int, boundaries: Iterable[int]) -> list[int]:
    """The positions at which the prefill of a prompt pauses for a checkpoint, ascending.

    Args:
        start: Positions that are held already.
        length: Of the prompt.
        boundaries: Ascending positions at which messages end.

    Returns:
        The last position but one, since the same prompt again needs the logits of its last; and boundaries before it.
    """
    found: list[int] = []
    last = length - 1
    if last > start:
        found.append(last)
    distance = LEAST_DISTANCE
    for boundary in sorted(boundaries, reverse=True):
        if not start < boundary < last:
            continue
        if last - boundary >= distance:
            found.append(boundary)
            last, distance = boundary, distance * GROWTH
    return found[::-1]


def save(cache: Cache, running: Iterable[Job]) -> list[Move]:
    """Keep the state of the jobs whose prefill has paused for that; returns the moves that do it."""
    moves: list[Move] = []
    for job in running:
        if job.stops and job.stored >= job.stops[0]:
            job.stops = [stop for stop in job.stops if stop > job.stored]
            slot = cache.slots[job.seq]
            if slot.held == job.stored and not cache.covered(slot):
                moves.extend(cache.save(slot)[1])
    return moves
