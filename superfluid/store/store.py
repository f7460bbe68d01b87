"""`submit(command)`: decide -> append -> durable -> apply -> publish.

One task, the committer, takes everything that waits, decides it in order against the live state, writes it as one
batch and applies it only when it is on disk. Whatever arrives while that fsync is in flight shares the next one (group
commit). So nothing is published before the record that carries it is durable, log order is execution order, and
every decision reads the head it extends.

A batch holds at most one command a session: the second would have to be decided against a state that is not durable
yet, so it waits for the next batch.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import outcome
import structlog
import trio

from superfluid.core.errors import InternalError, LogUnknown, ShuttingDown, SuperfluidError
from superfluid.core.limits import INLINE_BYTES, MAX_BATCH_BYTES
from superfluid.core.pace import Pace
from superfluid.core.record import Command, Record, encode_command
from superfluid.core.replay import apply_command
from superfluid.core.session import Decision, stamp
from superfluid.core.state import State
from superfluid.wal.log import Log

Decide = Callable[[State], Decision]

_log = structlog.get_logger(target=__name__)


@dataclass(slots=True, eq=False)
class _Pending:
    """A command on its way, and the task that waits for it.

    Attributes:
        encoded: None until it is; a large command is encoded in a thread, when its batch is committed.
        size: Bytes of `encoded`, or an upper bound of them.
    """

    session: int | None
    decide: Decide
    request_id: str | None
    task: trio.lowlevel.Task
    taken: bool = False
    answered: bool = False
    command: Command | None = None
    encoded: bytes | None = None
    size: int = 0


@dataclass(slots=True)
class Statistics:
    """Counts since the start."""

    commands: int = 0
    batches: int = 0
    refused: int = 0


class Store:
    """The sessions of one log: reads go to `state` at once, writes through `submit`.

    Args:
        log: Open for writing; the store is its only user from now on.
        state: The fold of the log's commands.
        now_ms: Wall clock in milliseconds. It dates records and orders nothing.
    """

    def __init__(self, log: Log, state: State, *, now_ms: Callable[[], int]) -> None:
        self.log = log
        self.state = state
        self.busy: set[int] = set()
        self.statistics = Statistics()
        self._now_ms = now_ms
        self._next_id = state.next_session
        self._pending: deque[_Pending] = deque()
        self._decided: _Pending | None = None
        self._idle = trio.lowlevel.ParkingLot()
        self._watchers: dict[int, trio.lowlevel.ParkingLot] = {}
        self._closing = False
        # The committer's own thread: on the shared ones, whatever is slow elsewhere would stall every write.
        self._thread = trio.CapacityLimiter(1)
        self.pace = Pace()
        self._refusing: type[SuperfluidError] | None = None

    def new_id(self) -> int:
        """The id for a session that a decision is about to begin. It is taken when the decision stands: what is refused
        uses up none, and what could not be written does, since it may be on disk."""
        return max(self._next_id, self.state.next_session)

    async def submit(
        self, session: int | None, decide: Decide, *, request_id: str | None = None
    ) -> tuple[Record, ...]:
        """Carry out one command; returns when its records are durable and applied.

        Cancelling the caller withdraws the command only while nobody has looked at it; from then on the wait is
        shielded, since what was handed to the log cannot be taken back.

        Args:
            session: The session whose log grows; None for a new one.
            decide: Called once with the live state, in the committer; raises to refuse.

        Returns:
            The records written; empty when the decision needed none.

        Raises:
            ClientError: What `decide` raised. Nothing was written.
            CapacityError, LostError: The log could not take it; the text says whether the outcome is known.
        """
        if self._closing:
            raise ShuttingDown("the daemon is ending; nothing was written")
        pending = _Pending(session, decide, request_id, trio.lowlevel.current_task())
        self._pending.append(pending)
        self._idle.unpark_all()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            if pending.taken:
                return trio.lowlevel.Abort.FAILED
            self._pending.remove(pending)
            return trio.lowlevel.Abort.SUCCEEDED

        records: tuple[Record, ...] = await trio.lowlevel.wait_task_rescheduled(abort)
        return records

    async def wait_for_change(self, session: int) -> None:
        """Return at the session's next applied record, or when `touch` is called for it."""
        await self._watchers.setdefault(session, trio.lowlevel.ParkingLot()).park()

    def touch(self, session: int) -> None:
        """Wake everyone who waits for the session."""
        lot = self._watchers.pop(session, None)
        if lot is not None:
            lot.unpark_all()

    async def run(self) -> None:
        """The committer. Ends after `close`, with everything that was submitted before it answered."""
        with trio.CancelScope(shield=True):
            while True:
                if self._pending or self._decided:
                    await self._commit_or_abandon(self._take())
                    await self._sync_mark_if_due()
                elif self._closing:
                    break
                else:
                    await self._rest()

    def close(self) -> None:
        """Take no new commands; `run` ends when the last one is answered."""
        self._closing = True
        self._idle.unpark_all()

    async def _rest(self) -> None:
        """Wait for work; sync the log's witness when that is due, so that an idle log has a durable one."""
        due = self.log.mark_due_at
        if due is None:
            await self._idle.park()
            return
        with trio.move_on_after(max(0.0, due - time.monotonic())) as scope:
            await self._idle.park()
        if scope.cancelled_caught:
            await self._sync_mark_if_due()

    async def _sync_mark_if_due(self) -> None:
        """Under load as well as at rest: a power loss takes the witness of the last second at most."""
        due = self.log.mark_due_at
        if due is not None and time.monotonic() >= due:
            await trio.to_thread.run_sync(self.log.sync_mark_if_due, time.monotonic(), limiter=self._thread)

    def _take(self) -> list[_Pending]:
        """Decide what waits, in order, into one batch; refusals are answered here and now.

        One that would take the batch over its limit begins the next one as it was decided: nothing else of this batch is
        of its session, so its decision still holds there.
        """
        batch = [self._decided] if self._decided else []
        touched = {pending.session for pending in batch}
        size = sum(pending.size for pending in batch)
        self._decided = None
        later: list[_Pending] = []
        now = self._now_ms()
        while self._pending and size < MAX_BATCH_BYTES:
            pending = self._pending.popleft()
            if pending.session is not None and pending.session in touched:
                later.append(pending)
                continue
            touched.add(pending.session)
            pending.taken = True
            if not self._decide(pending, now):
                continue
            size += pending.size
            if batch and size > MAX_BATCH_BYTES:
                self._decided = pending
                break
            batch.append(pending)
        self._pending.extendleft(reversed(later))
        return batch

    def _decide(self, pending: _Pending, now: int) -> bool:
        """Decide one command, and encode it if that is quick; False when it is answered already."""
        try:
            decision = pending.decide(self.state)
            if decision.first_event is not None:
                self._next_id = decision.session + 1
            records = stamp(self.state, decision, epoch=self.log.epoch, now_ms=now)
            if not records:
                _answer(pending, outcome.Value(()))
                return False
            command = Command(op_id=None, digest=None, request_id=pending.request_id, records=records)
            pending.size = sum(map(_size, records))
            if pending.size <= INLINE_BYTES:
                pending.encoded = encode_command(command)
                pending.size = len(pending.encoded)
        except Exception as fault:  # noqa: BLE001 - one command's bug must not end the committer for all
            self._refuse(pending, fault)
            return False
        pending.command = command
        return True

    def _refuse(self, pending: _Pending, fault: Exception) -> None:
        """Answer a command that could not be decided or encoded."""
        if isinstance(fault, SuperfluidError):
            self.statistics.refused += 1
            _answer(pending, outcome.Error(fault))
            return
        _log.error("decision failed", error=type(fault).__name__, exc_info=fault)
        error = InternalError("the daemon failed to decide this request; its log has the details")
        error.__cause__ = fault
        _answer(pending, outcome.Error(error))

    async def _encode(self, pending: _Pending) -> bytes | None:
        """The command's bytes, or None when it is refused and answered. A large one is encoded in the thread: inline,
        a million token ids would hold up everybody for a good part of a second."""
        if pending.encoded is None:
            assert pending.command is not None
            try:
                pending.encoded = await trio.to_thread.run_sync(
                    encode_command, pending.command, limiter=self._thread
                )
            except Exception as fault:  # noqa: BLE001 - as in _decide
                self._refuse(pending, fault)
        return pending.encoded

    async def _commit_or_abandon(self, batch: list[_Pending]) -> None:
        """Commit; a bug or a fault that nobody foresaw ends the committer, but leaves no caller waiting for ever."""
        try:
            await self._commit(batch)
        except BaseException:
            for pending in (*batch, *((self._decided,) if self._decided else ())):
                if not pending.answered:
                    reason = "the daemon failed while it wrote this: whether it was stored is known after a restart"
                    _answer(pending, outcome.Error(LogUnknown(reason)))
            raise

    async def _commit(self, batch: list[_Pending]) -> None:
        encoded = [command for pending in batch if (command := await self._encode(pending)) is not None]
        batch = [pending for pending in batch if not pending.answered]
        if not batch:
            return
        try:
            await self._write(encoded)
        except SuperfluidError as refusal:
            self._report(refusal)
            for pending in batch:
                _answer(pending, outcome.Error(_copy(refusal)))
            return
        self._report(None)
        self.statistics.batches += 1
        self.statistics.commands += len(batch)
        for pending in batch:
            pending.encoded = None
            self._publish(pending)

    async def _write(self, encoded: list[bytes]) -> None:
        """Commit a batch: in a thread, or right here where that holds nobody up (see `core.pace`)."""
        began = time.monotonic()
        try:
            if self.pace.inline(commands=len(encoded), size=sum(map(len, encoded))):
                self.log.commit(encoded)
            else:
                await trio.to_thread.run_sync(self.log.commit, encoded, limiter=self._thread)
        finally:
            self.pace.note(time.monotonic() - began)

    def _report(self, refusal: SuperfluidError | None) -> None:
        """Tell when the log begins to refuse, otherwise than before, and when it writes again: a line for each refused
        batch would fill the disk that is full."""
        before, self._refusing = self._refusing, None if refusal is None else type(refusal)
        if self._refusing is before:
            return
        if refusal is None:
            _log.info("log writes go on")
        else:
            _log.error("log write failed", error=type(refusal).__name__, reason=str(refusal))

    def _publish(self, pending: _Pending) -> None:
        command = pending.command
        assert command is not None
        misfit = apply_command(self.state, command)
        if misfit is not None:
            # Decided against this very state, so only a bug of ours leads here. The record is on disk and its session
            # is frozen, now as after a restart.
            _log.error("a durable command does not apply", reason=misfit)
            reason = InternalError(
                f"the daemon wrote a record that it cannot apply ({misfit}); the session is frozen"
            )
            _answer(pending, outcome.Error(reason))
            return
        for session in {record.session for record in command.records}:
            self.touch(session)
        _answer(pending, outcome.Value(command.records))


def _size(record: Record) -> int:
    """Upper bound of the bytes that a record's text and token ids take in the log, by their lengths alone."""
    text: str = getattr(record.body, "text", None) or ""
    span: tuple[int, ...] = getattr(record.body, "span", ())
    return len(text) * (1 if text.isascii() else 4) + 4 * len(span)


def _answer(pending: _Pending, answer: outcome.Value[tuple[Record, ...]] | outcome.Error) -> None:
    pending.answered = True
    trio.lowlevel.reschedule(pending.task, answer)


def _copy(error: SuperfluidError) -> SuperfluidError:
    """An exception object may be raised in one task only: tracebacks grow on it."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    return copy
