"""Which states a context can read, and that its settings say no more and no less."""

from contextlib import closing

import numpy as np
import pytest

from superfluid.worker.engine import Engine
from superfluid.worker.llama import state_kind
from tests.worker.builders import load, reply

LONG = [i % 250 for i in range(200)]


def settings(model, **changes):
    with closing(Engine.open(load(model, **changes))) as engine:
        return engine.ready.settings


def exported(model, n_ctx):
    """The state of a sequence that holds `LONG`, in a context of *n_ctx* positions a sequence."""
    with closing(Engine.open(load(model, n_ctx=n_ctx))) as engine:
        reply(engine, 1, 0, LONG, limit=1)
        return engine._context.export(0)


def resumed(model, n_ctx, state):
    """A reply of a context of *n_ctx* positions a sequence that goes on from *state*; None if it cannot."""
    with closing(Engine.open(load(model, n_ctx=n_ctx))) as engine:
        if not engine._context.restore(1, state, len(LONG)):
            return None
        return reply(engine, 1, 1, [9, 8, 7], start=len(LONG), limit=20)


def test_a_state_goes_into_a_context_of_any_size(any_model):
    states = [exported(any_model, n_ctx) for n_ctx in (256, 2048)]
    replies = [resumed(any_model, n_ctx, state) for n_ctx in (256, 2048) for state in states]

    assert np.array_equal(*states)
    assert replies[0] is not None
    assert replies == replies[:1] * 4


def test_one_that_does_not_fit_is_refused(tiny_model):
    with closing(Engine.open(load(tiny_model, n_ctx=512))) as engine:
        reply(engine, 1, 0, LONG * 2, limit=1)
        state = engine._context.export(0)

    assert resumed(tiny_model, 256, state) is None


@pytest.mark.parametrize(
    "changes", [{"n_ctx": 1024}, {"exact_rows": 4}, {"exact_rows": 8, "exact_outputs": 8}, {"threads": 2}]
)
def test_what_does_not_decide_is_not_in_the_settings(tiny_model, changes):
    assert settings(tiny_model, **changes) == settings(tiny_model)


@pytest.mark.parametrize("changes", [{"n_seq": 5}, {"flash_attn": "on"}, {"kv_type": "bf16"}])
def test_what_decides_is_in_the_settings(tiny_model, changes):
    """Field case F14: KV was reused under other settings than those that it was made under."""
    assert settings(tiny_model, **changes) != settings(tiny_model)


def test_so_are_the_kernels_and_the_library(engine, tiny_model, monkeypatch):
    context = engine._context
    said = [state_kind.read_by(context, load(tiny_model, kernels=kernels)) for kernels in ("fast", "plain")]
    monkeypatch.setattr(state_kind, "build", lambda: "another build")
    said.append(state_kind.read_by(context, load(tiny_model)))

    assert len(set(said)) == 3


def test_the_size_decides_where_it_picks_the_rotary_factors(engine, tiny_model, monkeypatch):
    """512 positions, of a model that was trained with fewer at first."""
    short = state_kind.read_by(engine._context, load(tiny_model))
    first = {"llama.rope.scaling.original_context_length": "256"}
    monkeypatch.setattr(engine._context.model, "metadata", engine._context.model.metadata | first)

    assert state_kind.read_by(engine._context, load(tiny_model)) != short
