"""What is measured is kept and found again; what cannot be measured, read or written keeps nobody from serving."""

from dataclasses import replace

import pytest

from superfluid.core.capability import Capability, Exactness, Identity, KernelTime, Trial, to_json
from superfluid.core.errors import WorkerLost, WorkerStartFailed
from superfluid.sched.probing import Prober
from superfluid.worker.messages import EXACT_ASIDE, Load

LOAD = Load(model_path="m.gguf", n_ctx=512, n_seq=4)
NOBODY = Identity(
    model="",
    library="other",
    cpu="other",
    threads=9,
    n_ubatch=9,
    kernels="fast",
    flash_attn="off",
    kv_type="f16",
)
TIMES = tuple(
    KernelTime(flash_attn=flash, depth=500, first_us=10, batch_us=30, deep_us=20 + 5 * (flash == "on"))
    for flash in ("off", "on")
)


def trial(rows, mismatch="", step_us=100):
    return Trial(rows=rows, outputs=1, mismatch=mismatch, step_us=step_us)


def exactness(*trials, unfinished=""):
    return Exactness(positions=448, plain_us=100, trials=trials, unfinished=unfinished)


EXACT = exactness(trial(1, "lone rows"), trial(2, step_us=150))
INEXACT = exactness(trial(1, "lone rows"))


class Probe:
    """A worker that answers what it is told to, by attention kernel and KV type."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def __call__(self, load, *, on_progress):
        self.asked.append(load)
        if on_progress is not None:
            on_progress(0.5)
        answer = self.answers.get(f"{load.flash_attn}_{load.kv_type}", self.answers.get("any"))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return answer
        if isinstance(answer, tuple):
            return to_json(Capability(identity=NOBODY, attention=answer))
        return to_json(Capability(identity=NOBODY, exactness=answer))


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "a" / "cache"


@pytest.fixture
def make(cache):
    def make(probe, *, model="m1", on_progress=None):
        return Prober(model=model, cache=cache, probe=probe, now_ms=lambda: 7, on_progress=on_progress)

    return make


async def test_what_was_measured_is_found_by_the_next_daemon(make, cache):
    first, second = Probe(any=TIMES), Probe(any=WorkerLost("not again"))

    found = await make(first).attention(LOAD)
    again = await make(second).attention(LOAD)

    assert found.attention == TIMES
    assert found.measured_ms == 7
    assert found.identity.model == "m1"
    assert found.identity.threads == LOAD.threads
    assert again == found
    assert second.asked == []
    assert [load.probe for load in first.asked] == ["attention"]
    (path,) = cache.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert cache.stat().st_mode & 0o777 == 0o700


async def test_another_model_thread_count_or_kernel_is_measured_by_itself(make):
    probe = Probe(any=EXACT)

    for model, load in [
        ("m1", LOAD),
        ("m2", LOAD),
        ("m1", replace(LOAD, threads=5)),
        ("m1", replace(LOAD, flash_attn="on")),
    ]:
        assert (await make(probe, model=model).exactness(load)).exactness == EXACT

    assert len(probe.asked) == 4


async def test_sizes_of_the_pool_are_none_of_it(make):
    probe = Probe(any=EXACT)

    await make(probe).exactness(LOAD)
    await make(probe).exactness(replace(LOAD, n_ctx=9999, n_seq=64, exact_rows=8))

    assert len(probe.asked) == 1


async def test_beside_a_worker_the_same_is_measured_in_another_way(make):
    probe = Probe(any=EXACT)

    await make(probe).exactness(LOAD, aside=True)
    await make(probe).exactness(LOAD)

    assert [load.probe for load in probe.asked] == [EXACT_ASIDE]


async def test_it_is_measured_again_where_that_is_asked(make):
    await make(Probe(any=INEXACT)).exactness(LOAD)

    assert (await make(Probe(any=EXACT)).exactness(LOAD, again=True)).exactness == EXACT
    assert (await make(Probe()).exactness(LOAD)).exactness == EXACT


async def test_what_is_kept_can_be_asked_for_alone(make):
    probe = Probe(any=EXACT)

    assert await make(probe).kept_exactness(LOAD) is None
    await make(probe).exactness(LOAD)

    assert (await make(probe).kept_exactness(LOAD)).exactness == EXACT
    assert len(probe.asked) == 1


@pytest.mark.parametrize("damage", ["cut", "emptied", "of another", "a directory"])
async def test_a_damaged_file_is_measured_again(make, cache, damage):
    await make(Probe(any=EXACT)).exactness(LOAD)
    (path,) = cache.iterdir()
    text = path.read_text()
    match damage:
        case "cut":
            path.write_text(text[:-1])
        case "emptied":
            path.write_text("")
        case "of another":
            path.write_text(text.replace('"m1"', '"m2"'))
        case "a directory":
            path.unlink()
            path.mkdir()
    probe = Probe(any=INEXACT)

    assert (await make(probe).exactness(LOAD)).exactness == INEXACT
    assert len(probe.asked) == 1


@pytest.mark.parametrize(
    "failure", [WorkerLost("killed by SIGILL"), WorkerStartFailed("memory", "too little")]
)
async def test_a_probe_that_fails_is_trouble_and_no_more(make, cache, failure):
    found = await make(Probe(any=failure)).attention(LOAD)

    assert found.attention == ()
    assert str(failure) in found.trouble
    assert not cache.exists()


async def test_a_probe_that_answers_garbage_is_trouble_too(make):
    found = await make(Probe(any="[]")).exactness(LOAD)

    assert "garbage" in found.batch_invariant


async def test_what_was_not_finished_is_not_kept(make, cache):
    found = await make(Probe(any=exactness(unfinished="too slow"))).exactness(LOAD)

    assert found.batch_invariant == "too slow"
    assert not cache.exists()


async def test_a_cache_that_cannot_be_written_is_a_warning(make, cache, capsys):
    cache.parent.write_text("a file")

    found = await make(Probe(any=EXACT)).exactness(LOAD)

    assert found.exactness == EXACT
    assert "cannot be kept" in capsys.readouterr().out


async def test_progress_is_told(make):
    shares = []

    await make(Probe(any=EXACT), on_progress=shares.append).exactness(LOAD)

    assert shares == [0.5]


# -- the tactic -------------------------------------------------------------------------------------

CONTEXTS = [
    LOAD,
    replace(LOAD, flash_attn="on", kv_type="q8_0"),
    replace(LOAD, flash_attn="on", kv_type="bf16"),
]


async def test_a_cheap_tactic_is_taken_without_a_look_at_others(make):
    probe = Probe(off_f16=EXACT)

    chosen, why_not = await make(probe).tactic(CONTEXTS)

    assert chosen.tactic.rows == 2
    assert why_not == ""
    assert len(probe.asked) == 1


async def test_a_dear_one_is_compared_with_the_others(make):
    dear = exactness(trial(1, "lone rows"), trial(8, step_us=500))
    probe = Probe(off_f16=dear, on_q8_0=INEXACT, on_bf16=exactness(trial(1, step_us=300)))

    chosen, _ = await make(probe).tactic(CONTEXTS)

    assert (chosen.tactic.flash_attn, chosen.tactic.kv_type, chosen.tactic.rows) == ("on", "bf16", 1)
    assert len(probe.asked) == 3


async def test_without_a_tactic_every_context_says_why(make):
    probe = Probe(off_f16=INEXACT, on_q8_0=WorkerLost("gone"), on_bf16=exactness(unfinished="too slow"))

    chosen, why_not = await make(probe).tactic(CONTEXTS)

    assert chosen is None
    for words in (
        "f16 with flash attention off and fast kernels: rows",
        "gone",
        "on and fast kernels: too slow",
    ):
        assert words in why_not
