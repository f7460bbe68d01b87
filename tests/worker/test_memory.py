"""How large a context is when nobody asked for a size."""

import pytest

from superfluid.worker.memory import available_bytes, default_context

GIB = 1 << 30


@pytest.mark.parametrize(
    ("trained", "position_bytes", "available", "expected"),
    [
        pytest.param(8192, 16 * 23_040, 20 * GIB, 8192, id="there-is-room-for-all-it-was-trained-with"),
        pytest.param(131_072, 16 * 23_040, 20 * GIB, 8192, id="a-long-context-is-not-taken-unasked"),
        pytest.param(2048, 16 * 23_040, 20 * GIB, 2048, id="not-beyond-the-training"),
        pytest.param(8192, 16 * 23_040, 4 * GIB, 2816, id="a-quarter-of-the-memory-in-steps-of-256"),
        pytest.param(8192, 16 * 500_000, 1 * GIB, 512, id="never-less-than-is-of-use"),
        pytest.param(256, 16 * 500_000, 1 * GIB, 256, id="unless-the-model-has-less"),
        pytest.param(0, 16 * 23_040, 20 * GIB, 8192, id="the-file-does-not-say"),
        pytest.param(4096, 16 * 23_040, None, 4096, id="the-system-does-not-say"),
        pytest.param(4096, 0, GIB, 4096, id="a-recurrent-model-has-no-positions-to-pay-for"),
    ],
)
def test_default_context(trained: int, position_bytes: int, available: int | None, expected: int) -> None:
    found = default_context(trained=trained, position_bytes=position_bytes, available=available)

    assert found == expected


def test_this_machine_says_what_is_available() -> None:
    available = available_bytes()

    assert available is None or available > 0
