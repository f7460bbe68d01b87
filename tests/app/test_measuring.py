"""What the daemon measures, when, and how it then serves."""

from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from superfluid.app.config import ServeConfig
from superfluid.app.measuring import EXACT_CONTEXTS, Measuring, cache_directory
from superfluid.core.capability import Capability, Exactness, Identity, KernelTime, Trial
from superfluid.core.errors import StartError
from superfluid.worker.messages import Load
from superfluid_protocol import request, response
from tests.tiny_gguf import write_tiny_gguf

LOAD = Load(model_path="m.gguf", n_ctx=2048, n_seq=4)
IDENTITY = Identity(
    model="m", library="l", cpu="c", threads=2, n_ubatch=512, kernels="fast", flash_attn="off", kv_type="f16"
)
TIMES = (
    KernelTime(flash_attn="off", depth=500, first_us=100, batch_us=800, deep_us=200),
    KernelTime(flash_attn="on", depth=500, first_us=50, batch_us=400, deep_us=250),
)
"""On is faster up to a depth of 250, with any number of lanes."""


def known(rows, outputs=1, **identity):
    trial = Trial(rows=rows, outputs=outputs, mismatch="", step_us=10 * rows)
    return Capability(
        identity=replace(IDENTITY, **identity),
        exactness=Exactness(positions=448, plain_us=10, trials=(trial,)),
    )


NOT_EXACT = Capability(
    identity=IDENTITY,
    exactness=Exactness(
        positions=448, plain_us=10, trials=(Trial(rows=1, outputs=1, mismatch="lone rows", step_us=10),)
    ),
)


class Prober:
    """Knows everything already, and how often it was asked."""

    def __init__(self, *, attention=TIMES, kept=None, found=NOT_EXACT, chosen=(None, "f16: no"), trouble=""):
        self._attention = Capability(identity=IDENTITY, attention=attention, trouble=trouble)
        self._kept, self._found, self._chosen = kept, found, chosen
        self.measured = []
        self.tried = []

    def __call__(self, *, model, cache, on_progress):
        on_progress(0.1)
        on_progress(0.2)
        return self

    async def attention(self, load):
        return self._attention

    async def kept_exactness(self, load):
        return self._kept

    async def exactness(self, load, *, aside=False):
        self.measured.append((load, aside))
        await trio.sleep(1)
        return self._found

    async def tactic(self, loads):
        self.tried = [(load.kernels, load.flash_attn, load.kv_type) for load in loads]
        return self._chosen


async def measuring(prober, **settings):
    config = ServeConfig(model="m", sessions=Path("s"), socket=Path("x"), **settings)
    one = Measuring(
        config, replace(LOAD, n_ctx=settings.get("max_context", 2048)), cache=Path("c"), make_prober=prober
    )
    one.identify("m")
    return one


# -- the kernel -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "kernel"), [(256, "on"), (2048, "off"), (0, "off")])
async def test_the_kernel_is_the_faster_one_at_half_the_context(context, kernel):
    prepared = await (await measuring(Prober(), max_context=context)).prepare()

    assert prepared.load.flash_attn == kernel


@pytest.mark.parametrize("kernel", ["off", "on"])
async def test_a_kernel_that_was_asked_for_is_not_measured(kernel):
    one = await measuring(Prober(), flash_attn=kernel)

    assert (await one.prepare()).load.flash_attn == kernel
    assert one.capability is None


async def test_what_cannot_be_measured_is_served_without_flash_attention():
    one = await measuring(Prober(attention=(), trouble="the worker died"))

    assert (await one.prepare()).load.flash_attn == "off"
    assert one.capability.trouble == "the worker died"


# -- exactness --------------------------------------------------------------------------------------


async def test_an_exact_daemon_takes_the_context_that_was_chosen():
    prober = Prober(chosen=(known(2, 2, flash_attn="on", kv_type="bf16"), ""))
    one = await measuring(prober, exact=True)

    load = (await one.prepare()).load

    assert (load.flash_attn, load.kv_type, load.exact_rows, load.exact_outputs) == ("on", "bf16", 2, 2)
    assert prober.tried == [("fast", "off", "f16"), *EXACT_CONTEXTS]
    assert (await one.exactness()).batch_invariant is True
    assert one.capability.attention == TIMES
    assert prober.measured == []


@pytest.mark.parametrize(
    ("kernel", "contexts"),
    [
        ("off", [("fast", "off", "f16"), ("plain", "off", "f16")]),
        ("on", [("fast", "on", "f16"), *(one for one in EXACT_CONTEXTS if one[1] == "on")]),
    ],
)
async def test_other_contexts_have_the_kernel_that_was_asked_for(kernel, contexts):
    prober = Prober(chosen=(known(1), ""))

    prepared = await (await measuring(prober, exact=True, flash_attn=kernel)).prepare()

    assert prober.tried == contexts
    assert prepared.invariant


async def test_an_exact_daemon_does_not_start_where_nothing_is_exact():
    one = await measuring(Prober(), exact=True)

    with pytest.raises(StartError, match=r"--exact cannot be had .* f16: no"):
        await one.prepare()


@pytest.mark.parametrize(
    ("kept", "padding", "invariant"),
    [(None, (8, 8), False), (known(2), (2, 1), False), (known(1), (1, 1), True), (NOT_EXACT, (8, 8), False)],
)
async def test_others_pad_exact_sessions_as_far_as_is_known(kept, padding, invariant):
    prepared = await (await measuring(Prober(kept=kept))).prepare()

    assert (prepared.load.exact_rows, prepared.load.exact_outputs) == padding
    assert prepared.invariant is invariant


async def test_it_is_measured_once_when_a_session_asks(autojump_clock):
    prober = Prober(found=known(2))
    one = await measuring(prober)
    answers = []

    async def ask():
        answers.append((await one.exactness()).batch_invariant)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert prober.measured == []  # there is no worker beside which
        await one.prepare()

    assert answers == [True] * 3
    assert [aside for _, aside in prober.measured] == [True]


async def test_who_stops_waiting_leaves_the_measurement_to_the_next(autojump_clock):
    prober = Prober(found=known(2))
    one = await measuring(prober)
    await one.prepare()

    with trio.move_on_after(0.5):
        await one.exactness()

    assert (await one.exactness()).batch_invariant is True
    assert len(prober.measured) == 2


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"SUPERFLUID_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/superfluid"),
        ({"HOME": "/h"}, "/h/.cache/superfluid"),
        ({}, "/.cache/superfluid"),
    ],
)
def test_where_measurements_are_kept(environ, path):
    assert cache_directory(environ) == Path(path)


# -- the daemon -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_daemon_measures_once_and_serves_exactly(tmp_path, endless_model, make_daemon):
    cache = {"SUPERFLUID_CACHE": str(tmp_path / "cache")}
    daemon = make_daemon(tmp_path, endless_model, "--flash-attn", "auto", "--exact", environ=cache)
    daemon.start().wait_for("ready", timeout=60)
    assert daemon.wait_for("replies are exact")["rows"] == 2
    with daemon.client() as client:
        session = client.create()
        assert isinstance(
            client.call(request.SetQos(session=session, class_=2, batch_invariant=True)), response.Committed
        )
        (info,) = client.call(request.Models()).models
    assert '"batch_invariant": true' in info.capability
    kept = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir())
    assert kept == ["attention", "exact"]
    daemon.close()

    daemon.start().ready()
    assert not [line for line in daemon.lines if line.get("event") == "measuring the model, once"]


@pytest.mark.slow
def test_a_daemon_that_cannot_be_exact_says_why_and_ends(tmp_path, make_daemon):
    recurrent = write_tiny_gguf(tmp_path / "recurrent.gguf", architecture="mamba")
    daemon = make_daemon(tmp_path, recurrent, "--exact").start()

    assert daemon.wait(timeout=60) == 1
    assert "--exact cannot be had with this model on this machine" in daemon.errors
    assert "lone rows" in daemon.errors
