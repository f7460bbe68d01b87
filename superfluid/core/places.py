"""Where KV lives: the sequences of a worker's pool, which of them a lane uses, and which tokens each one holds.

Two facts of the engine shape this module (see ``docs/engine.md``): a micro-batch takes only *consecutive ascending*
sequence ids, so lanes that are not neighbours run as separate graphs; and moving a sequence costs time in proportion
to its tokens. So a job keeps the sequence in which its session's KV already lies when that one touches the range of
running lanes, and otherwise its KV is copied to one that does.

A match is on token ids only.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from superfluid.core.ids import TokenIds
from superfluid.core.plan import Move, MoveKind


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


def common_prefix(a: TokenIds, b: TokenIds, limit: int) -> int:
    """Length of the longest common prefix of *a* and *b*, at most *limit*.

    Binary search over memory comparisons: the streams are thousands of ids long, and a loop over them in Python would
    cost more than the prefill of a few tokens.
    """
    low, high = 0, min(len(a), len(b), limit)
    left, right = memoryview(a), memoryview(b)
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def place(slots: Sequence[Slot], prompt: TokenIds, *, cold: bool = False) -> Placement:
    """Choose a sequence for a job, and how its KV gets there.

    Args:
        slots: All sequences, by id; at least one of them without a job.
        prompt: The job's whole token stream. At least its last position is always computed, since the engine keeps
            no logits.
        cold: Use no kept KV (it could not be cut where this job needs it).
    """
    source, shared = (None, 0) if cold else _longest(slots, prompt)
    target = _target(slots, source)
    if source is target:
        return Placement(seq=target.seq, start=shared, moves=())
    moves = _evacuate(slots, target, spare=source)
    if source is None:
        moves.append(Move(kind=MoveKind.CLEAR, seq=target.seq))
        return Placement(seq=target.seq, start=0, moves=tuple(moves))
    moves.append(Move(kind=MoveKind.COPY, seq=source.seq, dst=target.seq, n=shared))
    if source.job is None and shared == source.held:
        # All of it goes on in the lane, so the copy left behind would only take room from others.
        moves.append(Move(kind=MoveKind.CLEAR, seq=source.seq))
    return Placement(seq=target.seq, start=shared, moves=tuple(moves))


def carry_out(slots: Sequence[Slot], moves: Sequence[Move]) -> None:
    """Change the book as the worker will change the pool."""
    for move in moves:
        slot = slots[move.seq]
        match move.kind:
            case MoveKind.COPY:
                target = slots[move.dst]
                target.stream = slot.stream[: move.n]
                target.held = move.n
                target.used = slot.used
            case MoveKind.TRIM:
                slot.held = min(slot.held, move.n)
            case MoveKind.CLEAR:
                slot.clear()


def _longest(slots: Sequence[Slot], prompt: TokenIds) -> tuple[Slot | None, int]:
    """The sequence with the longest prefix of *prompt*; a kept one wins over a running one of equal length."""
    best: Slot | None = None
    shared = 0
    for slot in slots:
        length = common_prefix(slot.stream, prompt, min(slot.held, len(prompt) - 1))
        if length > shared or (length == shared > 0 and best is not None and best.job is not None):
            best, shared = slot, length
    return best, shared


def _target(slots: Sequence[Slot], source: Slot | None) -> Slot:
    """A sequence without a job that keeps the running range contiguous; the source itself where it qualifies."""
    running = [slot.seq for slot in slots if slot.job is not None]
    idle = [slot for slot in slots if slot.job is None]
    if running:
        low, high = min(running), max(running)
        inside = [slot for slot in idle if low < slot.seq < high]
        idle = inside or [slot for slot in idle if slot.seq in (low - 1, high + 1)]
    if source is not None and source in idle and source.job is None:
        return source
    return min(idle, key=_eviction_key)


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
