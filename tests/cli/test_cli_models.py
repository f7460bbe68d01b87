"""`superfluid models`: what people and programs are shown of a model."""

import json
from dataclasses import replace

import pytest

from superfluid.cli import main
from superfluid.cli.models import describe
from superfluid.core.capability import Capability, Exactness, Identity, KernelTime, Trial, to_json
from tests.tiny_gguf import write_tiny_gguf

IDENTITY = Identity(
    model="m", library="l", cpu="c", threads=2, n_ubatch=512, kernels="fast", flash_attn="off", kv_type="f16"
)
SERVED = {
    "name": "tiny",
    "path": "tiny.gguf",
    "loaded": True,
    "context": 512,
    "lanes": 8,
    "description": "llama 1B",
    "capability": None,
}


def exactness(rows, mismatch=""):
    trial = Trial(rows=rows, outputs=1, mismatch=mismatch, step_us=150)
    return Exactness(positions=448, plain_us=100, trials=(trial,))


def lines(found=None, **changes):
    record = None if found is None else json.loads(to_json(found))
    return list(describe(SERVED | {"capability": record} | changes))


def test_a_model_of_which_nothing_is_known():
    assert lines() == [
        "tiny (tiny.gguf): ready, 8 lanes of 512 tokens",
        "  llama 1B",
        "  nothing was measured",
    ]
    assert lines(loaded=False, context=0, description="")[0] == "tiny (tiny.gguf): loading, 8 lanes"


def test_a_model_that_was_measured():
    times = (KernelTime(flash_attn="off", depth=500, first_us=1500, batch_us=9000, deep_us=2500),)
    found = Capability(identity=IDENTITY, attention=times, exactness=exactness(2))

    assert lines(found)[2:] == [
        "  attention, flash off: a step takes 1.5 ms, 2.5 ms 500 tokens later",
        "  exact replies: by 2 rows for one (fast kernels, flash off, KV f16); a step takes 1.50 times as long",
    ]
    assert lines(replace(found, exactness=exactness(1)))[-1] == (
        "  exact replies: always, by fast kernels, flash off, KV f16 itself"
    )


def test_a_model_that_is_not_exact_or_could_not_be_measured():
    found = Capability(identity=IDENTITY, trouble="the worker died")

    assert lines(found)[2:] == ["  the worker died", "  exact replies: the worker died"]
    assert "(whole)" in lines(replace(found, exactness=exactness(1, "whole")))[-1]


@pytest.mark.slow
def test_a_daemon_tells_what_it_serves(tmp_path, endless_model, make_daemon, capsys):
    daemon = make_daemon(tmp_path, endless_model).start().ready()

    assert main.run(["models", "--socket", str(daemon.socket)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{endless_model.name} ({endless_model.name}): ready, 8 lanes of 512 tokens"
    )
    assert main.run(["models", "--socket", str(daemon.socket), "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)
    assert model.keys() == SERVED.keys()
    assert model["capability"] is None


@pytest.mark.slow
def test_a_model_is_measured_without_a_daemon(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SUPERFLUID_CACHE", str(tmp_path / "cache"))
    path = write_tiny_gguf(tmp_path / "recurrent.gguf", architecture="mamba")

    assert main.run(["models", "--probe", str(path), "--threads", "1", "--json"]) == 0

    (model,) = json.loads(capsys.readouterr().out)
    assert model["capability"]["batch_invariant"].startswith("rows of this model depend")
    assert model["capability"]["attention"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_model_that_is_not_there_cannot_be_measured(tmp_path, capsys):
    assert main.run(["models", "--probe", str(tmp_path / "none.gguf")]) == 1
    assert "does not exist" in capsys.readouterr().err
