"""The books of everything that holds KV: lanes, kept sequences, host memory and park files.

A radix index of each place answers "what is the longest beginning of this prompt that need not be computed?", the
nearest place first. The index knows streams; an entry knows how much of its stream is really held, so that a prefix that
is still being computed is found but not used before it is there. A match is on token ids only, inside one namespace.

Every change of these books goes with an operation that a worker carries out; what the worker reports afterwards only
ever lowers a claim.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from superfluid.core.entry import Entry, Found, Place
from superfluid.core.evict import Candidate, to_evict, victims
from superfluid.core.ids import TokenIds
from superfluid.core.limits import MAX_HOST_ENTRIES
from superfluid.core.options import Pool
from superfluid.core.pins import Pins
from superfluid.core.plan import Move, MoveKind
from superfluid.core.prefix import PrefixIndex

LEAST_SAVED: Final = 16
"""Fewer positions are not worth an entry in host memory: a prompt of that many is computed in a tick."""

EQUALS: Final = 32
"""Entries outside of the pool that a search looks at among those that share as much of a prompt: behind one system prompt
there are thousands, and one serves as well as another."""

HOST_THINNED: Final = 64
"""So many entries of host memory go at once when there are too many: choosing them takes a look at all."""

NEAR: Final = (Place.POOL, Place.HOST)
"""The places in memory."""

FIRST_NUMBER: Final = 1 << 20
"""Entries beyond the pool are numbered from here; below it stand the pool's sequences."""


@dataclass(slots=True, kw_only=True)
class Cache:
    """All entries of one worker, and the park files.

    Args:
        sequences: Of the pool.
        pins: Whose prefixes go last.

    Attributes:
        slots: The pool's entries, by sequence.
        parked: Key of each session's park file.
        host_used: Bytes reserved in host memory, by so many entries as `host_count`.
        evictions: Entries that went for lack of room, by place.
    """

    sequences: int
    pins: Pins
    pool: Pool = field(default_factory=lambda: Pool(n_ctx=0))
    slots: list[Entry] = field(init=False)
    entries: dict[int, Entry] = field(init=False)
    parked: dict[int, int] = field(default_factory=dict)
    host_used: int = 0
    host_count: int = 0
    park_used: int = 0
    evictions: Counter[Place] = field(default_factory=Counter)
    _indexes: dict[tuple[int, Place], PrefixIndex] = field(default_factory=dict)
    _pinned: dict[int, int] | None = None
    _next: int = FIRST_NUMBER

    def __post_init__(self) -> None:
        self.slots = [Entry(key=seq) for seq in range(self.sequences)]
        self.entries = {slot.key: slot for slot in self.slots}

    # -- looking ------------------------------------------------------------------------------------

    def find(self, prompt: TokenIds, namespace: int = 0, *, exact: bool = False, near: bool = False) -> Found:
        """The best that is held of *prompt*, all but its last position: the engine keeps no logits, so that one is
        always computed. Among equals the nearest, then an idle one, then a lane that runs for longest, then the one that
        holds the least beyond it. So a burst is seeded from one lane, not each job from the one before it: a worker
        exports a source once a plan.

        Args:
            exact: Use only positions that were computed exactly.
            near: Use no park file.
        """
        best: Entry | None = None
        best_key = (0, 0, False, 0, 0)
        leader, pending = None, 0
        limit = len(prompt) - 1
        for place in NEAR if near else Place:
            for entry, shared in self._matches(prompt, namespace, place):
                if shared < best_key[0]:
                    break
                length = self.valid(entry, min(shared, limit), exact=exact)
                since = 0 if entry.idle else -entry.used
                rank = (length, -place, entry.idle, since, -entry.held)
                if length and rank > best_key:
                    best, best_key = entry, rank
                soon = self._soon(entry, min(shared, limit), exact=exact)
                if soon > pending:
                    leader, pending = entry.job, soon
        return Found(entry=best, length=best_key[0], leader=leader, pending=pending)

    def valid(self, entry: Entry, shared: int, *, exact: bool = False) -> int:
        """How many leading positions of an entry can be used by a prompt that shares *shared* of its tokens."""
        length = min(shared, entry.held)
        if exact:
            length = min(length, entry.exact)
        return length if self.pool.cuts_freely or length == entry.held else 0

    def _soon(self, entry: Entry, shared: int, *, exact: bool) -> int:
        """As `valid`, once the prefill that runs on an entry is done."""
        # One that cannot cut is beyond its prompt when that is done: the last checkpoint is at the position before.
        soon = min(shared, entry.target if self.pool.cuts_freely else entry.target - 1)
        if entry.target <= entry.held or (exact and entry.exact < entry.held):
            return 0
        return soon if self.pool.cuts_freely or soon > entry.held else 0

    def where(self, stream: TokenIds, namespace: int = 0) -> Iterator[tuple[Entry, int]]:
        """The entries that hold some of *stream*, with how many of its leading positions; the nearest place first."""
        for place in Place:
            for entry, shared in self._matches(stream, namespace, place):
                length = self.valid(entry, shared)
                if length:
                    yield entry, length

    def parked_file(self, session: int, stream: TokenIds) -> Entry | None:
        """The session's park file, if it holds a beginning of *stream*."""
        key = self.parked.get(session)
        if key is None:
            return None
        file = self.entries[key]
        # One that cannot be used holds nothing.
        return file if file.held and file.stream[: file.held] == stream[: file.held] else None

    def covered(self, entry: Entry) -> bool:
        """Whether something else near holds all that *entry* does."""
        return any(self._covers(other, entry, shared) for other, shared in self._others(entry))

    @property
    def cells(self) -> int:
        """Cells of the pool."""
        return self.sequences * self.pool.n_ctx

    def used_cells(self) -> int:
        """Cells of the pool that hold something."""
        return sum(slot.held for slot in self.slots)

    def _matches(self, stream: TokenIds, namespace: int, place: Place) -> Iterator[tuple[Entry, int]]:
        """The entries of a place that share leading tokens with *stream*, as (entry, how many), most of them first."""
        index = self._indexes.get((namespace, place))
        if index is not None:
            for key, shared in index.matches(stream, equals=None if place is Place.POOL else EQUALS):
                yield self.entries[key], shared

    def _others(self, entry: Entry) -> Iterator[tuple[Entry, int]]:
        stream = entry.stream[: entry.held]
        for place in NEAR:
            for other, shared in self._matches(stream, entry.namespace, place):
                if shared < entry.held:
                    break
                if other is not entry:
                    yield other, shared

    def _covers(self, other: Entry, entry: Entry, shared: int) -> bool:
        return self.valid(other, shared) >= entry.held and other.exact >= entry.exact

    def _redundant(self, entry: Entry) -> bool:
        """As `covered`, but of two that cover each other only one is."""
        return any(
            self._covers(other, entry, shared) and (other.held, other.key) > (entry.held, entry.key)
            for other, shared in self._others(entry)
        )

    # -- changing -----------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Tell the index of an entry whose stream is new or grew."""
        if entry.stream:
            at = (entry.namespace, entry.place)
            self._indexes.setdefault(at, PrefixIndex()).put(entry.key, entry.stream)
        else:
            self._unlist(entry)

    def clear(self, slot: Entry) -> None:
        """Forget what a sequence holds."""
        self._unlist(slot)
        slot.stream = array("I")
        slot.held = slot.exact = slot.target = 0

    def occupy(
        self, seq: int, job: int, stream: TokenIds, *, namespace: int, held: int, exact: int, used: int
    ) -> None:
        """A sequence is a job's lane now: it holds the first positions of the job's *stream*, and will hold all."""
        slot = self.slots[seq]
        self._unlist(slot)
        slot.namespace, slot.stream, slot.held, slot.exact = namespace, array("I", stream), held, exact
        slot.job, slot.target, slot.used = job, len(stream), used
        self.put(slot)

    def grow(self, slot: Entry, tokens: TokenIds, held: int, *, exact: bool) -> None:
        """A lane made *tokens* and computed its stream up to position *held*: exactly, or not."""
        slot.stream.extend(tokens)
        # What is computed exactly is exact only as long as all before it is: a lossy park file may lie there.
        if exact and slot.exact == slot.held:
            slot.exact = held
        slot.held = held
        if tokens:
            self.put(slot)

    def lower(self, seq: int, held: int) -> None:
        """A worker holds so many positions of a sequence. It may be more than the books claim, but of what, only they
        know."""
        slot = self.slots[seq]
        slot.held = min(held, slot.held)
        slot.exact = min(held, slot.exact)

    def seed(self, slot: Entry, source: Entry, length: int) -> None:
        """Make *slot* hold the first positions of *source*."""
        self._unlist(slot)
        slot.namespace = source.namespace
        slot.stream = source.stream[:length]
        slot.held, slot.exact, slot.used, slot.target = length, min(length, source.exact), source.used, 0
        self.put(slot)

    def new(self, place: Place, source: Entry, *, size: int, held: int) -> Entry:
        """Add an entry of what *source* holds."""
        entry = Entry(
            key=self._next,
            place=place,
            namespace=source.namespace,
            stream=source.stream[: max(held, source.held)],
            held=held,
            exact=min(held, source.exact),
            used=source.used,
            size=size,
        )
        self._next += 1
        self.entries[entry.key] = entry
        self.host_count += place is Place.HOST
        self._count(entry, size)
        self.put(entry)
        return entry

    def forget(self, entry: Entry) -> None:
        """Strike off an entry of host memory, or a park file."""
        self._unlist(entry)
        del self.entries[entry.key]
        self.host_count -= entry.place is Place.HOST
        self._count(entry, -entry.size)
        if entry.place is Place.PARK:
            del self.parked[entry.session]

    def resize(self, entry: Entry, size: int) -> None:
        """Correct an estimate."""
        self._count(entry, size - entry.size)
        entry.size = size

    def lose(self) -> None:
        """The worker is gone, with the pool and its host memory."""
        for slot in self.slots:
            self.clear(slot)
            slot.job, slot.promises, slot.used = None, 0, 0
        for entry in [entry for entry in self.entries.values() if entry.place is Place.HOST]:
            self.forget(entry)

    def _unlist(self, entry: Entry) -> None:
        if self._pinned is not None and entry.key in self._pinned:
            self._pinned = None
        at = (entry.namespace, entry.place)
        index = self._indexes.get(at)
        if index is not None and entry.key in index:
            index.remove(entry.key)
            if not index:
                del self._indexes[at]

    def _count(self, entry: Entry, size: int) -> None:
        if entry.place is Place.HOST:
            self.host_used += size
        else:
            self.park_used += size

    # -- room ---------------------------------------------------------------------------------------

    def save(self, slot: Entry) -> tuple[Entry | None, list[Move]]:
        """Keep what a sequence holds in host memory too.

        Returns:
            The new entry, or None when it is not worth it or there is no room; and the moves, those that made room
            included.
        """
        size = self.pool.size(slot.held)
        if slot.held < LEAST_SAVED or not size:
            return None, []
        moves = self.reserve(size)
        if moves is None:
            return None, []
        entry = self.new(Place.HOST, slot, size=size, held=slot.held)
        moves.append(Move(kind=MoveKind.SAVE, seq=slot.key, n=slot.held, entry=entry.key))
        return entry, moves

    def has_room(self, positions: int) -> bool:
        """Whether an entry of so many positions would find room in host memory."""
        size = self.pool.size(positions)
        stays = sum(e.size for e in self.entries.values() if e.place is Place.HOST and e.promises)
        return positions >= LEAST_SAVED and 0 < size <= self.pool.host_bytes - stays

    def demote(self, slot: Entry) -> list[Move]:
        """Give up a sequence whose room is needed: what nothing else holds goes to host memory. The caller overwrites
        or clears the sequence itself."""
        moves: list[Move] = []
        if slot.held:
            self.evictions[Place.POOL] += 1
            if not self.covered(slot):
                _, moves = self.save(slot)
        self.clear(slot)
        return moves

    def reserve(self, size: int) -> list[Move] | None:
        """Make room for an entry of host memory before there is one. None if that cannot be."""
        need = self.host_used + size - self.pool.host_bytes
        if need <= 0 and self.host_count < MAX_HOST_ENTRIES:
            return []
        offered = self._candidates(Place.HOST)
        going = victims(offered, need)
        if sum(victim.size for victim in going) < need:
            return None
        if self.host_count - len(going) >= MAX_HOST_ENTRIES:
            others = [replace(victim, size=1) for victim in offered if victim not in set(going)]
            going += victims(others, HOST_THINNED)
            if self.host_count - len(going) >= MAX_HOST_ENTRIES:
                return None
        return self._evict(going)

    def drop(self, entries: Iterable[Entry]) -> list[Move]:
        """Give up entries of host memory."""
        gone = list(entries)
        for entry in gone:
            self.forget(entry)
        return [Move(kind=MoveKind.DROP, entry=entry.key) for entry in gone]

    def relieve(self, high_pct: int, low_pct: int) -> list[Move]:
        """Bring the pool from its high watermark down to its low one, as far as idle sequences hold it."""
        moves: list[Move] = []
        need = to_evict(self.used_cells(), self.cells, high_pct, low_pct)
        for victim in victims(self._candidates(Place.POOL), need) if need else ():
            slot = self.slots[victim.key]
            moves.extend(self.demote(slot))
            moves.append(Move(kind=MoveKind.CLEAR, seq=slot.key))
        return moves

    def shrink(self, percent: int) -> list[Move]:
        """Give up a share of what host memory holds."""
        return self._evict(victims(self._candidates(Place.HOST), self.host_used * percent // 100))

    def _evict(self, going: Collection[Candidate]) -> list[Move]:
        self.evictions[Place.HOST] += len(going)
        return self.drop(self.entries[victim.key] for victim in going)

    def _candidates(self, place: Place) -> list[Candidate]:
        pinned = self.pinned()
        return [
            Candidate(
                key=entry.key,
                size=entry.held if place is Place.POOL else entry.size,
                used=entry.used,
                pinned=pinned.get(entry.key),
                redundant=self._redundant(entry),
            )
            for entry in self.entries.values()
            if entry.place is place and entry.idle and not entry.promises and (entry.held or entry.size)
        ]

    def pinned(self) -> dict[int, int]:
        """The entries that serve a pin best, each with the order of its oldest one. Looked for once, and again when one
        of them is given up or after `forget_pinned`: what comes to hold more of a pin meanwhile does it no harm."""
        if self._pinned is None:
            self._pinned = {}
            for pin in self.pins.protects():
                best = self._serving(pin.stream)
                if best is not None:
                    self._pinned.setdefault(best, pin.order)
        return self._pinned

    def forget_pinned(self) -> None:
        """Pins came or went, or entries hold more than they did."""
        self._pinned = None

    def _serving(self, stream: TokenIds) -> int | None:
        """The entry near that holds most of *stream*, in whatever namespace."""
        best = (0, 0, 0)
        for namespace, place in self._indexes:
            if place is Place.PARK:
                continue
            for entry, shared in self._matches(stream, namespace, place):
                if shared < best[0]:
                    break
                best = max(best, (self.valid(entry, shared), -place, entry.key))
        return best[2] if best[0] else None
