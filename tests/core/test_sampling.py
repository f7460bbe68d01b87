import pytest

from superfluid.core.sampling import GREEDY_BELOW, SamplingParams, draw

GOLDEN = [
    # Recorded once; a change of any of them changes what recorded sessions draw.
    (0, 0, 0.6524484863740322),
    (0, 1, 0.7012121095215252),
    (1, 0, 0.36818951565166946),
    (42, 7, 0.7347204584623639),
    (2**64 - 1, 0, 0.3662420901697574),
    (2**64 - 1, 2**20, 0.6439801416380194),
    (123456789, 4095, 0.9070847959652663),
]


@pytest.mark.parametrize(("seed", "position", "expected"), GOLDEN)
def test_draws_never_change(seed, position, expected):
    assert draw(seed, position) == expected


def test_draws_are_uniform_over_positions_and_over_seeds():
    for draws in (
        [draw(7, position) for position in range(4000)],
        [draw(seed, 7) for seed in range(4000)],
    ):
        assert all(0 <= u < 1 for u in draws)
        tenths = [sum(1 for u in draws if int(u * 10) == tenth) for tenth in range(10)]
        assert min(tenths) > 300
        assert max(tenths) < 500


def test_neighbouring_seeds_and_positions_do_not_share_draws():
    draws = {draw(seed, position) for seed in range(50) for position in range(50)}

    assert len(draws) == 2500


@pytest.mark.parametrize(
    ("temperature", "top_k", "greedy"),
    [(0.0, 0, True), (0.8, 0, False), (0.8, 1, True), (GREEDY_BELOW, 0, False), (1e-30, 0, True)],
)
def test_greedy_needs_no_draw(temperature, top_k, greedy):
    params = SamplingParams(temperature=temperature, top_p=1.0, min_p=0.0, top_k=top_k, seed=0)

    assert params.greedy is greedy
