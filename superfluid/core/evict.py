"""Which cached prefixes go when room is needed: a choice among candidates, carried out by others.

What may not go (live lanes, files in use) is not offered. The policy is one sort key; the choice does not know it.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something whose KV can go.

    Attributes:
        key: The caller's name for it.
        size: What its going frees, in the unit of the need: tokens, or bytes.
        used: When it was last used; the unit is the caller's, lower is longer ago.
        pinned: The order of the oldest pin that it serves (`Pin.order`); None if it serves none.
        redundant: All it holds is held elsewhere too. Of two that hold the same, only one may say so, or both would go.
    """

    key: int
    size: int
    used: int
    pinned: int | None = None
    redundant: bool = False


def eviction_key(candidate: Candidate) -> tuple[int, int, int]:
    """Candidates sorted by it go from the first on: what loses nothing, then what was not used for longest, and pinned
    ones only then, the oldest pin first. Ties by key.

    A pinned one is no sooner gone for being redundant: that other copy may have no pin, and go next.
    """
    if candidate.pinned is not None:
        return (2, candidate.pinned, candidate.key)
    return (0 if candidate.redundant else 1, candidate.used, candidate.key)


def victims(candidates: Iterable[Candidate], need: int) -> tuple[Candidate, ...]:
    """The candidates that have to go so that *need* is free, in the order in which they go.

    None of them could stay: where a large one has to go in the end, small ones before it that do not matter any more are
    spared. All (but those of no size) go when together they do not free enough; the caller sees it by their sum.
    """
    chosen: list[Candidate] = []
    freed = 0
    for candidate in sorted(candidates, key=eviction_key):
        if freed >= need:
            break
        if candidate.size > 0:
            chosen.append(candidate)
            freed += candidate.size
    spare = freed - need
    gone: list[Candidate] = []
    for candidate in reversed(chosen):  # those that are to stay longest are spared first
        if candidate.size <= spare:
            spare -= candidate.size
        else:
            gone.append(candidate)
    return tuple(reversed(gone))


def to_evict(used: int, cells: int, high_pct: int, low_pct: int) -> int:
    """The watermark rule: how many of the *used* cells have to be freed.

    None below the high mark; from it on, down to the low mark. Between the two lies what can be filled before the next
    eviction, so that not every admission needs one.

    Args:
        used: Cells that hold something, live lanes included.
        cells: All cells of the pool.
        high_pct, low_pct: The marks in percent of *cells*.
    """
    if used * 100 < cells * high_pct:
        return 0
    return max(0, used - cells * low_pct // 100)
