"""Which sequence a job gets, and how its KV comes there.

Two facts of the engine shape this module (see ``docs/engine.md``): a micro-batch takes only *consecutive ascending*
sequence ids, so lanes that are not neighbours run as separate graphs; and moving a sequence costs time in proportion
to its tokens. So a job keeps the sequence in which its session's KV already lies when that one touches the range of
running lanes, and otherwise its KV is copied to one that does. What a lane displaces moves to a sequence that is
empty or was not used for longer, and what that one held to host memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from superfluid.core.cache import Cache
from superfluid.core.entry import Entry, Found, Place
from superfluid.core.plan import Move, MoveKind

COPY_GAIN: Final = 256
"""A sequence is copied when that spares at least one prompt row for each so many positions it holds, since a copy
moves all of them. Measured on a CPU: a row computes in 7 ms, a position is copied in 8 us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job goes: its sequence, what is moved first, and how many positions it need not compute.

    Attributes:
        exact: How many of them were computed exactly.
        source: The entry of host memory that they come from; 0 for none.
    """

    seq: int
    start: int
    exact: int = 0
    moves: tuple[Move, ...] = ()
    source: int = 0


def place(cache: Cache, found: Found) -> Placement:
    """Choose a sequence for a job, and change the books as the moves will change the pool.

    A job that goes on where an idle sequence ends takes that sequence over. One that only shares a beginning with it (a
    fork, another session with the same system prompt) gets a copy, so that the session it belongs to stays warm.

    Args:
        found: What the pool and host memory hold of the job's prompt. At least one sequence is without a job.
    """
    source, shared = found.entry, found.length
    near = _near(cache.slots)
    if source is not None and source in near and source.held - shared <= 1:
        # The one position that a hit of the whole prompt computes again is no loss.
        return Placement(seq=source.key, start=shared, exact=min(source.exact, shared))
    pinned = cache.pinned()
    target = min(near, key=lambda slot: _order(slot, pinned))
    if source is target:
        # Cut where it lies; what lies beyond the cut goes elsewhere, where there is room.
        exact = min(source.exact, shared)
        moves = _empty(cache, target, pinned)
        return Placement(seq=target.key, start=shared, exact=exact, moves=tuple(moves))
    if source is None or shared * COPY_GAIN < source.held:
        moves = [*_empty(cache, target, pinned), Move(kind=MoveKind.CLEAR, seq=target.key)]
        return Placement(seq=target.key, start=0, moves=tuple(moves))
    source.promises += 1
    moves = [*_empty(cache, target, pinned), _transfer(cache, target, source, shared)]
    source.promises -= 1
    if source.place is Place.POOL and source.idle and source.held - shared <= 1:
        # All of it goes on in the lane, so the copy left behind would only take room from others.
        cache.clear(source)
        moves.append(Move(kind=MoveKind.CLEAR, seq=source.key))
    return Placement(
        seq=target.key,
        start=shared,
        exact=target.exact,
        moves=tuple(moves),
        source=source.key if source.place is Place.HOST else 0,
    )


def _transfer(cache: Cache, target: Entry, source: Entry, n: int) -> Move:
    cache.seed(target, source, n)
    if source.place is Place.HOST:
        return Move(kind=MoveKind.LOAD, seq=target.key, n=n, entry=source.key)
    return Move(kind=MoveKind.COPY, seq=source.key, dst=target.key, n=n)


def _near(slots: Sequence[Entry]) -> list[Entry]:
    """The sequences without a job that close a gap of the running range, or else touch it."""
    running = [slot.key for slot in slots if slot.job is not None]
    idle = [slot for slot in slots if slot.job is None]
    if not running:
        return idle
    low, high = min(running), max(running)
    inside = [slot for slot in idle if low < slot.key < high]
    return inside or [slot for slot in idle if slot.key in (low - 1, high + 1)]


def _order(slot: Entry, pinned: dict[int, int]) -> tuple[bool, bool, int, int]:
    """Empty sequences first, then the one that was not used for longest, pinned ones last; ties by id."""
    return (slot.held > 0, slot.key in pinned, slot.used, slot.key)


def _empty(cache: Cache, target: Entry, pinned: dict[int, int]) -> list[Move]:
    """Give up *target* in the books: what it holds goes to an idle sequence that is empty or was used less recently, or
    else to host memory, unless something else holds as much."""
    if not target.held:
        return cache.demote(target)
    others = [slot for slot in cache.slots if slot.idle and slot is not target and not slot.promises]
    victim = min(others, key=lambda slot: _order(slot, pinned), default=None)
    if victim is None or _order(victim, pinned) >= _order(target, pinned) or cache.covered(target):
        return cache.demote(target)
    moves = cache.demote(victim)
    cache.seed(victim, target, target.held)
    moves.append(Move(kind=MoveKind.COPY, seq=target.key, dst=victim.key, n=target.held))
    cache.clear(target)
    return moves
