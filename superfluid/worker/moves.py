"""The sequence operations of a plan, carried out before any of its rows.

Copy and save read a sequence by exporting it whole. The last export is kept until something touches its source, so that
thirty followers that copy the same prefix in one plan cost one export and thirty imports.
"""

from collections.abc import Iterable

from superfluid.core.plan import Move, MoveKind
from superfluid.worker.host import Entry, HostMemory
from superfluid.worker.jobs import Account
from superfluid.worker.llama.context import Context, State


def changed_sequence(move: Move) -> int | None:
    """The sequence that *move* changes, or None when it changes none."""
    match move.kind:
        case MoveKind.COPY:
            return move.dst
        case MoveKind.CLEAR | MoveKind.LOAD:
            return move.seq
        case MoveKind.SAVE | MoveKind.DROP:
            return None


class Moves:
    """Carries out sequence operations on one context and its host memory."""

    def __init__(self, context: Context, host: HostMemory) -> None:
        self._context = context
        self._host = host
        self._exported: tuple[int, State] | None = None

    def run(self, moves: Iterable[Move], account: Account) -> None:
        """Carry out *moves* in their order. What cannot be done leaves its sequence cleared, its entry absent."""
        for move in moves:
            changed = changed_sequence(move)
            if self._exported is not None and self._exported[0] == changed:
                self._exported = None
            self._move(move, account)
        self._exported = None  # rows come next, and it may be large

    def _move(self, move: Move, account: Account) -> None:
        context = self._context
        if move.kind is not MoveKind.DROP:
            account.touched.add(move.seq)
        match move.kind:
            case MoveKind.COPY:
                account.touched.add(move.dst)
                self._copy(move)
            case MoveKind.CLEAR:
                context.clear(move.seq)
            case MoveKind.SAVE:
                account.saved.append(self._save(move))
            case MoveKind.LOAD:
                entry = self._host.get(move.entry)
                if entry is None or entry.positions < move.n:
                    context.clear(move.seq)
                else:
                    context.restore(move.seq, entry.state, move.n)
            case MoveKind.DROP:
                self._host.drop(move.entry)

    def _copy(self, move: Move) -> None:
        context = self._context
        if move.seq == move.dst:
            context.trim(move.seq, move.n)
            return
        state = self._export(move.seq) if 0 < move.n <= context.length(move.seq) else None
        if state is None:
            context.clear(move.dst)
        else:
            context.restore(move.dst, state, move.n)

    def _save(self, move: Move) -> tuple[int, int, int]:
        """Make the entry; returns its line of ``Result.saved``."""
        state = self._export(move.seq) if 0 < move.n == self._context.length(move.seq) else None
        if state is None or not self._host.put(move.entry, Entry(positions=move.n, state=state)):
            return move.entry, 0, 0
        return move.entry, move.n, len(state)

    def _export(self, seq: int) -> State | None:
        if self._exported is None or self._exported[0] != seq:
            self._exported = None  # before the next one is allocated
            state = self._context.export(seq)
            self._exported = (seq, state) if state is not None else None
        return self._exported[1] if self._exported is not None else None
