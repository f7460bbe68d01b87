"""The books of park files: which sessions are being sealed or read, and what has to go for the budget.

Sealing takes three steps: the sequence is saved to host memory (a move of a plan), the entry is written to the file
(an order, beside the ticks), and the file is booked when that is done. Until then the entry stays: what waits for a slow
disk is bounded by the budget of host memory, and beyond it sessions go without a new file. A file is read the other way
round, and becomes an entry of host memory like any other.

Files that cannot be used take room all the same: they are in the books too, without anything that could be found, and go
before all others.
"""

from dataclasses import dataclass, field
from typing import Final

from superfluid.core.cache import Cache
from superfluid.core.entry import Entry, Place
from superfluid.core.evict import Candidate, victims
from superfluid.core.ids import TokenIds
from superfluid.core.orders import FetchFile, Order, RemoveFile, SealFile
from superfluid.core.origin import Origin
from superfluid.core.plan import Move, MoveKind

LEAST_FETCHED: Final = 64
"""Positions that a file must spare: reading it takes as long as computing some."""

_NEVER: Final = -1
"""When a file was used that cannot be."""


@dataclass(slots=True, kw_only=True)
class _Fetch:
    """A file that is being read into an entry."""

    entry: Entry
    file: Entry


@dataclass(slots=True, kw_only=True)
class _Seal:
    """An entry that is being written to a file; of a session that is not *wanted* any more the file goes at once."""

    session: int
    entry: Entry
    name: str
    wanted: bool = True


@dataclass(slots=True, kw_only=True)
class Parking:
    """The park files of one model's sessions.

    Args:
        budget: Bytes that all files together may take; 0 is no bound.
        lossy: Whether files are written in the lossy encoding: what is read from them is not exact.

    Attributes:
        origin: The worker that writes files, and reads them.
        orders: What is to be done; whoever does it takes them from here.
        parks: Files written.
    """

    cache: Cache
    budget: int = 0
    lossy: bool = False
    origin: Origin = field(default_factory=Origin)
    orders: list[Order] = field(default_factory=list)
    parks: int = 0
    _wanted: dict[int, int] = field(default_factory=dict)
    _saving: dict[int, int] = field(default_factory=dict)
    _sealing: dict[int, _Seal] = field(default_factory=dict)
    _fetching: dict[int, _Fetch] = field(default_factory=dict)
    _tickets: int = 0

    @property
    def sealing(self) -> bool:
        """Whether files are being written."""
        return bool(self._sealing)

    def open(self, origin: Origin) -> bool:
        """A worker is ready.

        Returns:
            Whether the files have to be looked at anew: no worker like this one did so, and nothing is in the books.
        """
        if origin == self.origin:
            return False
        self.origin = origin
        for key in list(self.cache.parked.values()):
            self.cache.forget(self.cache.entries[key])
        return True

    def want(self, session: int, seq: int) -> None:
        """The session's reply is finished and its KV lies in *seq*: seal it with the next plan."""
        self._wanted[seq] = session

    def save_wanted(self) -> list[Move]:
        """The moves that begin the sealing of all that is wanted."""
        moves: list[Move] = []
        for seq, session in self._wanted.items():
            slot = self.cache.slots[seq]
            entry, saving = self.cache.save(slot) if slot.idle else (None, [])
            moves.extend(saving)
            if entry is not None:
                entry.promises += 1
                self._saving[entry.key] = session
        self._wanted.clear()
        return moves

    def saved(self, key: int, held: int, size: int) -> None:
        """A worker saved so many positions as an entry, or could not: then there is no entry, and a session that it was
        for stays without a file."""
        entry = self.cache.entries.get(key)
        if entry is None:
            return  # given up in the same plan
        session = self._saving.pop(key, None)
        if held < entry.held:
            self.cache.forget(entry)
            return
        self.cache.resize(entry, size)
        if session is not None:
            self._seal(session, entry)

    def fetch(self, file: Entry) -> tuple[int, list[Move]]:
        """Have a file read into host memory.

        Returns:
            The ticket to wait for, 0 when host memory has no room; and the moves that made room.
        """
        for ticket, known in self._fetching.items():
            if known.file is file:
                return ticket, []
        size = self.cache.pool.size(file.held)
        moves = self.cache.reserve(size)
        if moves is None:
            return 0, []
        entry = self.cache.new(Place.HOST, file, size=size, held=0)
        entry.promises += 1
        file.promises += 1
        self._tickets += 1
        self._fetching[self._tickets] = _Fetch(entry=entry, file=file)
        self.orders.append(
            FetchFile(
                ticket=self._tickets,
                entry=entry.key,
                session=file.session,
                stream=file.stream,
                name=file.name,
            )
        )
        return self._tickets, moves

    def filed(self, ticket: int, *, ok: bool, size: int) -> tuple[Entry | None, list[Move]]:
        """An order is done, or failed.

        Returns:
            The entry that was read, which is promised once: to whom is the caller's to say. And the moves that let go
            the entry that was written.
        """
        fetch = self._fetching.pop(ticket, None)
        seal = self._sealing.pop(ticket, None)
        entry = None if fetch is None else self._fetched(fetch, ok=ok, size=size)
        moves = [] if seal is None else self._sealed(seal, ok=ok, size=size)
        self._keep_budget()  # what was under way could not go
        return entry, moves

    def found(
        self, session: int, stream: TokenIds, *, size: int, name: str, exact: int, lossy: bool = False
    ) -> None:
        """The session has a file of earlier: of these tokens, of which the first *exact* are exact."""
        source = Entry(key=0, stream=stream, held=len(stream), exact=exact)
        self._book(session, source, size=size, name=name, lossy=lossy)
        self._keep_budget()

    def refused(self, session: int, *, size: int) -> None:
        """The session has a file that cannot be used."""
        self._book(session, Entry(key=0, used=_NEVER), size=size, name="", lossy=False)
        self._keep_budget()

    def remove(self, session: int) -> None:
        """The session is gone for good: so is its file, and one that is being written goes as soon as it is there."""
        self._wanted = {seq: whose for seq, whose in self._wanted.items() if whose != session}
        for key in [key for key, whose in self._saving.items() if whose == session]:
            del self._saving[key]
            self.cache.entries[key].promises -= 1
        for seal in self._sealing.values():
            seal.wanted = seal.wanted and seal.session != session
        file = self.cache.parked.get(session)
        if file is not None:
            self.cache.forget(self.cache.entries[file])
        self.orders.append(RemoveFile(session=session))

    def reset(self) -> None:
        """The worker is gone, and with it everything under way."""
        for fetch in self._fetching.values():
            fetch.file.promises = 0
        for pending in (self._wanted, self._saving, self._sealing, self._fetching):
            pending.clear()
        self.orders = [order for order in self.orders if isinstance(order, RemoveFile)]

    def _seal(self, session: int, entry: Entry) -> None:
        self._tickets += 1
        held = entry.stream[: entry.held]
        name = self.origin.name(0 if self.lossy else entry.exact)
        self._sealing[self._tickets] = _Seal(session=session, entry=entry, name=name)
        self.orders.append(
            SealFile(ticket=self._tickets, entry=entry.key, session=session, stream=held, name=name)
        )

    def _sealed(self, seal: _Seal, *, ok: bool, size: int) -> list[Move]:
        """Book the file, and let the entry go, unless its sequence was taken meanwhile and nothing else near holds as
        much."""
        entry = seal.entry
        if ok:
            self.parks += 1
            if seal.wanted:
                self._book(seal.session, entry, size=size, name=seal.name, lossy=self.lossy)
            else:
                self.orders.append(RemoveFile(session=seal.session))
        entry.promises -= 1
        if entry.promises or not self.cache.covered(entry):
            return []
        self.cache.forget(entry)
        return [Move(kind=MoveKind.DROP, entry=entry.key)]

    def _fetched(self, fetch: _Fetch, *, ok: bool, size: int) -> Entry | None:
        fetch.file.promises -= 1
        entry = fetch.entry
        if not ok:
            entry.promises = 0
            self.cache.forget(entry)
            if self.cache.entries.get(fetch.file.key) is fetch.file:
                self.refused(fetch.file.session, size=fetch.file.size)
            return None
        entry.held, entry.exact = fetch.file.held, fetch.file.exact
        self.cache.resize(entry, size)
        return entry

    def _book(self, session: int, source: Entry, *, size: int, name: str, lossy: bool) -> None:
        """The session's file holds what *source* says, and no other file is the session's."""
        old = self.cache.parked.get(session)
        if old is not None:
            self.cache.forget(self.cache.entries[old])
        file = self.cache.new(Place.PARK, source, size=size, held=source.held)
        file.session, file.name, file.lossy = session, name, lossy
        if lossy:
            file.exact = 0
        self.cache.parked[session] = file.key

    def _keep_budget(self) -> None:
        """Order the removal of what is too much. Not where a newer file of the same name may be there by then."""
        if not self.budget or self.cache.park_used <= self.budget:
            return
        files = [self.cache.entries[key] for key in self.cache.parked.values()]
        written = {seal.session for seal in self._sealing.values()}
        offered = [
            Candidate(key=file.key, size=file.size, used=file.used)
            for file in files
            if not file.promises and file.session not in written
        ]
        for victim in victims(offered, self.cache.park_used - self.budget):
            file = self.cache.entries[victim.key]
            self.cache.evictions[Place.PARK] += 1
            self.orders.append(RemoveFile(session=file.session))
            self.cache.forget(file)
