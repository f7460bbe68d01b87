"""Where KV lives: the sequences of a worker's pool, which of them a lane uses, and which tokens each one holds.

Two facts of the engine shape this module (see ``docs/engine.md``): a micro-batch takes only *consecutive ascending*
sequence ids, so lanes that are not neighbours run as separate graphs; and moving a sequence costs time in proportion
to its tokens. So a job keeps the sequence in which its session's KV already lies when that one touches the range of
running lanes, and otherwise its KV is copied to one that does. What a lane displaces moves to a sequence that is
empty or was not used for longer.

A match is on token ids only.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from superfluid.core.ids import TokenIds, common_prefix
from superfluid.core.plan import Move, MoveKind

COPY_GAIN: Final = 256
"""A sequence is copied when that spares at least one prompt row for each so many positions it holds, since a copy
moves all of them. Measured on a CPU: a row computes in 7 ms, a position is copied in 8 us."""


@dataclass(slots=True, kw_only=True)
class Slot:
    """One sequence of the pool.

    Attributes:
        stream: Token ids; the first ``held`` of them are in the KV cache.
        held: Positions that the KV cache really holds.
        job: The job whose lane this is; None for a kept or empty sequence.
        used: When it was last a lane, in ticks; the eviction order of kept sequences.
    """

    seq: int
    stream: TokenIds = field(default_factory=lambda: array("I"))
    held: int = 0
    job: int | None = None
    used: int = 0

    def clear(self) -> None:
        """Forget what the sequence holds."""
        self.stream = array("I")
        self.held = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a job goes: its sequence, what is moved first, and how many positions it need not compute."""

    seq: int
    start: int
    moves: tuple[Move, ...]


def place(slots: Sequence[Slot], prompt: TokenIds, *, cold: bool = False) -> Placement:
    """Choose a sequence for a job, and how its KV gets there.

    A job that goes on where a kept sequence ends takes that sequence over. One that only shares a beginning with it (a
    fork, another session with the same system prompt) gets a copy, so that the session it belongs to stays warm.

    Args:
        slots: All sequences, by id; at least one of them without a job.
        prompt: The job's whole token stream. At least its last position is always computed, since the engine keeps
            no logits.
        cold: Use no kept KV (it could not be cut where this job needs it).
    """
    source, shared = (None, 0) if cold else _longest(slots, prompt)
    # The one position that a hit of the whole prompt computes again is no loss.
    goes_on = source is not None and source.job is None and source.held - shared <= 1
    near = _near(slots)
    if source is not None and goes_on and any(slot is source for slot in near):
        return Placement(seq=source.seq, start=shared, moves=())
    target = min(near, key=_eviction_key)
    moves = _evacuate(slots, target, spare=source)
    if source is target:
        return Placement(seq=target.seq, start=shared, moves=tuple(moves))
    if source is None or shared * COPY_GAIN < source.held:
        moves.append(Move(kind=MoveKind.CLEAR, seq=target.seq))
        return Placement(seq=target.seq, start=0, moves=tuple(moves))
    moves.append(Move(kind=MoveKind.COPY, seq=source.seq, dst=target.seq, n=shared))
    if goes_on:
        # All of it goes on in the lane, so the copy left behind would only take room from others.
        moves.append(Move(kind=MoveKind.CLEAR, seq=source.seq))
    return Placement(seq=target.seq, start=shared, moves=tuple(moves))


def carry_out(slots: Sequence[Slot], moves: Sequence[Move]) -> None:
    """Change the book as the worker will change the pool."""
    for move in moves:
        slot = slots[move.seq]
        if move.kind is MoveKind.COPY:
            target = slots[move.dst]
            target.stream = slot.stream[: move.n]
            target.held = move.n
            target.used = slot.used
        else:
            slot.clear()


def _longest(slots: Sequence[Slot], prompt: TokenIds) -> tuple[Slot | None, int]:
    """The sequence with the longest prefix of *prompt*: among equals a kept one before a running one, and then the
    one that holds the least beyond it, which is the session's own before that of a longer relative."""
    best: Slot | None = None
    best_key = (0, False, 0)
    for slot in slots:
        length = common_prefix(slot.stream, prompt, min(slot.held, len(prompt) - 1))
        key = (length, slot.job is None, -slot.held)
        if length and key > best_key:
            best, best_key = slot, key
    return best, best_key[0]


def _near(slots: Sequence[Slot]) -> list[Slot]:
    """The sequences without a job that close a gap of the running range, or else touch it."""
    running = [slot.seq for slot in slots if slot.job is not None]
    idle = [slot for slot in slots if slot.job is None]
    if not running:
        return idle
    low, high = min(running), max(running)
    inside = [slot for slot in idle if low < slot.seq < high]
    return inside or [slot for slot in idle if slot.seq in (low - 1, high + 1)]


def _eviction_key(slot: Slot) -> tuple[bool, int, int]:
    """Empty sequences first, then the one that was not used for longest; ties by id."""
    return (slot.held > 0, slot.used, slot.seq)


def _evacuate(slots: Sequence[Slot], target: Slot, *, spare: Slot | None) -> list[Move]:
    """Save what *target* keeps, when something used less recently can give way to it."""
    if target.held == 0:
        return []
    others = [slot for slot in slots if slot.job is None and slot is not target and slot is not spare]
    if not others:
        return []
    victim = min(others, key=_eviction_key)
    if _eviction_key(victim) >= _eviction_key(target):
        return []
    return [Move(kind=MoveKind.COPY, seq=target.seq, dst=victim.seq, n=target.held)]
