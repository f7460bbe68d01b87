"""The shared library itself: loaded once a process, silenced, its last complaints kept.

llama.cpp prints to standard error unless it is given a callback. Here one callback, alive as long as the process
(ctypes frees a callback that nobody holds, and the next call jumps into nothing), keeps the last warnings and errors,
which are the only place where llama.cpp says why it failed.
"""

import ctypes
import os
from collections import deque
from importlib.metadata import version
from typing import Any, Final

import llama_cpp.llama_cpp as lib

from superfluid.core.limits import ENGINE_LOG_LINES

__all__ = ["build", "complaints", "compute_plainly", "forget_complaints", "lib", "tokenize_briefly"]

_WARN: Final = 3
_ERROR: Final = 4
_CONTINUES: Final = 5
"""``ggml_log_level``: this text goes on with the line before it."""

_lines: deque[str] = deque(maxlen=ENGINE_LOG_LINES)
_kept_last = False


def _note(level: int, text: bytes, _user_data: Any) -> None:  # noqa: ANN401 - ctypes' void pointer
    global _kept_last  # noqa: PLW0603 - the library has one log, and so has this module
    if level == _CONTINUES:
        if _kept_last and _lines:
            _lines[-1] = (_lines[-1] + text.decode(errors="replace").rstrip())[:1000]
        return
    _kept_last = level in {_WARN, _ERROR}
    if _kept_last:
        _lines.append(text.decode(errors="replace").strip()[:1000])


def complaints() -> list[str]:
    """The engine's last warnings and errors, oldest first, at most ``ENGINE_LOG_LINES``."""
    return list(_lines)


def forget_complaints() -> None:
    """Start anew, before a call whose complaints are to be told from older ones."""
    _lines.clear()


def build() -> str:
    """One line that names this build: versions, and the CPU features it uses."""
    engine = lib.llama_version().decode(errors="replace")
    features = lib.llama_print_system_info().decode(errors="replace")
    return f"llama-cpp-python {version('llama-cpp-python')}, llama.cpp {engine}, {features.strip(' |')}"


def compute_plainly() -> None:
    """Have products of eight rows and more computed as those of fewer are. Before the first one of the process, in which
    the library looks for it."""
    os.environ["GGML_CPU_TILED_MM"] = "0"


def _keeping_the_lock(function: Any) -> Any:  # noqa: ANN401 - ctypes functions
    """The same function, called without releasing the interpreter's lock.

    For calls of some 30 us: where another thread wants the lock, getting it back takes longer than the call.
    """
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return ctypes.PYFUNCTYPE(function.restype, *function.argtypes)(address)


tokenize_briefly = _keeping_the_lock(lib._lib.llama_tokenize)
"""``llama_tokenize`` for short texts."""

# A failed assertion would start a debugger on the process to print its stack, which takes seconds and asks questions on
# the terminal; the death of the process says enough.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
_callback = lib.llama_log_callback(_note)
lib.llama_log_set(_callback, None)
lib.llama_backend_init()
