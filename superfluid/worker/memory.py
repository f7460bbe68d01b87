"""How much memory this process may still take."""

import os
import re
import resource
from pathlib import Path


def available_bytes() -> int | None:
    """Bytes that this process can still use: the least of what machine, control group and resource limit
    leave.

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
