"""Durable appends a second, and one client's latency against a bare write and fsync."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.daemon import Running
from benchmarks.load import Caller, append_storm
from superfluid_protocol import Request, request

CLIENTS = 64
EACH = 1000
TEXT = "A small message from one of many."


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Medians, in microseconds."""

    append: float
    bare: float

    @property
    def allowed(self) -> float:
        """1.5 times the bare write and fsync, and 0.3 ms."""
        return 1.5 * self.bare + 300


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Appends a second of each round, and the daemon's own CPU time for one of them, in microseconds."""

    rates: list[float]
    cpu_us: float


def throughput(
    daemon: Running, make: Callable[[int], Request], *, rounds: int, each: int = EACH
) -> Throughput:
    """Many clients at once."""
    before = daemon.cpu_seconds()
    rates = [append_storm(daemon.socket, clients=CLIENTS, each=each, make=make) for _ in range(rounds)]
    used = daemon.cpu_seconds() - before
    return Throughput(rates=rates, cpu_us=used / (rounds * CLIENTS * each) * 1e6)


def message(session: int) -> Request:
    """A chat message, which the daemon tokenises."""
    return request.AppendMessage(session=session, role=1, text=TEXT)


def ids(session: int) -> Request:
    """The same, tokenised by the client."""
    return request.Append(session=session, text=TEXT, span=tuple(range(1000, 1014)))


def latency(daemon: Running, make: Callable[[int], Request], *, samples: int = 500) -> Latency:
    """One client alone: an append, then a bare write and fsync of as many bytes as it put into the log, in turns."""
    caller = Caller(daemon.socket)
    one = make(caller.create())
    log = daemon.home / "sessions" / "wal.log"
    before = log.stat().st_size
    caller.call(one)
    size = log.stat().st_size - before
    appends, bares = [], []
    with _bare_file(daemon.home / "bare") as fd:
        offset = 0
        block = os.urandom(size)
        for _ in range(samples):
            began = time.perf_counter()
            caller.call(one)
            middle = time.perf_counter()
            os.pwrite(fd, block, offset)
            os.fsync(fd)
            bares.append(time.perf_counter() - middle)
            appends.append(middle - began)
            offset += size
    caller.close()
    return Latency(append=statistics.median(appends) * 1e6, bare=statistics.median(bares) * 1e6)


class _bare_file:  # noqa: N801 - used like a function
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return self._fd

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)
