"""What `superfluid top` shows, made of the daemon's metrics: pure, from samples to a view.

A counter says little by itself; two samples of it are a rate. Times to the first token are rare beside a second, so their
percentiles are of the last minute.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from superfluid_protocol.numbers import Qos

WINDOW_SECONDS: Final = 60.0
"""Percentiles and shares are of what happened in this time."""

CLASSES: Final = tuple(qos.name.lower() for qos in Qos)
PLACES: Final = ("pool", "host", "park")

Labelled = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reply to `Metrics`.

    Attributes:
        at: When, in seconds of any clock that only goes forward.
        values: By name; those with labels summed up.
        labelled: By name, then by the value of its one label.
        ttft: Cumulative counts of the times to the first token, by their upper bounds in seconds.
    """

    at: float
    values: Mapping[str, float]
    labelled: Mapping[str, Labelled] = field(default_factory=dict)
    ttft: tuple[tuple[float, float], ...] = ()

    def value(self, name: str) -> float:
        """A metric without the common prefix; 0 for one that an older daemon does not have."""
        return self.values.get(f"superfluid_{name}", 0.0)

    def parts(self, name: str, labels: tuple[str, ...]) -> dict[str, int]:
        """A metric by label, likewise."""
        found = self.labelled.get(f"superfluid_{name}", {})
        return {label: int(found.get(label, 0)) for label in labels}


def parse(text: str, at: float) -> Sample:
    """The sample that a reply to `Metrics` is.

    Raises:
        ValueError: It is no Prometheus text.
    """
    values: dict[str, float] = {}
    labelled: dict[str, dict[str, float]] = {}
    ttft: list[tuple[float, float]] = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "superfluid_ttft_seconds_bucket":
                ttft.append((float(sample.labels["le"]), sample.value))
                continue
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
            for label in sample.labels.values():
                labelled.setdefault(sample.name, {})[label] = sample.value
    return Sample(at=at, values=values, labelled=labelled, ttft=tuple(ttft))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One moment of the daemon.

    Attributes:
        model: What is served; empty while nobody said.
        context: Positions of one session; 0 while no worker had the model yet.
        prefill_rate, decode_rate: Tokens a second since the sample before.
        warm_share: Of the last minute's prompt tokens, how many were not computed because their KV was there, 0 to 1;
            None without any.
        ttft_p50, ttft_p95: Of the last minute, in seconds; None without any. The histogram's last bound means so much
            or more.
        pool_used, pool_cells: Positions.
        host_used, host_budget: Bytes.
    """

    model: str
    context: int
    lanes: int
    lanes_active: int
    queue: Mapping[str, int]
    prefill_rate: float
    decode_rate: float
    warm_share: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    pool_used: int
    pool_cells: int
    host_used: int
    host_budget: int
    pins_held: int
    pins_yielded: int
    pins_expired: int
    preemptions: int
    evictions: Mapping[str, int]
    parks: int
    resumes: Mapping[str, int]
    drafted: int
    accepted: int
    respawns: int
    sessions: int


class History:
    """The last minute's samples."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def clear(self) -> None:
        """Forget them: the daemon is another one."""
        self._samples.clear()

    def add(self, now: Sample, *, model: str = "", context: int = 0, lanes: int = 0) -> View:
        """The view that a new sample makes with those before it."""
        samples = self._samples
        if samples and restarted(samples[-1], now):
            samples.clear()
        before = samples[-1] if samples else now
        samples.append(now)
        while samples[-1].at - samples[0].at > WINDOW_SECONDS and len(samples) > 2:
            samples.popleft()
        return view(samples[0], before, now, model=model, context=context, lanes=lanes)


def restarted(before: Sample, now: Sample) -> bool:
    """Whether another daemon answers: counters start at 0 with each."""
    return any(
        now.value(name) < before.value(name)
        for name in ("ticks_total", "log_commands_total", "prefill_tokens_total")
    )


def view(first: Sample, before: Sample, now: Sample, *, model: str, context: int, lanes: int) -> View:
    """What *now* shows, with rates since *before* and shares since *first*."""
    warm = now.value("warm_prefix_tokens_total") - first.value("warm_prefix_tokens_total")
    computed = now.value("prefill_tokens_total") - first.value("prefill_tokens_total")
    times = histogram_since(first.ttft, now.ttft)
    return View(
        model=model,
        context=context,
        lanes=lanes,
        lanes_active=int(now.value("lanes_active")),
        queue=now.parts("queue_depth", CLASSES),
        prefill_rate=rate(before, now, "prefill_tokens_total"),
        decode_rate=rate(before, now, "decode_tokens_total"),
        warm_share=warm / (warm + computed) if warm + computed > 0 else None,
        ttft_p50=percentile(times, 0.50),
        ttft_p95=percentile(times, 0.95),
        pool_used=int(now.value("pool_cells_used")),
        pool_cells=int(now.value("pool_cells")),
        host_used=int(now.value("host_bytes")),
        host_budget=int(now.value("host_bytes_budget")),
        pins_held=int(now.value("pins_held")),
        pins_yielded=int(now.value("pins_yielded_total")),
        pins_expired=int(now.value("pins_expired_total")),
        preemptions=int(now.value("preemptions_total")),
        evictions=now.parts("evictions_total", PLACES),
        parks=int(now.value("parks_total")),
        resumes=now.parts("resumes_total", PLACES),
        drafted=int(now.value("drafted_tokens_total")),
        accepted=int(now.value("accepted_tokens_total")),
        respawns=int(now.value("worker_respawns_total")),
        sessions=int(now.value("sessions")),
    )


def rate(before: Sample, now: Sample, name: str) -> float:
    """Growth of a counter a second."""
    seconds = now.at - before.at
    return (now.value(name) - before.value(name)) / seconds if seconds > 0 else 0.0


def histogram_since(
    first: tuple[tuple[float, float], ...], now: tuple[tuple[float, float], ...]
) -> list[tuple[float, float]]:
    """What a cumulative histogram counted since *first*."""
    earlier = dict(first)
    return [(bound, count - earlier.get(bound, 0.0)) for bound, count in now]


def percentile(cumulative: list[tuple[float, float]], share: float) -> float | None:
    """The value that *share* of the observations do not pass, evenly spread within its bucket, as Prometheus takes it;
    beyond the last finite bound, that bound."""
    if not cumulative or cumulative[-1][1] <= 0:
        return None
    rank = share * cumulative[-1][1]
    (low, below), (bound, count) = next(
        (lower, upper)
        for lower, upper in pairwise([(0.0, 0.0), *cumulative])
        if upper[1] >= rank and upper[1] > lower[1]
    )
    return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
