"""How much memory this process may still take."""

import os
import re
import resource
from pathlib import Path
from typing import Final

from superfluid.core.limits import HOST_MEMORY_PERCENT, MAX_HOST_BYTES

DEFAULT_CONTEXT: Final = 8192
"""Positions of a sequence when nobody asked for a number: enough for an agent's prompts; models trained with a hundred
thousand would take all memory for what most sessions never use."""

LEAST_CONTEXT: Final = 512
CONTEXT_STEP: Final = 256
"""llama.cpp rounds a sequence's positions to this."""

POOL_SHARE: Final = 4
"""The pool takes a quarter of the available memory by default: the rest is for the weights and for others."""


def default_context(*, trained: int, position_bytes: int, available: int | None) -> int:
    """Positions of a sequence when nobody asked for a number.

    Args:
        trained: what the model was trained with; 0 when its file does not say.
        position_bytes: KV bytes of one position of all sequences together.
        available: bytes that this process can still use, or None when that is not known.

    Returns:
        what the model was trained with, at most `DEFAULT_CONTEXT`, and at least `LEAST_CONTEXT` but less where the pool
        would take more than its share of memory.
    """
    most = min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if available is None or position_bytes == 0:
        return most
    affordable = available // POOL_SHARE // position_bytes // CONTEXT_STEP * CONTEXT_STEP
    return min(most, max(affordable, LEAST_CONTEXT))


def host_budget(*, pool_cells: int, bytes_per_token: int, available: int | None, fixed: int = 0) -> int:
    """Bytes that exported KV may take in host memory: as many tokens as the pool has cells, within the bounds.

    Args:
        pool_cells: positions of all sequences together.
        bytes_per_token: of ``Ready``.
        available: bytes that may still be used (``available_bytes``, once the pool is allocated), or None when that is
            not known.
        fixed: ``bytes_per_sequence`` of ``Ready``, of all sequences together: it is all there is where layers are
            recurrent.
    """
    wanted = min(pool_cells * bytes_per_token + fixed, MAX_HOST_BYTES)
    return wanted if available is None else min(wanted, available * HOST_MEMORY_PERCENT // 100)


def memory_pressure() -> float | None:
    """Percent of the last ten seconds in which some task waited for memory; None when the system does not say."""
    return parse_pressure(_read("/proc/pressure/memory"))


def parse_pressure(text: str) -> float | None:
    """The ``some avg10`` of ``/proc/pressure/memory``, or None when *text* is not of that form."""
    found = re.search(r"^some avg10=(\d+\.\d+) ", text, re.MULTILINE)
    return float(found[1]) if found else None


def available_bytes() -> int | None:
    """Bytes that this process can still use: the least of what machine, control group and resource limit leave.

    None when the system does not say.
    """
    rooms = [room for room in (_machine(), _control_group(), _address_space()) if room is not None]
    return max(min(rooms), 0) if rooms else None


def _machine() -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _control_group() -> int | None:
    """What the memory limit of our control group (version 2) leaves; page cache of it counts as free."""
    found = re.search(r"^0::(/.*)$", _read("/proc/self/cgroup"), re.MULTILINE)
    folder = "/sys/fs/cgroup" + (found[1].rstrip("/") if found else "")
    limit = _read(f"{folder}/memory.max").strip()
    used = re.search(r"^anon (\d+)$", _read(f"{folder}/memory.stat"), re.MULTILINE)
    return int(limit) - int(used[1]) if limit.isdecimal() and used else None


def _address_space() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _read("/proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return limit - int(pages[0]) * os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # not on this system, or not for this user: it sets no bound that we can see
