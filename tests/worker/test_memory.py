"""How large a context is when nobody asked for a size, and how much host memory exported KV may take."""

import pytest

from superfluid.worker.memory import (
    available_bytes,
    default_context,
    host_budget,
    memory_pressure,
    parse_pressure,
)

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


@pytest.mark.parametrize(
    ("cells", "token_bytes", "fixed", "available", "expected"),
    [
        pytest.param(65_536, 23_052, 0, 20 * GIB, 65_536 * 23_052, id="as-many-tokens-as-the-pool-has-cells"),
        pytest.param(65_536, 131_072, 0, 100 * GIB, 8 * GIB, id="not-beyond-the-cap"),
        pytest.param(65_536, 131_072, 0, 10 * GIB, 6 * GIB, id="three-fifths-of-what-is-free"),
        pytest.param(65_536, 23_052, 0, 0, 0, id="nothing-is-free"),
        pytest.param(65_536, 131_072, 0, None, 8 * GIB, id="the-system-does-not-say"),
        pytest.param(65_536, 0, 16 * 19_532, GIB, 16 * 19_532, id="a-recurrent-model-pays-by-sequence"),
    ],
)
def test_host_budget(cells: int, token_bytes: int, fixed: int, available: int | None, expected: int) -> None:
    found = host_budget(pool_cells=cells, bytes_per_token=token_bytes, available=available, fixed=fixed)

    assert found == expected


PRESSURE = (
    "some avg10=12.34 avg60=0.10 avg300=0.00 total=1234\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=99\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(PRESSURE, 12.34), ("", None), ("some avg10=x ", None), ("full avg10=9.00 avg60=0.00", None)],
)
def test_memory_pressure_is_the_share_of_time_that_some_task_waited(
    text: str, expected: float | None
) -> None:
    assert parse_pressure(text) == expected


def test_this_machine_says_its_memory_pressure_or_nothing() -> None:
    pressure = memory_pressure()

    assert pressure is None or 0 <= pressure <= 100
