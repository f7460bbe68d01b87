"""Decide, append, sync, apply, publish: what a caller of `submit` may rely on, over a real log."""

import threading
import time
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core import session as decide
from superfluid.core import tree
from superfluid.core.errors import (
    BadRequest,
    ClientError,
    InternalError,
    LogReadOnly,
    LogRefused,
    LogUnknown,
    ShuttingDown,
)
from superfluid.core.limits import INLINE_BYTES
from superfluid.core.pace import FAST_RUN
from superfluid.core.record import Command, Record, encode_command
from superfluid.core.session import Decision
from superfluid_protocol import event
from tests.daemon import GREEDY
from tests.store.conftest import NOW_MS, replay, serving

N_VOCAB = 1000


async def create(store):
    records = await store.submit(None, lambda s: decide.create(s, store.new_id(), None, GREEDY))
    return records[0].session


async def append(store, session, text, span=(1,)):
    return await store.submit(
        session, lambda s: decide.append(s, store.busy, session, text, span, n_vocab=N_VOCAB)
    )


def texts(state, session):
    return [
        m.body.text
        for m in tree.events(state, tree.get(state, session))
        if isinstance(m.body, event.Appended)
    ]


@contextmanager
def held_fsync(files):
    """Inside, a commit that has begun does not end."""
    files.hold()
    try:
        yield
    finally:
        files.release()


async def in_flight(files):
    """Wait until a commit is inside its fsync."""
    await trio.to_thread.run_sync(files.entered.acquire)


# -- the good way -----------------------------------------------------------------------------------


async def test_a_command_is_durable_applied_and_answered(store, files, tmp_path):
    session = await create(store)
    before = len(files.synced)

    records = await append(store, session, "hello")

    assert files.synced[before:] == ["wal.log"]
    assert records == (
        Record(
            session=session,
            event_id=1,
            epoch=store.log.epoch,
            ts_unix_ms=NOW_MS,
            body=event.Appended(text="hello", span=(1,)),
        ),
    )
    assert texts(store.state, session) == ["hello"]


async def test_nothing_is_applied_before_it_is_synced(store, files):
    session = await create(store)
    async with trio.open_nursery() as nursery:
        with held_fsync(files):
            while files.entered.acquire(blocking=False):
                pass
            nursery.start_soon(append, store, session, "hello")
            await in_flight(files)
            assert texts(store.state, session) == []
    assert texts(store.state, session) == ["hello"]


async def test_commands_that_wait_share_one_fsync(store, files):
    sessions = [await create(store) for _ in range(50)]
    store.pace.note(1.0)  # a slow disk: what it is given now goes to a thread
    batches, syncs = store.statistics.batches, files.synced.count("wal.log")
    async with trio.open_nursery() as nursery:
        with held_fsync(files):
            while files.entered.acquire(blocking=False):
                pass
            nursery.start_soon(append, store, sessions[0], "first")
            await in_flight(files)
            for session in sessions[1:]:
                nursery.start_soon(append, store, session, "waits")
            await wait_all_tasks_blocked()

    assert store.statistics.batches - batches == 2
    assert files.synced.count("wal.log") - syncs == 2
    assert all(len(texts(store.state, session)) == 1 for session in sessions)


async def test_a_lone_command_on_a_fast_disk_is_written_without_a_thread(store, files, monkeypatch):
    session = await create(store)
    for _ in range(FAST_RUN):
        store.pace.note(0.0)
    threads = []
    monkeypatch.setattr(files, "fsync", _noting(files.fsync, threads))

    await append(store, session, "inline")
    store.pace.note(1.0)
    await append(store, session, "in a thread")

    assert threads[0] is threading.main_thread()
    assert threading.main_thread() not in threads[1:]
    assert texts(store.state, session) == ["inline", "in a thread"]


def _noting(function, threads):
    def noting(fd):
        threads.append(threading.current_thread())
        return function(fd)

    return noting


async def test_commands_of_one_session_go_one_a_batch_in_order(store):
    session, other = await create(store), await create(store)
    batches = store.statistics.batches
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(append, store, session, f"text {number}")
            await wait_all_tasks_blocked(0)
            nursery.start_soon(append, store, other, f"text {number}")

    assert sorted(texts(store.state, session)) == [f"text {number}" for number in range(10)]
    assert store.statistics.batches - batches >= 10
    ids = [m.event_id for m in tree.events(store.state, tree.get(store.state, session))]
    assert ids == list(range(11))


async def test_a_large_command_makes_a_batch_of_its_own(store, files, monkeypatch):
    monkeypatch.setattr("superfluid.store.store.MAX_BATCH_BYTES", 10_000)
    sessions = [await create(store) for _ in range(5)]
    sizes = []
    commit = store.log.commit
    monkeypatch.setattr(store.log, "commit", lambda encoded: sizes.append(len(encoded)) or commit(encoded))
    async with trio.open_nursery() as nursery:
        with held_fsync(files):
            while files.entered.acquire(blocking=False):
                pass
            nursery.start_soon(append, store, sessions[0], "in flight")
            await in_flight(files)
            for index, length in enumerate([10, 50_000, 10, 6_000, 6_000]):
                nursery.start_soon(append, store, sessions[index], "x" * length)
                await wait_all_tasks_blocked()

    assert sizes == [1, 1, 1, 2, 1]
    assert [len(texts(store.state, session)) for session in sessions] == [2, 1, 1, 1, 1]


async def test_a_decision_sees_the_head_it_extends(store):
    """Read-modify-write through the guard of SetMeta: of many with one version, one wins."""
    session = await create(store)
    won, refused = [], []

    async def set_title(title):
        try:
            await store.submit(session, lambda s: decide.set_meta(s, session, 0, title, None))
            won.append(title)
        except ClientError:
            refused.append(title)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(set_title, f"title {number}")

    assert len(won) == 1
    assert len(refused) == 9
    assert tree.get(store.state, session).title == won[0]


async def test_a_decision_without_records_costs_no_write(store, files):
    session = await create(store)
    before = len(files.synced)

    assert await store.submit(session, lambda _s: Decision(session=session, bodies=())) == ()

    assert len(files.synced) == before


async def test_a_watcher_is_woken_by_its_sessions_records_alone(store):
    session, other = await create(store), await create(store)
    woken = False

    async def watch():
        nonlocal woken
        await store.wait_for_change(session)
        woken = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await wait_all_tasks_blocked()
        await append(store, other, "not this one")
        await wait_all_tasks_blocked()
        assert not woken
        await append(store, session, "this one")
    assert woken


# -- threads ----------------------------------------------------------------------------------------


async def test_slow_work_in_all_shared_threads_delays_no_write(store):
    session = await create(store)
    shared = trio.to_thread.current_default_thread_limiter()
    for slot in range(int(shared.total_tokens)):
        shared.acquire_on_behalf_of_nowait(slot)
    try:
        with trio.fail_after(10):
            await append(store, session, "passes")
            await trio.sleep(max(0.0, store.log.mark_due_at - time.monotonic()))
            await append(store, session, "passes, and the mark is synced")
    finally:
        for slot in range(int(shared.total_tokens)):
            shared.release_on_behalf_of(slot)


async def test_a_large_command_is_encoded_beside_the_event_loop(store, monkeypatch):
    session = await create(store)
    threads = []

    def encode(command):
        threads.append(threading.current_thread() is threading.main_thread())
        return encode_command(command)

    monkeypatch.setattr("superfluid.store.store.encode_command", encode)
    await append(store, session, "small")
    await append(store, session, "x" * (INLINE_BYTES + 1))
    await append(store, session, "", span=(1,) * (INLINE_BYTES // 4 + 1))

    assert threads == [True, False, False]


# -- cancelled callers ------------------------------------------------------------------------------


async def test_a_caller_that_leaves_before_its_command_is_taken_takes_it_along(store, files, tmp_path):
    one, two = await create(store), await create(store)
    async with trio.open_nursery() as nursery:
        with held_fsync(files):
            while files.entered.acquire(blocking=False):
                pass
            nursery.start_soon(append, store, one, "in flight")
            await in_flight(files)
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_when_blocked, scope)
                await append(store, two, "withdrawn")
            assert scope.cancelled_caught
    await append(store, one, "afterwards")

    assert texts(store.state, one) == ["in flight", "afterwards"]
    assert texts(store.state, two) == []


async def test_a_caller_that_leaves_later_waits_for_what_cannot_be_taken_back(store, files):
    session = await create(store)
    while files.entered.acquire(blocking=False):
        pass
    files.hold()
    answered = []
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            async def leave():
                await in_flight(files)
                scope.cancel()
                await wait_all_tasks_blocked(0.01)
                assert answered == []
                files.release()

            nursery.start_soon(leave)
            answered.append(await append(store, session, "handed over"))
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught

    assert len(answered) == 1
    assert texts(store.state, session) == ["handed over"]


async def cancel_when_blocked(scope):
    await wait_all_tasks_blocked()
    scope.cancel()


# -- refusals ---------------------------------------------------------------------------------------


def refuse(_state):
    raise BadRequest("not this one")


def broken(_state):
    raise RuntimeError("a bug")


def unencodable(session, _state):
    return Decision(session=session, bodies=(event.Appended(text="\ud83d", span=()),))


async def test_refusals_in_a_batch_touch_nobody_else(store, files):
    sessions = [await create(store) for _ in range(6)]
    faults = {1: refuse, 2: broken, 3: partial(unencodable, sessions[3])}
    caught = {}

    async def submit(index):
        if index not in faults:
            await append(store, sessions[index], f"text {index}")
            return
        with pytest.raises(Exception) as failure:  # noqa: PT011 - which one is compared below
            await store.submit(sessions[index], faults[index])
        caught[index] = type(failure.value)

    async with trio.open_nursery() as nursery:
        with held_fsync(files):
            while files.entered.acquire(blocking=False):
                pass
            nursery.start_soon(submit, 0)
            await in_flight(files)
            for index in range(1, 6):
                nursery.start_soon(submit, index)
            await wait_all_tasks_blocked()

    assert caught == {1: BadRequest, 2: InternalError, 3: BadRequest}
    assert [texts(store.state, s) for s in sessions] == [["text 0"], [], [], [], ["text 4"], ["text 5"]]


async def test_a_large_command_that_cannot_be_encoded_touches_nobody_else(store, files):
    first, good, bad = [await create(store) for _ in range(3)]
    body = event.Appended(text="\ud83d" * INLINE_BYTES, span=())

    async def submit_bad():
        with pytest.raises(BadRequest):
            await store.submit(bad, lambda _s: Decision(session=bad, bodies=(body,)))

    async with trio.open_nursery() as nursery:
        with held_fsync(files):
            while files.entered.acquire(blocking=False):
                pass
            nursery.start_soon(append, store, first, "in flight")
            await in_flight(files)
            nursery.start_soon(submit_bad)
            nursery.start_soon(append, store, good, "good")
            await wait_all_tasks_blocked()

    assert [texts(store.state, session) for session in (good, bad)] == [["good"], []]
    await append(store, bad, "goes on")


async def test_a_closed_store_takes_nothing(tmp_path):
    async with serving(tmp_path) as store:
        session = await create(store)
        store.close()
        with pytest.raises(ShuttingDown):
            await append(store, session, "too late")


async def test_closing_answers_what_was_submitted_before(tmp_path, files):
    async with serving(tmp_path, files) as store:
        sessions = [await create(store) for _ in range(5)]
        files.hold()
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(append, store, session, "before the end")
            await wait_all_tasks_blocked(0.01)
            store.close()
            files.release()

    state = replay(tmp_path)
    assert all(texts(state, session) == ["before the end"] for session in sessions)


async def test_a_frozen_session_takes_no_writes_and_the_others_do(tmp_path):
    async with serving(tmp_path) as store:
        frozen, other = await create(store), await create(store)
        gap = Record(
            session=frozen, event_id=7, epoch=1, ts_unix_ms=0, body=event.Appended(text="x", span=())
        )
        command = Command(op_id=None, digest=None, request_id=None, records=(gap,))
        await trio.to_thread.run_sync(store.log.commit, [encode_command(command)])

    async with serving(tmp_path) as store:
        with pytest.raises(LogReadOnly, match="is frozen"):
            await append(store, frozen, "no")
        await append(store, other, "yes")
        fork = await store.submit(None, lambda s: decide.fork(s, store.new_id(), frozen, 1, None))

        assert len(list(tree.events(store.state, tree.get(store.state, frozen)))) == 1
        await append(store, fork[0].session, "goes on here")


# -- disks that refuse ------------------------------------------------------------------------------


async def test_after_a_failed_fsync_the_outcome_is_unknown_and_nothing_more_is_written(tmp_path, files):
    async with serving(tmp_path, files) as store:
        session, other = await create(store), await create(store)
        await append(store, session, "safe")
        end = (tmp_path / "wal.log").stat().st_size
        files.fail_next()
        caught = []

        async def submit(to):
            with pytest.raises(LogUnknown, match="unknown") as failure:
                await append(store, to, "who knows")
            caught.append(failure.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit, session)
            nursery.start_soon(submit, other)

        assert caught[0] is not caught[1], "each caller gets an exception of its own"
        assert texts(store.state, session) == ["safe"], "reads go on, without it"
        written = (tmp_path / "wal.log").stat().st_size
        assert written > end
        with pytest.raises(LogReadOnly, match="read-only until a restart"):
            await append(store, session, "no more")
        assert store.log.read_only is not None

    assert (tmp_path / "wal.log").stat().st_size == written, "no closing frame either"
    assert set(texts(replay(tmp_path), session)) <= {"safe", "who knows"}


async def test_a_log_that_refuses_is_told_once_a_change(store, files, monkeypatch):
    session = await create(store)
    commit, full = store.log.commit, LogRefused("the disk is full")

    def refuse_all(_encoded):
        raise full

    with structlog.testing.capture_logs() as lines:
        for disk in (refuse_all, commit, refuse_all):
            monkeypatch.setattr(store.log, "commit", disk)
            for _ in range(3):
                with suppress(LogRefused):
                    await append(store, session, "perhaps")
        monkeypatch.setattr(store.log, "commit", commit)
        files.fail_next()
        for _ in range(4):
            with pytest.raises((LogUnknown, LogReadOnly)):
                await append(store, session, "no")

    assert [line.get("error", line["event"]) for line in lines] == [
        "LogRefused",
        "log writes go on",
        "LogRefused",
        "LogUnknown",
        "LogReadOnly",
    ]


async def test_a_committer_that_fails_leaves_nobody_waiting(tmp_path, monkeypatch):
    told = []

    async def submit(store, session):
        with pytest.raises(LogUnknown, match="after a restart"):
            await append(store, session, "who knows")
        told.append(session)

    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with serving(tmp_path) as store:
            sessions = [await create(store) for _ in range(3)]

            def broken_commit(_encoded):
                raise RuntimeError("nobody foresaw this")

            monkeypatch.setattr(store.log, "commit", broken_commit)
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(submit, store, session)

    assert sorted(told) == sessions


async def test_an_idle_log_gets_its_mark_synced(store, files):
    session = await create(store)
    synced = trio.Event()

    def note(name):
        if name == "wal.mark":
            trio.from_thread.run_sync(synced.set)

    files.on_sync = note
    await append(store, session, "the last for long")
    assert store.log.mark_due_at is not None

    with trio.fail_after(10):
        await synced.wait()

    files.on_sync = None
    assert files.synced[-2:] == ["wal.log", "wal.mark"]
