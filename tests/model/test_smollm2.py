"""The engine on the embedded default model: the same behaviour on weights that mean something."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing

import pytest
import trio
import trio.testing

from benchmarks import bare_loop
from superfluid.core.errors import WorkerLost
from superfluid.core.plan import JobState, Plan
from superfluid.worker.engine import Engine
from superfluid.worker.link import WorkerLink
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid.worker.llama.vocab import Vocabulary
from tests.worker.builders import admit, copy, ids, line, load, reply

pytestmark = pytest.mark.slow  # real weights

MODEL = find_model(EMBEDDED)
CHAT = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def vocabulary():
    with closing(Vocabulary.load(MODEL)) as vocabulary:
        yield vocabulary


@pytest.fixture(scope="module")
def engine():
    with closing(
        Engine.open(load(MODEL, n_ctx=1024, n_seq=4, n_batch=512, n_ubatch=512, threads=1))
    ) as engine:
        yield engine


@pytest.fixture
def prompt(vocabulary):
    return vocabulary.tokenize(CHAT, parse_special=True)


def test_it_answers_in_words_and_ends_by_itself(engine, vocabulary, prompt):
    answer = reply(engine, 1, 0, prompt, limit=60)

    text = b"".join(vocabulary.piece(token) for token in answer).decode()
    assert any(colour in text.lower() for colour in ("red", "blue", "green", "yellow"))
    assert answer[-1] in vocabulary.eog_ids


def test_bytes_per_token_are_what_the_engine_exports(engine, prompt):
    reply(engine, 2, 0, prompt, limit=1)
    exported = len(engine._context.export(0))

    assert 0 <= exported - engine.ready.bytes_per_token * len(prompt) < 20 * len(prompt) + 4096


def test_a_fork_starts_warm_and_says_the_same(engine, prompt):
    whole = reply(engine, 3, 0, prompt, limit=12)

    engine.run(Plan(id=1, moves=(copy(0, 2, len(prompt) - 1),)))
    forked = engine.run(
        Plan(
            id=2,
            admit=(admit(4, 2, prompt[-1:], start=len(prompt) - 1, limit=12),),
            prefill=((4, 1),),
            decode_rounds=11,
        )
    )

    assert (forked.prefill_rows, ids(forked, 4)) == (1, whole)


def test_a_cancel_from_another_thread_cuts_a_prefill_chunk(engine, monkeypatch):
    """The flag is read inside the engine's graph, while that thread holds no lock of the interpreter."""
    begun = threading.Event()
    decode_chunk = engine._context.decode_chunk

    def tell_and_decode(*args, **kwargs):
        begun.set()
        return decode_chunk(*args, **kwargs)

    monkeypatch.setattr(engine._context, "decode_chunk", tell_and_decode)
    canceller = threading.Thread(target=lambda: begun.wait(10) and engine.signals.cancel(5))
    canceller.start()
    long = [100 + i % 1000 for i in range(500)]
    result = engine.run(Plan(id=1, admit=(admit(5, 1, long),), prefill=((5, 1000),)))
    canceller.join()

    assert line(result, 5).state is JobState.CANCELLED
    assert (result.prefill_rows, result.positions) == (0, ((1, 0),))


async def test_a_worker_killed_in_a_prefill_is_lost():
    link = await WorkerLink.start(load(MODEL, n_ctx=2048, n_seq=1, n_batch=2048, n_ubatch=512, threads=1))
    try:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _kill():
                await trio.testing.wait_all_tasks_blocked()
                os.kill(link.pid, signal.SIGKILL)

            with trio.fail_after(2), pytest.raises(WorkerLost, match="SIGKILL"):
                await link.run(Plan(id=1, admit=(admit(1, 0, [7] * 2000),), prefill=((1, 2000),)))
    finally:
        await link.aclose()


DAEMON = """
import sys, trio, trio.testing
from superfluid.core.plan import Plan
from superfluid.worker.link import WorkerLink
from tests.worker.builders import admit, load

PLAN = Plan(id=1, admit=(admit(1, 0, [7] * 2000),), prefill=((1, 2000),))

async def main():
    one_call = load(sys.argv[1], n_ctx=2048, n_seq=1, n_batch=2048, n_ubatch=2048, threads=1)
    link = await WorkerLink.start(one_call)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, PLAN)
        await trio.testing.wait_all_tasks_blocked()
        print(link.pid, flush=True)

trio.run(main)
"""


async def test_a_daemon_killed_in_a_long_native_call_leaves_no_worker():
    """Field case: the worker kept the machine, because its link was only looked at between calls."""
    daemon = subprocess.Popen(  # noqa: ASYNC220 - as the daemon starts its workers
        [sys.executable, "-c", DAEMON, MODEL], stdout=subprocess.PIPE, text=True
    )
    with daemon:
        assert daemon.stdout is not None
        pidfd = os.pidfd_open(int(await trio.to_thread.run_sync(daemon.stdout.readline)))
        daemon.kill()
        try:
            with trio.fail_after(5):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


def test_the_bare_loop_that_the_daemon_is_measured_against_runs(prompt):
    result = bare_loop.run(MODEL, lanes=2, tokens=3, prompts=[prompt, prompt], threads=1)

    assert result.tokens == 6
    assert result.tokens_per_second > 0
