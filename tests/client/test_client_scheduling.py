"""What both clients send to schedule a session, and what they make of the answers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from superfluid_client import NotSupported, Qos, RequestRefused
from superfluid_protocol import EventMsg, ModelInfo, Request, event, request, response
from tests.client.fake_daemon import FakeDaemon, Step, committed

Start = Callable[..., FakeDaemon]
Connect = Callable[..., Any]

MODEL = ModelInfo(
    name="m", path="m.gguf", loaded=True, context=512, lanes=8, description="a model", capability="{}"
)


def script(req: Request) -> Iterator[Step]:
    match req:
        case request.SetQos(class_=class_, batch_invariant=exact):
            body = event.QosSet(class_=class_, batch_invariant=exact)
            yield response.Committed(event=EventMsg(event_id=2, epoch=1, ts_unix_ms=0, body=body))
        case request.Pin(ttl_ms=ttl):
            yield response.Pinned(deadline_unix_ms=ttl and 1000 + ttl)
        case request.SetBackgroundRate():
            yield response.Ack()
        case request.Models():
            yield response.ModelList(models=(MODEL,))
        case request.Read(cursor=cursor):
            yield response.Events(events=(committed(cursor),) if cursor < 4 else ())
        case request.Fork():
            yield response.Created(session=10)


async def test_a_session_says_how_it_is_scheduled(daemon: Start, connect: Connect):
    fake = daemon(script)
    client = await connect(fake.path)
    session = client.session(9)

    made = await session.set_qos(Qos.INTERACTIVE, batch_invariant=True)

    assert made.body == event.QosSet(class_=0, batch_invariant=True)
    await session.set_qos(3)
    assert fake.requests == [
        request.SetQos(session=9, class_=0, batch_invariant=True),
        request.SetQos(session=9, class_=3, batch_invariant=False),
    ]


async def test_the_event_of_a_class_counts_as_seen(daemon: Start, connect: Connect):
    fake = daemon(script)
    client = await connect(fake.path)
    session = client.session(9)
    await session.set_qos(0)

    await session.fork()

    assert request.Read(session=9, cursor=3) in fake.requests
    assert fake.requests[-1] == request.Fork(session=9, at_event=4, params=None)


async def test_a_pin_tells_until_when(daemon: Start, connect: Connect):
    fake = daemon(script)
    client = await connect(fake.path)

    assert await client.session(9).pin(500) == 1500
    assert await client.session(9).pin(0) == 0
    assert fake.requests[0] == request.Pin(session=9, ttl_ms=500)


async def test_what_concerns_the_whole_daemon(daemon: Start, connect: Connect):
    fake = daemon(script)
    client = await connect(fake.path)

    await client.set_background_rate(4)

    assert await client.models() == (MODEL,)
    assert fake.requests == [request.SetBackgroundRate(divisor=4), request.Models()]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("exact replies are not supported here: start with --exact", NotSupported),
        ("scheduling class 9 is unknown; the classes are 0 interactive", RequestRefused),
    ],
)
async def test_a_refusal_has_its_kind(daemon: Start, connect: Connect, text: str, kind: type[Exception]):
    def refuse(_req: Request) -> Iterator[Step]:
        yield response.Err(message=text)

    client = await connect(daemon(refuse).path)

    with pytest.raises(RequestRefused, match=text) as caught:
        await client.session(9).set_qos(9)
    assert type(caught.value) is kind
