"""How a session is scheduled and what is kept for it: its class, its exactness, its pin, and where its KV is."""

from array import array
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from superfluid.api.exact import Exactness, require_exact
from superfluid.api.generate import Generations
from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.errors import BadRequest, PinBudget
from superfluid.core.ids import TokenIds
from superfluid.core.limits import MAX_BACKGROUND_DIVISOR
from superfluid.core.record import Record
from superfluid.core.state import Session, State
from superfluid.store.store import Store
from superfluid_protocol import EventMsg, Tier, event, request, types

RESIDENT: Final = frozenset({"pool", "host"})
"""Places from which a session goes on without a prefill."""

_log = structlog.get_logger(target=__name__)


class Keeper(Protocol):
    """What of the engine this module needs: it keeps KV, and knows where."""

    async def context_size(self) -> int:
        """Positions of one sequence; waits for the first worker, and so for what pins may hold."""

    def pin(self, session: int, stream: TokenIds, deadline_ms: int) -> None:
        """Keep the KV of *stream* until a time in Unix milliseconds; 0 lets it go. Raises `PinBudget`."""

    def where(self, session: int, stream: TokenIds) -> tuple[str, int, int]:
        """The place of a session's KV (``pool``, ``host``, ``park`` or none of these), the positions that it covers
        there, and their encoding."""

    def set_background_rate(self, divisor: int) -> None:
        """Give background jobs rows in every *divisor*-th tick only."""


class Scheduling:
    """The requests about it.

    Args:
        now_ms: Wall clock in milliseconds, for deadlines.
    """

    def __init__(
        self,
        *,
        store: Store,
        engine: Keeper,
        generations: Generations,
        exactness: Exactness,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._engine = engine
        self._generations = generations
        self._exactness = exactness
        self._now_ms = now_ms

    async def set_qos(self, req: request.SetQos) -> tuple[Record, ...]:
        """Record the class and the exactness; a generation that waits or runs takes its new class at once."""

        def decided(state: State) -> decide.Decision:
            return decide.set_qos(state, req.session, req.class_, batch_invariant=req.batch_invariant)

        decided(self._store.state)  # what is refused anyway is not worth a measurement
        if req.batch_invariant:
            await require_exact(self._exactness)
        records = await self._store.submit(req.session, decided)
        self._generations.reclass(req.session)
        return records

    def set_background_rate(self, divisor: int) -> None:
        """Let background work run in every *divisor*-th tick beside others; 0 pauses it. A restart forgets it.

        Raises:
            BadRequest: Beyond `MAX_BACKGROUND_DIVISOR`.
        """
        if divisor > MAX_BACKGROUND_DIVISOR:
            raise BadRequest(
                f"a divisor is at most {MAX_BACKGROUND_DIVISOR}, not {divisor}; 0 pauses background work"
            )
        self._engine.set_background_rate(divisor)

    async def pin(self, session_id: int, ttl_ms: int) -> int:
        """Pin the session as it is now, or let it go with a *ttl_ms* of 0; until when, in Unix milliseconds.

        Raises:
            PinBudget: It is larger than what all pins may hold; nothing was written.
        """
        decide.pin(self._store.state, session_id, ttl_ms, now_ms=0)  # refused before it waits for a worker
        await self._engine.context_size()
        before: int | None = None
        stream = tree.tokens(self._store.state, tree.get(self._store.state, session_id))

        def decided(state: State) -> decide.Decision:
            nonlocal before
            decision = decide.pin(state, session_id, ttl_ms, now_ms=self._now_ms())
            # The room is taken in the same breath: two pins that are decided together do not both get the last of it.
            self._engine.pin(session_id, stream, _deadline(decision))
            before = tree.get(state, session_id).pin_deadline_unix_ms
            return decision

        try:
            await self._store.submit(session_id, decided)
        except BaseException:
            if before is not None:  # taken, but not written
                self._restore_pin(session_id, before)
            raise
        return tree.get(self._store.state, session_id).pin_deadline_unix_ms

    async def restore_pins(self) -> None:
        """Give the engine the pins of the log that still hold, oldest first, once it can take them."""
        await self._engine.context_size()
        now = self._now_ms()
        sessions = self._store.state.sessions.values()
        held = [_pinned_at(session) for session in sessions if session.pin_deadline_unix_ms > now]
        held.sort(key=lambda pair: (pair[1].ts_unix_ms, pair[0].id))
        for session, message in held:
            try:
                self._engine.pin(
                    session.id, self._pinned_stream(session, message), session.pin_deadline_unix_ms
                )
            except PinBudget as refusal:
                _log.warning("a pin does not fit any more", session=session.id, reason=str(refusal))
        if held:
            _log.info("pins restored", pins=len(held))

    def _restore_pin(self, session_id: int, deadline_ms: int) -> None:
        """Pin what the session's pin of the log holds, in the place of one that was not written."""
        stream = array("I")
        if deadline_ms > self._now_ms():
            stream = self._pinned_stream(*_pinned_at(tree.get(self._store.state, session_id)))
        else:
            deadline_ms = 0
        self._engine.pin(session_id, stream, deadline_ms)

    def _pinned_stream(self, session: Session, message: EventMsg) -> TokenIds:
        """What a session held when *message* pinned it."""
        count = tree.tokens_before(self._store.state, session, message.event_id)
        return tree.tokens(self._store.state, session)[:count]

    def tier(self, session_id: int) -> Tier:
        """Where the session's KV is."""
        session = tree.get(self._store.state, session_id)
        if session.tokens == 0:
            return types.Cold()
        place, covered, encoding = self._engine.where(session_id, tree.tokens(self._store.state, session))
        if place in RESIDENT:
            return types.Resident()
        return types.Parked(covered=covered, encoding=encoding) if place == "park" else types.Cold()


def _deadline(decision: decide.Decision) -> int:
    (body,) = decision.bodies
    assert isinstance(body, event.Pinned)
    return body.deadline_unix_ms


def _pinned_at(session: Session) -> tuple[Session, EventMsg]:
    """A pinned session, with the event that pinned it."""
    return session, next(m for m in reversed(session.own) if isinstance(m.body, event.Pinned))
