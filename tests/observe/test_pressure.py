"""Memory pressure against KV in host memory, on a clock that the test turns."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from superfluid.core.limits import MEMORY_PRESSURE_PERCENT, MEMORY_PRESSURE_SAMPLE_SECONDS
from superfluid.observe.pressure import relieve

SHORT = MEMORY_PRESSURE_PERCENT + 1


class Host:
    def __init__(self, used):
        self.used = used
        self.changed = trio.Event()
        self.looks = 0

    def gauges(self):
        return {"host_bytes": self.used}

    async def wait_host_used(self):
        while not self.used:
            await self.changed.wait()

    def drop_host(self, percent):
        self.used -= self.used * percent // 100

    def save(self, size):
        self.used += size
        self.changed.set()
        self.changed = trio.Event()


@pytest.fixture
async def relieved(nursery):
    """Start with so many bytes of KV under so much pressure."""

    def start(used, percent):
        host = Host(used)
        host.percent = percent

        def pressure():
            host.looks += 1
            return host.percent

        async def run():
            await relieve(host, pressure=pressure)
            host.ended = True

        host.ended = False
        nursery.start_soon(run)
        return host

    return start


async def test_nobody_looks_while_there_is_nothing_to_drop(relieved, autojump_clock):
    host = relieved(0, SHORT)

    await trio.sleep(1000)

    assert host.looks == 0
    host.save(1)
    await wait_all_tasks_blocked()
    assert host.looks == 1


async def test_it_looks_as_often_as_the_figure_means_something(relieved, autojump_clock):
    host = relieved(100, 0.0)

    await trio.sleep(10.5 * MEMORY_PRESSURE_SAMPLE_SECONDS)

    assert host.looks == 11
    assert host.used == 100


async def test_half_goes_at_each_look_while_memory_is_short(relieved, autojump_clock):
    host = relieved(100, SHORT)

    await trio.sleep(1.5 * MEMORY_PRESSURE_SAMPLE_SECONDS)
    assert host.used == 25
    host.percent = MEMORY_PRESSURE_PERCENT
    await trio.sleep(100)

    assert host.used == 25, "the bound itself is no shortage"


async def test_once_all_is_gone_it_rests_until_there_is_more(relieved, autojump_clock):
    host = relieved(1, SHORT)
    host.drop_host = lambda _percent: setattr(host, "used", 0)
    await trio.sleep(1000)
    looks = host.looks

    host.save(1)
    await trio.sleep(1000)

    assert (looks, host.looks) == (1, 2)


async def test_a_system_that_does_not_say_is_not_asked_again(relieved, autojump_clock):
    host = relieved(1, None)

    await trio.sleep(1000)

    assert (host.looks, host.ended, host.used) == (1, True, 1)
