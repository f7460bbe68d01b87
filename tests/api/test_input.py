"""Input that is too long, and input that takes long."""

import threading
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.api import input as api_input
from superfluid.core.limits import (
    INLINE_TEXT_CHARACTERS,
    MAX_INPUT_CHARACTERS,
    MAX_SPAN_TOKENS,
    MAX_TOKENISING,
)
from superfluid_protocol import request, response


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda s: request.Append(session=s, text=None, span=(1,) * (MAX_SPAN_TOKENS + 1)), "token ids"),
        (lambda s: request.Append(session=s, text="x" * (MAX_INPUT_CHARACTERS + 1), span=()), "characters"),
        (
            lambda s: request.AppendMessage(session=s, role=1, text="x" * (MAX_INPUT_CHARACTERS + 1)),
            "characters",
        ),
    ],
    ids=["span", "text", "message"],
)
def test_what_no_context_holds_is_refused_at_once(client, make, reason):
    session = client.create()

    refusal = client.call(make(session))

    assert isinstance(refusal, response.Err)
    assert reason in refusal.message
    assert len(client.events(session)) == 1


async def test_a_text_of_too_many_tokens_is_refused_when_they_are_counted(monkeypatch):
    monkeypatch.setattr(api_input, "MAX_SPAN_TOKENS", 3)
    store = SimpleNamespace(state=None, busy=set())
    monkeypatch.setattr(api_input.decide, "writable", lambda *_: SimpleNamespace(length=1, tokens=1))

    async def make(_session):
        await trio.lowlevel.checkpoint()
        return [1, 2, 3, 4]

    with pytest.raises(api_input.EventTooLarge, match="4 token ids"):
        await api_input._extend(store, 1, make, None)


async def test_long_texts_take_few_threads_and_none_of_the_shared_ones(monkeypatch):
    release, running = threading.Event(), []

    def slow(_vocabulary, _content, *, first):
        running.append(first)
        assert release.wait(10)
        return [1]

    monkeypatch.setattr(api_input, "raw_text", slow)
    text, session = SimpleNamespace(vocabulary=None), SimpleNamespace(tokens=0)
    shared = trio.to_thread.current_default_thread_limiter().borrowed_tokens
    async with trio.open_nursery() as nursery:
        for _ in range(2 * MAX_TOKENISING + 1):
            nursery.start_soon(api_input._raw_span, text, "x" * (INLINE_TEXT_CHARACTERS + 1), session)
        await wait_all_tasks_blocked(0.05)
        begun = len(running)
        borrowed = trio.to_thread.current_default_thread_limiter().borrowed_tokens
        release.set()

    assert 1 <= begun <= MAX_TOKENISING
    assert borrowed == shared
    assert len(running) == 2 * MAX_TOKENISING + 1
