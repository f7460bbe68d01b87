"""What reading requests answer: cut at event boundaries, within the frame whatever the events hold."""

import pytest
from hypothesis import given, settings

from superfluid.core import tree, view
from superfluid.core.errors import NoSuchSession, NotSupported
from superfluid.core.limits import MAX_TITLE_BYTES, MIB
from superfluid.core.replay import apply_command
from superfluid.core.state import State
from superfluid_protocol import MAX_FRAME, EventBody, EventMsg, Tier, encode, event, response, types
from tests.core.builders import (
    CREATED,
    OTHER_PARAMS,
    PARAMS,
    appended,
    command,
    forked,
    message,
    messages,
    prompt,
    record,
    reply,
    session_of,
)
from tests.protocol.strategies import values

STORE_ID = bytes(range(16))
COLD: Tier = types.Cold()


def inspect(state, **changes):
    return view.inspection(state, 1, wal_version=3, store_id=STORE_ID, tier=COLD, **changes)


@pytest.mark.slow
@given(values(EventMsg))
@settings(max_examples=300, deadline=None)
def test_the_size_of_an_event_is_never_taken_too_small(sent):
    assert view.size_bound(sent) >= len(encode(sent))


@pytest.mark.parametrize("character", ["a", "é", "€", "😀"])
@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 5000])
def test_texts_are_measured_where_they_are_long(character, length):
    bodies = [
        message(1, text=character * length),
        reply(2**32 - 1, text=character * length),
        appended(1, 2, text=character * length),
        event.Block(role=1, kind=1, payload=character * length, span=(1,), visibility_version=0),
        event.ToolResult(call_id=1, content=character * length, span=(1,)),
    ]
    for sent in messages(bodies):
        size = len(encode(sent))
        assert size <= view.size_bound(sent) <= size + 128 + 3 * 1024


class TestRead:
    def test_reads_from_the_cursor_to_the_end(self):
        state, session = session_of(message(1), message(2))

        assert view.read(state, 1, 0) == tuple(session.own)
        assert view.read(state, 1, 2) == (session.own[2],)

    @pytest.mark.parametrize("cursor", [3, 4, 2**64 - 1])
    def test_a_cursor_at_or_behind_the_end_reads_nothing(self, cursor):
        state, _ = session_of(message(1), message(2))

        assert view.read(state, 1, cursor) == ()

    @pytest.mark.parametrize("room", [0, 1, 200, 300, 1000])
    def test_pages_join_to_the_whole(self, room):
        state, session = session_of(*(message(i, text="x" * i) for i in range(20)))
        start = record(2, 11, forked(1, 11))
        assert apply_command(state, command(start)) is None
        for name in (1, 2):
            pages, cursor = [], 0
            while page := view.read(state, name, cursor, room=room):
                size = sum(len(encode(sent)) for sent in page)
                assert len(page) == 1 or size <= room
                pages.extend(page)
                cursor = page[-1].event_id + 1
            assert pages == list(tree.events(state, state.sessions[name]))
        assert len(view.read(state, 1, 0)) == session.length

    def test_a_page_is_filled(self):
        state, _ = session_of(*(prompt() for _ in range(50)))
        one = len(encode(state.sessions[1].own[7]))

        assert len(view.read(state, 1, 1, room=10 * one)) == 10

    def test_a_page_of_many_small_events_ends_too(self, monkeypatch):
        monkeypatch.setattr(view, "MAX_PAGE_EVENTS", 10)
        state, session = session_of(*(prompt() for _ in range(25)))

        assert view.read(state, 1, 3) == tuple(session.own[3:13])
        assert inspect(state).events == tuple(session.own[:10])

    @pytest.mark.slow
    def test_the_reply_fits_a_frame_where_it_is_full(self):
        state, _ = session_of(*(appended(text="é" * (MIB // 2)) for _ in range(70)))

        page = view.read(state, 1, 0)

        assert len(page) == 64
        assert MAX_FRAME - 2 * MIB < len(encode(response.Events(events=page))) <= MAX_FRAME


class TestInspection:
    def test_says_everything(self):
        state, session = session_of(
            message(1, 2),
            event.GenerationFingerprint(digest=9),
            prompt(3),
            reply(4, finish=2),
            event.QosSet(class_=1, batch_invariant=True),
            event.Pinned(deadline_unix_ms=77),
            event.MetaUpdated(version=1, title="t", archived=None),
        )

        found = inspect(state)

        assert found.summary == view.summary(state, session)
        assert (found.tokens, found.events) == ((1, 2, 3, 4), tuple(session.own))
        assert (found.params, found.epoch, found.last_finish) == (PARAMS, 1, 2)
        assert (found.qos_class, found.batch_invariant) == (1, True)
        assert (found.pin_deadline_unix_ms, found.behavior_fingerprint) == (77, 9)
        assert (found.tier, found.wal_version, found.store_id) == (COLD, 3, STORE_ID)
        assert found.open_tool_calls == ()

    def test_leaves_out_its_last_events_where_they_do_not_fit(self):
        state, session = session_of(*(message(1) for _ in range(10)))
        one = view.size_bound(session.own[3])

        cut = inspect(state, room=5 * session.tokens + len(encode(session.own[0])) + 3 * one)

        assert cut.events == tuple(session.own[:4])
        assert len(cut.tokens) == 10
        assert inspect(state, room=5 * session.tokens).events == ()

    def test_a_stream_that_does_not_fit_is_refused_and_not_cut(self):
        state, _ = session_of(appended(*range(10)))

        inspect(state, room=50)
        with pytest.raises(NotSupported, match="its 10 token ids do not fit one reply"):
            inspect(state, room=49)

    @pytest.mark.slow
    def test_fits_a_frame_where_it_is_full(self):
        title = "t" * MAX_TITLE_BYTES
        state, _ = session_of(
            event.MetaUpdated(version=2**64 - 1, title=title, archived=True),
            appended(*([2**32 - 1] * 100_000)),
            *(appended(text="é" * (MIB // 2)) for _ in range(70)),
        )

        found = inspect(state)

        assert 60 < len(found.events) < 70
        assert len(encode(response.Inspection(inspection=found))) <= MAX_FRAME


class TestLists:
    def state(self):
        state = State()
        for made in (
            record(3, 0, CREATED),
            record(1, 0, event.Created(parent=3, params=OTHER_PARAMS)),
            record(2, 1, forked(1, 1)),
            record(3, 1, event.MetaUpdated(version=1, title="old", archived=True)),
        ):
            assert apply_command(state, command(made)) is None
        return state

    def test_summaries_come_by_id_and_leave_archived_ones_out(self):
        state = self.state()

        assert [s.id for s in view.summaries(state, include_archived=False)] == [1, 2]
        everything = view.summaries(state, include_archived=True)
        assert [(s.id, s.parent, s.fork_at, s.title, s.archived) for s in everything] == [
            (1, 3, 0, None, False),
            (2, 1, 1, None, False),
            (3, None, 0, "old", True),
        ]
        assert [(s.events, s.tokens, s.open_tool_calls) for s in everything] == [
            (1, 0, 0),
            (2, 0, 0),
            (2, 0, 0),
        ]

    def test_the_tree_holds_archived_sessions_too(self):
        assert view.nodes(self.state()) == ((1, 3, 0), (2, 1, 1), (3, None, 0))


def test_a_session_that_is_not_there():
    for ask in (lambda: view.read(State(), 4, 0), lambda: inspect(State())):
        with pytest.raises(NoSuchSession, match="does not exist"):
            ask()


@given(values(EventBody))
@settings(max_examples=50, deadline=None)
def test_message_of_is_the_record_without_its_session(body):
    made = record(7, 3, body, epoch=2, ts=9)

    assert view.message_of(made) == EventMsg(event_id=3, epoch=2, ts_unix_ms=9, body=body)
