"""Prometheus metrics: counters and gauges read from the parts at scrape time, so that hot paths only count.

Names are those of the published 0.1 where the meaning is the same; ``docs/metrics.md`` lists them all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from superfluid.sched.engine import Engine
from superfluid.sched.status import Statistics
from superfluid.store.store import Store
from superfluid_protocol.numbers import Qos

CLASSES: Final = tuple(qos.name.lower() for qos in Qos)

PLACES: Final = ("pool", "host", "park")
"""Where KV can be kept: the worker's pool, host memory, park files."""

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


class DaemonCollector(Collector):
    """Reads the daemon's parts whenever it is asked."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        yield from _engine_counters(self._engine.statistics)
        yield from _engine_gauges(self._engine.gauges())
        yield from _store_metrics(self._store)


def renderer(collector: Collector) -> Callable[[], str]:
    """A function that renders the collector's metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return lambda: generate_latest(registry).decode()


def _engine_counters(engine: Statistics) -> Iterator[Metric]:
    """What the engine did since the start."""
    yield from _counters(
        ("superfluid_ticks", "Plans that a worker carried out", engine.ticks),
        ("superfluid_prefill_tokens", "Prompt tokens computed", engine.prefill_tokens),
        ("superfluid_decode_tokens", "Tokens decoded", engine.decode_tokens),
        ("superfluid_warm_prefix_tokens", "Prompt tokens taken from kept KV", engine.warm_prefix_tokens),
        ("superfluid_cold_admissions", "Generations that found no kept KV", engine.cold_admissions),
        ("superfluid_coalesced_jobs", "Generations that waited for another's prefill", engine.coalesced),
        ("superfluid_preemptions", "Generations that gave up their lane for a while", engine.preemptions),
        ("superfluid_parks", "Park files written", engine.parks),
        ("superfluid_pins_yielded", "Pins that gave way to newer ones", engine.pins_yielded),
        ("superfluid_pins_expired", "Pins that ended by their deadline", engine.pins_expired),
        ("superfluid_drafted_tokens", "Tokens guessed", engine.drafted),
        ("superfluid_accepted_tokens", "Tokens guessed right", engine.accepted),
        ("superfluid_worker_respawns", "Workers started after one was lost", engine.respawns),
        ("superfluid_worker_losses", "Workers that were lost", engine.worker_losses),
    )
    yield _labelled(
        CounterMetricFamily("superfluid_evictions", "Kept KV given up, by place", labels=["place"]),
        {place: engine.evictions[place] for place in PLACES},
    )
    yield _labelled(
        CounterMetricFamily("superfluid_resumes", "Generations that began with kept KV", labels=["from"]),
        {place: engine.resumes[place] for place in PLACES},
    )
    yield HistogramMetricFamily(
        "superfluid_ttft_seconds",
        "Seconds from a generation's arrival to its first token",
        buckets=engine.ttft.cumulative(),
        sum_value=engine.ttft.total,
    )


def _engine_gauges(now: Mapping[str, int]) -> Iterator[Metric]:
    """What the engine holds."""
    yield _labelled(
        GaugeMetricFamily("superfluid_queue_depth", "Generations waiting for a lane", labels=["class"]),
        {name: now[f"queue_depth_{name}"] for name in CLASSES},
    )
    yield from _gauges(
        ("superfluid_lanes_active", "Generations on lanes", now["lanes_active"]),
        ("superfluid_pool_cells_used", "KV cells in use", now["pool_tokens"]),
        ("superfluid_pool_cells", "KV cells of the pool", now["pool_cells"]),
        ("superfluid_host_bytes", "Bytes of KV in host memory", now["host_bytes"]),
        ("superfluid_host_bytes_budget", "Bytes that it may take", now["host_budget"]),
        ("superfluid_park_bytes", "Bytes of park files", now["park_bytes"]),
        ("superfluid_pins_held", "Pins that hold", now["pins_held"]),
    )


def _store_metrics(store: Store) -> Iterator[Metric]:
    """What the log took, and how large it is."""
    log, counts = store.log.statistics(), store.statistics
    yield from _counters(
        ("superfluid_log_commands", "Commands made durable", counts.commands),
        ("superfluid_log_batches", "Batches written, one fsync each", counts.batches),
        ("superfluid_commands_refused", "Commands refused before they were written", counts.refused),
        ("superfluid_log_refused", "Batches that the disk refused and that were cut back", log.refused),
        ("superfluid_log_fsync_seconds", "Seconds spent in fsync", log.fsync_seconds),
        ("superfluid_log_slow_fsyncs", "Fsyncs of a second or more", log.slow_fsyncs),
    )
    read_only = int(store.log.read_only is not None)
    yield from _gauges(
        ("superfluid_sessions", "Sessions in the log", len(store.state.sessions)),
        ("superfluid_log_bytes", "Durable end of the log", log.end),
        ("superfluid_log_read_only", "1 when the log takes no writes", read_only),
    )


def _counters(*rows: tuple[str, str, float]) -> Iterable[Metric]:
    for name, text, value in rows:
        yield CounterMetricFamily(name, text, value=value)


def _gauges(*rows: tuple[str, str, float]) -> Iterable[Metric]:
    for name, text, value in rows:
        yield GaugeMetricFamily(name, text, value=value)


def _labelled(family: Family, values: Mapping[str, float]) -> Family:
    """A metric with one label, with a sample for each value of it, also those that are 0."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family
