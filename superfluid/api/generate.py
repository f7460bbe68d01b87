"""Generations: starting them, following them, ending them.

A generation belongs to the daemon, not to the connection that asked for it: its records are written whether or not
somebody reads, and whoever asked cancels it by name when the client is gone.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import count
from typing import Final

import structlog
import trio

from superfluid.api.context import chat_context
from superfluid.api.exact import Exactness, require_exact
from superfluid.chat.detokenize import Detokenizer
from superfluid.core import session as decide
from superfluid.core import tree, turn, view
from superfluid.core.errors import (
    BadRequest,
    ContextFull,
    InternalError,
    ShuttingDown,
    SuperfluidError,
)
from superfluid.core.limits import MAX_TOKENS_PER_GENERATE
from superfluid.core.record import Record
from superfluid.core.schedule import Job
from superfluid.core.state import Session, State
from superfluid.sched.engine import Engine
from superfluid.sched.generation import Generation, record_reply
from superfluid.sched.model import Model, Text
from superfluid.store.store import Store
from superfluid_protocol import EventMsg, event, numbers, response

FOLLOW_CHUNK: Final = 64
"""Events handed to a follower at a time; what it has not read yet stays in the log and costs nothing."""

_log = structlog.get_logger(target=__name__)


class Generations:
    """All generations of one model.

    Args:
        exactness: Asked for sessions whose replies have to be exact.
        nursery: Where the tasks that write the replies live; they outlive the connections that asked.
    """

    def __init__(
        self, *, store: Store, model: Model, engine: Engine, exactness: Exactness, nursery: trio.Nursery
    ) -> None:
        self._store = store
        self._model = model
        self._engine = engine
        self._exactness = exactness
        self._nursery = nursery
        self._jobs = count(1)
        self._of_session: dict[int, Generation] = {}
        self._closing = False
        self._idle = trio.Event()

    async def start(self, session_id: int, max_tokens: int) -> Generation:
        """Open or continue the session's turn, and queue its generation.

        Returns when the turn's opening is durable; the reply follows, see `follow`.

        Raises:
            ClientError: The session is busy, has nothing to answer, the model cannot chat, or cannot be exact as the
                session wants it.
            ContextFull: No token fits behind the session's own.
            StartError: The model could not be loaded.
        """
        if not 0 < max_tokens <= MAX_TOKENS_PER_GENERATE:
            raise BadRequest(f"max_tokens must be 1 to {MAX_TOKENS_PER_GENERATE}")
        session = decide.writable(self._store.state, self._store.busy, session_id)
        if session.batch_invariant:
            await require_exact(self._exactness)
        text = await self._model.text()
        await self._engine.context_size()
        self._check_open()
        job = next(self._jobs)
        generation = Generation(
            session=session_id,
            job=job,
            request_id=f"{self._store.log.epoch:x}-{job:x}",
            first_event=0,
            prompt_tokens=0,
        )
        exact = taken = False

        def open_turn(state: State) -> decide.Decision:
            nonlocal exact, taken
            self._check_open()
            session = decide.writable(state, self._store.busy, session_id)
            decision = self._open_turn(state, session, text)
            exact = session.batch_invariant
            room = self._engine.room(exact=exact)
            tokens = session.tokens + sum(len(getattr(body, "span", ())) for body in decision.bodies)
            if tokens >= room:
                raise ContextFull(
                    f"session {session_id} fills the context of {room} tokens: with what opens the reply it has "
                    f"{tokens}; trim it, or serve with a larger --max-context"
                )
            # From here on nothing else may extend the session, so it is marked in the same breath as it is decided.
            self._store.busy.add(session_id)
            self._of_session[session_id] = generation
            generation.first_event = session.length
            taken = True
            return decision

        try:
            records = await self._store.submit(session_id, open_turn, request_id=generation.request_id)
            generation.records.extend(records)
            self._submit(generation, text, max_tokens, exact=exact)
        except BaseException:
            if taken:
                self._release(generation)
            raise
        return generation

    def cancel(self, session_id: int) -> None:
        """End the session's generation at its next step; what it made so far is recorded. Does nothing if it has
        none in flight."""
        generation = self._of_session.get(session_id)
        if generation is not None and not generation.done:
            self._end(generation)

    def abandon(self, generation: Generation) -> None:
        """End this generation if it still runs: nobody waits for it any more."""
        if not generation.done:
            self._end(generation)

    def new_events(self, generation: Generation, cursor: int) -> list[EventMsg]:
        """The generation's own committed events with ids from *cursor* on, at most `FOLLOW_CHUNK`. What others commit to
        the session meanwhile (a title) is not among them."""
        start = bisect_left(generation.records, cursor, key=_event_id)
        return [view.message_of(record) for record in generation.records[start : start + FOLLOW_CHUNK]]

    async def wait(self, generation: Generation) -> None:
        """Return at the next change of the generation or its session. Check `Generation.done` first."""
        await self._store.wait_for_change(generation.session)

    def reply(self, generation: Generation) -> response.Generated:
        """The closing reply of a generation that is done.

        Raises:
            SuperfluidError: It failed.
        """
        assert generation.done
        if generation.error is not None:
            raise generation.error
        return response.Generated(
            events=tuple(view.message_of(record) for record in generation.records),
            tokens_generated=generation.tokens_generated,
            finish=generation.finish,
            warm_prefix=generation.warm,
        )

    def reclass(self, session_id: int) -> None:
        """Give the session's generation, if it has one in flight, the class that the session has now."""
        generation = self._of_session.get(session_id)
        if generation is not None and not generation.done:
            self._engine.reclass(generation.job, tree.get(self._store.state, session_id).qos_class)

    def refuse_new(self) -> None:
        """Start no new generation, for the end of the daemon."""
        self._closing = True
        self._check_idle()

    def cancel_all(self) -> None:
        """End every generation at its next step."""
        for generation in self._of_session.values():
            self._end(generation)

    async def wait_idle(self) -> None:
        """Return when, after `refuse_new`, no generation is left."""
        await self._idle.wait()

    def _end(self, generation: Generation) -> None:
        generation.cancelled = True
        self._engine.cancel(generation.job)

    def _check_open(self) -> None:
        if self._closing:
            raise ShuttingDown("the daemon is ending; generate again after its restart")

    def _check_idle(self) -> None:
        if self._closing and not self._of_session:
            self._idle.set()

    def _open_turn(self, state: State, session: Session, text: Text) -> decide.Decision:
        position = turn.position(tree.events_backwards(state, session))
        span: list[int] = []
        if position.phase is turn.Phase.MESSAGE:
            span = text.chat().generation_prompt(chat_context(state, session, text))
        return decide.open_turn(state, self._store.busy, session.id, position, tuple(span), text.fingerprint)

    def _submit(self, generation: Generation, text: Text, max_tokens: int, *, exact: bool) -> None:
        """Queue the job and start the task that records its reply."""
        state = self._store.state
        session = tree.get(state, generation.session)
        prompt = tree.tokens(state, session)
        room = self._engine.room(exact=exact) - len(prompt)
        generation.prompt_tokens = len(prompt)
        detokenizer = Detokenizer.resume(text.vocabulary, _open_reply(state, session))
        job = Job(
            id=generation.job,
            prompt=prompt,
            params=session.params,
            limit=min(max_tokens, room),
            session=session.id,
            namespace=0,
            qos=session.qos_class,
            exact=exact,
            boundaries=tuple(tree.event_ends(state, session)),
        )
        self._engine.submit(job, generation.deliver)
        self._nursery.start_soon(self._record, generation, detokenizer)
        if generation.cancelled:  # while its opening was on the way to the disk
            self._engine.cancel(generation.job)

    async def _record(self, generation: Generation, detokenizer: Detokenizer) -> None:
        try:
            await record_reply(generation, self._store, detokenizer)
        except SuperfluidError as failure:
            generation.error = failure
        except Exception as fault:  # noqa: BLE001 - one reply's bug must not end the others
            _log.exception(
                "recording a reply failed", request=generation.request_id, error=type(fault).__name__
            )
            generation.error = InternalError(
                f"the reply could not be recorded (request {generation.request_id})"
            )
        finally:
            if generation.error is not None:
                self._engine.cancel(generation.job)
            elif self._closing and generation.finish == numbers.Finish.CANCELLED:
                generation.error = ShuttingDown(
                    "the daemon is ending; what was generated is recorded, generate again after its restart"
                )
            self._release(generation)
            _log.info(
                "generation ended",
                session=generation.session,
                request=generation.request_id,
                prompt=generation.prompt_tokens,
                cached=generation.warm,
                generated=generation.tokens_generated,
                finish=int(generation.finish),
                error=type(generation.error).__name__ if generation.error else None,
            )

    def _release(self, generation: Generation) -> None:
        generation.done = True
        self._store.busy.discard(generation.session)
        if self._of_session.get(generation.session) is generation:
            del self._of_session[generation.session]
        self._check_idle()
        self._store.touch(generation.session)


def _event_id(record: Record) -> int:
    return record.event_id


def _open_reply(state: State, session: Session) -> Iterator[int]:
    """The ids of the reply that the session's stream ends with; none when it ends with something else."""
    spans: list[tuple[int, ...]] = []
    for message in tree.events_backwards(state, session):
        body = message.body
        if isinstance(body, event.Generated):
            spans.append(body.span)
        elif hasattr(body, "span"):
            break
    for span in reversed(spans):
        yield from span
