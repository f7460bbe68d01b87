"""Memory pressure: when the machine runs short of memory, KV kept in host memory is the first thing to go.

It can be computed again; what others hold cannot. The kernel says how much of the last ten seconds some task waited for
memory. It is only asked while there is something to give up, so that an idle daemon sleeps.
"""

from collections.abc import Callable
from typing import Final, Protocol

import structlog
import trio

from superfluid.core.limits import MEMORY_PRESSURE_PERCENT, MEMORY_PRESSURE_SAMPLE_SECONDS
from superfluid.worker.memory import memory_pressure

DROPPED_PERCENT: Final = 50
"""Of what is there, each time: if that is not enough, the next look finds the pressure still high."""

_log = structlog.get_logger(target=__name__)


class HostMemory(Protocol):
    """What of the engine this module needs."""

    def gauges(self) -> dict[str, int]:
        """``host_bytes``: how much KV lies in host memory."""

    async def wait_host_used(self) -> None:
        """Return when some does."""

    def drop_host(self, percent: int) -> None:
        """Forget that share of it, the least recently used first."""


async def relieve(host: HostMemory, *, pressure: Callable[[], float | None] = memory_pressure) -> None:
    """Drop KV from host memory whenever the machine is short of memory. Returns at once where the system does not say.

    Args:
        pressure: Percent of the last ten seconds in which some task waited for memory.
    """
    while True:
        await host.wait_host_used()
        while (used := host.gauges()["host_bytes"]) > 0:
            percent = pressure()
            if percent is None:
                _log.debug("the system does not tell its memory pressure")
                return
            if percent > MEMORY_PRESSURE_PERCENT:
                _log.warning("memory is short: kept KV is dropped", pressure_percent=percent, host_bytes=used)
                host.drop_host(DROPPED_PERCENT)
            await trio.sleep(MEMORY_PRESSURE_SAMPLE_SECONDS)
