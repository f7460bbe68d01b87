"""Prometheus metrics: counters and gauges read from the parts at scrape time, so that hot paths only count.

Names are those of the published 0.1 where the meaning is the same; ``docs/metrics.md`` lists them all.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from superfluid.sched.engine import Engine
from superfluid.store.store import Store


class DaemonCollector(Collector):
    """Reads the daemon's parts whenever it is asked."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        engine, store = self._engine.statistics, self._store
        log = store.log.statistics()
        gauges = self._engine.gauges()
        yield from _counters(
            ("superfluid_ticks", "Plans that a worker carried out", engine.ticks),
            ("superfluid_prefill_tokens", "Prompt tokens computed", engine.prefill_tokens),
            ("superfluid_decode_tokens", "Tokens decoded", engine.decode_tokens),
            ("superfluid_warm_prefix_tokens", "Prompt tokens taken from kept KV", engine.warm_prefix_tokens),
            ("superfluid_worker_respawns", "Workers started after one was lost", engine.respawns),
            ("superfluid_worker_losses", "Workers that were lost", engine.worker_losses),
            ("superfluid_log_commands", "Commands made durable", store.statistics.commands),
            ("superfluid_log_batches", "Batches written, one fsync each", store.statistics.batches),
            (
                "superfluid_commands_refused",
                "Commands refused before they were written",
                store.statistics.refused,
            ),
            ("superfluid_log_refused", "Batches that the disk refused and that were cut back", log.refused),
            ("superfluid_log_fsync_seconds", "Seconds spent in fsync", log.fsync_seconds),
            ("superfluid_log_slow_fsyncs", "Fsyncs of a second or more", log.slow_fsyncs),
        )
        yield HistogramMetricFamily(
            "superfluid_ttft_seconds",
            "Seconds from a generation's arrival to its first token",
            buckets=engine.ttft.cumulative(),
            sum_value=engine.ttft.total,
        )
        yield from _gauges(
            ("superfluid_lanes_active", "Jobs on lanes", gauges["lanes_active"]),
            ("superfluid_queue_depth", "Jobs waiting for a lane", gauges["queue_depth"]),
            ("superfluid_pool_cells_used", "KV cells in use", gauges["pool_tokens"]),
            ("superfluid_pool_cells", "KV cells of the pool", gauges["pool_cells"]),
            ("superfluid_sessions", "Sessions in the log", len(store.state.sessions)),
            ("superfluid_log_bytes", "Durable end of the log", log.end),
            (
                "superfluid_log_read_only",
                "1 when the log takes no writes",
                int(store.log.read_only is not None),
            ),
        )


def renderer(collector: Collector) -> Callable[[], str]:
    """A function that renders the collector's metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return lambda: generate_latest(registry).decode()


def _counters(*rows: tuple[str, str, float]) -> Iterable[Metric]:
    for name, text, value in rows:
        yield CounterMetricFamily(name, text, value=value)


def _gauges(*rows: tuple[str, str, float]) -> Iterable[Metric]:
    for name, text, value in rows:
        yield GaugeMetricFamily(name, text, value=value)
