"""Input of clients: chat messages and raw appends, as spans of token ids behind the session's end.

A span depends on what the session ends with (the scaffold a cut reply lacks, a beginning-of-sequence token), and making
it may take long for a long text. So it is made first, for the end as it is, and decided only if that is still the end;
when another client appended meanwhile it is made again.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from superfluid.api.context import chat_context
from superfluid.chat.encode import raw_text
from superfluid.chat.text import check_text
from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.errors import Conflict, EventTooLarge
from superfluid.core.limits import (
    INLINE_TEXT_CHARACTERS,
    MAX_INPUT_CHARACTERS,
    MAX_SPAN_TOKENS,
    MAX_TOKENISING,
)
from superfluid.core.record import Record
from superfluid.core.state import Session, State
from superfluid.sched.model import Model, Text
from superfluid.store.store import Store
from superfluid_protocol import request

_TOKENISING: Final = trio.CapacityLimiter(max(1, min(MAX_TOKENISING, len(os.sched_getaffinity(0)) - 1)))

ATTEMPTS: Final = 64
"""How often a span is made anew, because somebody else extended the session meanwhile, before that is said."""

MakeSpan = Callable[[Session], Awaitable[list[int]]]
Commit = Callable[[State, tuple[int, ...]], decide.Decision]


class _Moved(Conflict):
    """The session grew between the making of a span and its decision."""


async def append_message(store: Store, model: Model, req: request.AppendMessage) -> tuple[Record, ...]:
    """A chat message, in the scaffold of the model's template."""
    decide.check_role(req.role)
    _check_length(req.text)
    check_text(req.text)
    text = await model.text()

    async def make(session: Session) -> list[int]:
        codec, context = text.chat(), chat_context(store.state, session, text)
        if len(req.text) <= INLINE_TEXT_CHARACTERS:
            return codec.message(context, req.role, req.text)
        turns = context.history()  # read here: the state changes while the thread works
        context = replace(context, history=lambda: turns)
        return await trio.to_thread.run_sync(codec.message, context, req.role, req.text, limiter=_TOKENISING)

    return await _extend(
        store,
        req.session,
        make,
        lambda state, span: decide.message(state, store.busy, req.session, req.role, req.text, span),
    )


async def append_raw(store: Store, model: Model, req: request.Append) -> tuple[Record, ...]:
    """Token ids as they are, or the ids of a text that has none: it is taken as it is, special tokens included, since
    the client writes its own scaffold here."""
    _check_tokens(len(req.span))
    if req.text is not None:
        if not req.span:
            _check_length(req.text)
        check_text(req.text)
    text = await model.text()

    def commit(state: State, span: tuple[int, ...]) -> decide.Decision:
        n_vocab = text.vocabulary.n_tokens
        return decide.append(state, store.busy, req.session, req.text, span, n_vocab=n_vocab)

    if req.span or not req.text:
        return await store.submit(req.session, lambda state: commit(state, req.span))
    return await _extend(store, req.session, lambda session: _raw_span(text, req.text or "", session), commit)


async def _raw_span(text: Text, content: str, session: Session) -> list[int]:
    first = session.tokens == 0
    if len(content) <= INLINE_TEXT_CHARACTERS:
        return raw_text(text.vocabulary, content, first=first)
    return await trio.to_thread.run_sync(
        lambda: raw_text(text.vocabulary, content, first=first), limiter=_TOKENISING
    )


async def _extend(store: Store, session_id: int, make: MakeSpan, commit: Commit) -> tuple[Record, ...]:
    """Make a span for the session's end and commit it there."""
    for _attempt in range(ATTEMPTS):
        session = decide.writable(store.state, store.busy, session_id)
        length = session.length
        span = tuple(await make(session))
        _check_tokens(len(span))

        def decided(state: State, length: int = length, span: tuple[int, ...] = span) -> decide.Decision:
            if tree.get(state, session_id).length != length:
                raise _Moved("the session grew meanwhile")
            return commit(state, span)

        try:
            return await store.submit(session_id, decided)
        except _Moved:
            continue
    raise Conflict(f"session {session_id} is being appended to from elsewhere; try again")


def _check_length(text: str) -> None:
    if len(text) > MAX_INPUT_CHARACTERS:
        raise EventTooLarge(
            f"a text of {len(text)} characters is longer than any context; at most {MAX_INPUT_CHARACTERS} are taken"
        )


def _check_tokens(count: int) -> None:
    if count > MAX_SPAN_TOKENS:
        raise EventTooLarge(
            f"{count} token ids are more than any context holds; at most {MAX_SPAN_TOKENS} are taken"
        )
