"""Measuring on tiny models through the real engine: the bits of their rows do depend on the shape of a batch."""

from contextlib import closing
from itertools import count
from types import SimpleNamespace

import pytest

from superfluid.core.capability import PADDINGS, Exactness, from_json
from superfluid.core.errors import WorkerStartFailed
from superfluid.worker import exactness as module
from superfluid.worker import main
from superfluid.worker.exactness import ENDS, exactness
from superfluid.worker.link import WorkerLink
from superfluid.worker.llama.context import Context, Outcome
from superfluid.worker.llama.model import Model
from superfluid.worker.machine import cpu, identity
from superfluid.worker.messages import EXACT_ASIDE
from superfluid.worker.probe import attention, probe
from tests.worker import builders

pytestmark = pytest.mark.slow


def load(path, **changes):
    return builders.load(path, **{"n_batch": 512, "n_ubatch": 512} | changes)


@pytest.fixture
def model(tiny_model):
    with closing(Model(tiny_model, vocab_only=False)) as model:
        yield model


def paddings(found):
    return [(trial.rows, trial.outputs) for trial in found.trials]


# -- exactness --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_model", "tiny_window_model"])
def test_padding_is_found_that_makes_rows_exact(name, request):
    """F32 weights: llamafile's kernels take two rows or more, in the last layer too."""
    path = request.getfixturevalue(name)
    shares = []
    with closing(Model(path, vocab_only=False)) as model:
        found = exactness(model, load(path), seconds=60, report=shares.append)

    assert found.found is not None
    assert paddings(found)[-1] == (2, 2)
    assert found.trials[0].mismatch.startswith("lone rows")
    assert found.trials[1].mismatch.startswith("neighbours")
    assert found.cost > 0
    assert found.why_not() == ""
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_context_that_nothing_makes_exact_is_tried_to_the_end(model, tiny_model):
    found = exactness(model, load(tiny_model, flash_attn="on"), seconds=60)

    assert paddings(found) == list(PADDINGS)
    assert all(trial.mismatch for trial in found.trials)
    assert "depend on what is computed beside them" in found.why_not()


def test_rows_that_cannot_be_cut_off_again_are_not_padded(tiny_recurrent_model):
    with closing(Model(tiny_recurrent_model, vocab_only=False)) as model:
        found = exactness(model, load(tiny_recurrent_model), seconds=60)

    assert paddings(found) == [(1, 1)]
    assert found.why_not()


def test_rows_are_compared_on_one_thread_and_at_the_end_on_as_many_as_serve(model, tiny_model, monkeypatch):
    started, changed = [], []
    make = Context.__init__

    def note(context, model, asked):
        started.append(asked.threads)
        make(context, model, asked)

    monkeypatch.setattr(Context, "__init__", note)
    monkeypatch.setattr(Context, "set_threads", lambda _context, threads: changed.append(threads))

    assert exactness(model, load(tiny_model, threads=3), seconds=60).found is not None
    assert set(started) == {1}
    assert changed == [3]


def test_a_context_that_cannot_be_made_says_why(model, tiny_model):
    found = exactness(model, load(tiny_model, kv_type="q8_0"), seconds=60)

    assert found.trials == ()
    assert "no context can be made" in found.why_not()


def test_a_measurement_is_given_up_when_time_is_up(model, tiny_model):
    ticks = count()

    found = exactness(model, load(tiny_model), seconds=100, clock=lambda: next(ticks))

    assert found.found is None
    assert found.why_not().startswith("it could not be measured within 100 s: time was up at 'lone rows'")


def test_an_engine_that_fails_ends_the_measurement(model, tiny_model, monkeypatch):
    monkeypatch.setattr(Context, "decode_chunk", lambda *_args, **_options: Outcome.FAILED)

    assert "the engine failed" in exactness(model, load(tiny_model), seconds=60).why_not()


def test_a_sequence_that_cannot_be_moved_ends_the_measurement(model, tiny_model, monkeypatch):
    monkeypatch.setattr(module, "PADDINGS", ((2, 2),))
    monkeypatch.setattr(Context, "export", lambda *_args: None)

    assert "could not move" in exactness(model, load(tiny_model), seconds=60).why_not()


@pytest.mark.parametrize("shape", module.SHAPES)
def test_each_shape_looks_at_the_last_row(model, tiny_model, monkeypatch, shape):
    """Each gives a digest of the last row, and those of rows that padding makes exact are the reference's."""
    small = load(tiny_model, n_seq=8, exact_rows=2, exact_outputs=2)
    budget = module._Budget(seconds=60, clock=lambda: 0.0, report=lambda _share: None)
    budget.padding = 2, 2
    with closing(Context(model, small)) as context:
        bench = module._Bench(context, model.n_vocab, budget)
        run = getattr(
            module,
            {
                "whole": "_whole",
                "lone rows": "_lone",
                "odd chunks": "_odd",
                "neighbours": "_beside",
                "import": "_imported",
                "threads": "_threads",
            }[shape],
        )
        points = dict(run(bench))

    assert ENDS[-1] in points
    with closing(Context(model, small)) as context:
        bench = module._Bench(context, model.n_vocab, budget)
        line = bench.line(0)
        reference = {end: bench.chunk(line, end) for end in ENDS}
    assert {n: points[n] for n in points if n in reference} == {
        n: reference[n] for n in points if n in reference
    }


# -- attention --------------------------------------------------------------------------------------


def test_both_kernels_are_timed_at_two_depths(model, tiny_model):
    shares = []

    times = attention(model, load(tiny_model), shares.append)

    assert [time.flash_attn for time in times] == ["off", "on"]
    assert len({time.depth for time in times}) == 1
    assert all(time.first_us > 0 and time.deep_us > 0 for time in times)
    assert shares[-1] == 1.0


def test_a_kernel_that_fails_leaves_nothing_to_compare(model, tiny_model, monkeypatch):
    monkeypatch.setattr(Context, "decode_chunk", lambda *_args, **_options: Outcome.FAILED)

    assert attention(model, load(tiny_model), lambda _share: None) == ()


def test_a_model_too_slow_to_get_deep_is_not_compared(model, tiny_model, monkeypatch):
    monkeypatch.setattr("superfluid.worker.probe._PREFILL_SECONDS", -1.0)

    assert attention(model, load(tiny_model), lambda _share: None) == ()
    record = from_json(probe(load(tiny_model, probe="attention"), lambda _share: None))
    assert "could not be compared" in record.trouble


# -- the process ------------------------------------------------------------------------------------


async def test_a_worker_compares_kernels_and_ends(tiny_model):
    asked = load(tiny_model, probe="attention")
    shares = []

    found = from_json(await WorkerLink.probe(asked, on_progress=shares.append))

    assert found.identity == identity(asked, model="")
    assert found.attention
    assert found.exactness is None
    assert shares == sorted(shares)


async def test_a_worker_compares_rows_and_ends(tiny_recurrent_model):
    found = from_json(await WorkerLink.probe(load(tiny_recurrent_model, probe="exact")))

    assert found.attention == ()
    assert paddings(found.exactness) == [(1, 1)]


@pytest.mark.parametrize(("kind", "nice"), [("exact", 0), (EXACT_ASIDE, 19)])
def test_beside_a_worker_that_serves_it_is_measured_at_the_lowest_priority(
    tiny_model, monkeypatch, kind, nice
):
    """Not in a process of its own: on a busy machine that would not get anywhere."""
    set_to, sent = [], []

    def measure(_model, _asked, **_options):
        return Exactness(positions=0, plain_us=0, trials=())

    monkeypatch.setattr(main.os, "setpriority", lambda _which, _who, priority: set_to.append(priority))
    monkeypatch.setattr("superfluid.worker.probe.exactness", measure)

    code = main._probe(load(tiny_model, probe=kind, threads=3), SimpleNamespace(send=sent.append))

    assert code == 0
    assert set_to == [nice]
    assert from_json(sent[-1].record).identity.threads == 3


async def test_a_model_that_cannot_be_loaded_cannot_be_measured(tmp_path):
    with pytest.raises(WorkerStartFailed, match="does not exist"):
        await WorkerLink.probe(load(tmp_path / "none.gguf", probe="attention"))


# -- the machine ------------------------------------------------------------------------------------


def test_a_processor_is_known_by_name_and_features():
    x86 = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: a b\n\nprocessor\t: 1\nmodel name\t: Other\n"

    assert cpu(x86).startswith("Some CPU (")
    assert cpu(x86) != cpu(x86.replace("a b", "a b c"))
    assert cpu("processor: 0\nCPU part\t: 0xd40\nFeatures\t: fp asimd\n").startswith("0xd40 (")
    assert cpu("") == cpu("nothing known")
