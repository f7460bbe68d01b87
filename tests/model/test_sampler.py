"""The choice of a token, checked against a computation of our own over the same logits."""

import numpy as np
import pytest

from superfluid.core.sampling import SamplingParams, draw
from superfluid.worker.llama.sampler import Candidates, NotFiniteError, Sampler

N = 500
LOGITS = (np.random.default_rng(5).standard_normal(N) * 3).astype(np.float32)


def params(**changes):
    fields = {"temperature": 0.8, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "seed": 42} | changes
    return SamplingParams(**fields)


@pytest.fixture
def choose():
    samplers = []

    def chosen(given, logits=LOGITS, positions=range(300)):
        samplers.append(Sampler(given, Candidates(len(logits))))
        return [samplers[-1].choose(logits, position) for position in positions]

    yield chosen
    for sampler in samplers:
        sampler.close()


def expected(given, positions=range(300)):
    """top-k, then top-p, then min-p over the plain probabilities; temperature last; cumulated by id."""
    order = np.argsort(-LOGITS.astype(np.float64), kind="stable")
    kept = order[: given.top_k] if given.top_k else order
    p = np.exp(LOGITS[kept].astype(np.float64) - LOGITS.max())
    p /= p.sum()
    if given.top_p < 1:
        kept = kept[: int(np.searchsorted(p.cumsum(), given.top_p)) + 1]
    if given.min_p > 0:
        kept = kept[LOGITS[kept] >= LOGITS.max() + np.log(given.min_p)]
    kept = np.sort(kept)
    shares = np.exp((LOGITS[kept].astype(np.float64) - LOGITS.max()) / given.temperature).cumsum()
    return [
        int(kept[np.searchsorted(shares, draw(given.seed, at) * shares[-1], "right")]) for at in positions
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.7},
        {"top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.02, "temperature": 0.5},
        {"top_k": 10_000},
        {"top_k": 2**32 - 1},
    ],
)
def test_choices_follow_the_filters_and_the_draw(choose, changes):
    given = params(**changes)

    chosen = choose(given)

    assert chosen == expected(given)
    assert len(set(chosen)) > 1


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.0}, {"temperature": 1e-9}, {"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}]
)
def test_greedy_takes_the_maximum_at_every_position(choose, changes):
    assert set(choose(params(**changes), positions=range(20))) == {int(LOGITS.argmax())}


def test_equal_maxima_go_to_the_lowest_id(choose):
    flat = np.zeros(N, np.float32)
    flat[[7, 300]] = 5.0

    assert choose(params(temperature=0.0), logits=flat, positions=[0]) == [7]


def test_a_rare_token_is_drawn_as_rarely_as_its_share(choose):
    two = np.full(N, -np.inf, np.float32)
    two[[3, 4]] = np.log([0.9, 0.1])

    chosen = choose(params(temperature=1.0), logits=two, positions=range(2000))

    assert set(chosen) == {3, 4}
    assert 150 < chosen.count(4) < 250


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_logits_give_no_token(choose, temperature, value):
    broken = LOGITS.copy()
    broken[123] = value

    with pytest.raises(NotFiniteError):
        choose(params(temperature=temperature), logits=broken, positions=[0])


def test_a_closed_sampler_may_be_closed_again():
    sampler = Sampler(params(), Candidates(N))
    sampler.close()
    sampler.close()
