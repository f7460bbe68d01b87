"""Durations counted into buckets: what is behind a Prometheus histogram, without Prometheus."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class Histogram:
    """Counts of observations up to each of some bounds.

    Attributes:
        bounds: Upper bounds of the buckets, ascending; one bucket more holds what is above the last.
        total: Sum of all observations.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Of each bound, and ``+Inf``: how many observations are not above it."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))
