"""The machine and the library that measurements were made with: what makes them those of another one."""

import platform
import re
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from superfluid.core.capability import Identity
from superfluid.worker.messages import Load

_CPUINFO: Final = Path("/proc/cpuinfo")
_NAMES: Final = ("model name", "CPU part", "cpu", "uarch")
"""Of the processor, as x86, ARM, POWER and RISC-V machines call it."""
_FEATURES: Final = ("flags", "Features", "isa")


def identity(load: Load, *, model: str) -> Identity:
    """What a measurement with *load* holds for.

    Args:
        model: digest of the model's content.

    Raises:
        EngineMissing: the engine is not installed.
    """
    # Here and not above: the daemon imports this before it knows whether there is an engine.
    from superfluid.worker.llama.library import build

    return Identity(
        model=model,
        library=build(),
        cpu=cpu(_cpuinfo()),
        threads=load.threads,
        n_ubatch=load.n_ubatch,
        kernels=load.kernels,
        flash_attn=load.flash_attn,
        kv_type=load.kv_type,
    )


def cpu(cpuinfo: str) -> str:
    """Name of the first processor in the text of ``/proc/cpuinfo``, and a digest of what it can do."""
    name = _first(cpuinfo, _NAMES) or platform.machine()
    return f"{name} ({xxh3_64_hexdigest(_first(cpuinfo, _FEATURES).encode())})"


def _first(cpuinfo: str, fields: tuple[str, ...]) -> str:
    for field in fields:
        if found := re.search(rf"^{field}\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
            return found[1].strip()
    return ""


def _cpuinfo() -> str:
    try:
        return _CPUINFO.read_text()
    except OSError:
        return ""  # the architecture's name has to do
