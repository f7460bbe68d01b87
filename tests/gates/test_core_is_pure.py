"""``core/`` and ``chat/`` decide and compute: no I/O, no clock, no randomness, no waiting, no engine.

A linter with a list of banned modules (``ruff.toml`` in each) sees imports. This sees the rest, and what is imported
by what is imported.
"""

import ast
import subprocess
import sys

import pytest

from tests.gates.repository import ROOT, imported, python_files, tree_of

PURE = ("superfluid/core", "superfluid/chat")

BANNED_MODULES = (
    "asyncio", "trio", "threading", "concurrent", "multiprocessing", "select", "selectors", "signal", "socket",
    "ssl", "http", "urllib", "subprocess", "os", "io", "shutil", "tempfile", "pathlib", "glob", "mmap", "fcntl",
    "logging", "structlog", "warnings", "time", "random", "secrets", "uuid", "sys", "ctypes", "llama_cpp", "numpy",
    "superfluid.wal", "superfluid.worker", "superfluid.store", "superfluid.sched", "superfluid.api",
    "superfluid.front", "superfluid.observe", "superfluid.app", "superfluid.cli", "superfluid_client",
)  # fmt: skip

MEMORY = "io.BytesIO"
"""A stream of bytes that are there already is no I/O."""

BANNED_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__", "id", "hash"}
"""``hash`` of a text differs from run to run, ``id`` from object to object."""

CLOCKS = {"now", "utcnow", "today", "fromtimestamp", "localtime"}

ASYNC = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)

LOADED_BY_ALL = """
import importlib, pkgutil, sys
for name in ("superfluid.core", "superfluid.chat"):
    for found in pkgutil.iter_modules(importlib.import_module(name).__path__, name + "."):
        importlib.import_module(found.name)
print(*sorted(sys.modules))
"""


def impurities(tree):
    """What a module does that a pure one does not, a line each."""
    names = list(imported(tree))
    for name in ["io", MEMORY] * names.count(MEMORY):  # ``from io import BytesIO`` gives both
        names.remove(name)
    for name in names:
        if any(name == banned or name.startswith(banned + ".") for banned in BANNED_MODULES):
            yield f"imports {name}"
        if name.startswith("."):
            yield f"imports {name}, whose name does not say its layer"
    for node in ast.walk(tree):
        if isinstance(node, ASYNC):
            yield f"line {node.lineno} waits"
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in BANNED_CALLS:
                yield f"line {node.lineno} calls {called.id}"
            if isinstance(called, ast.Attribute) and called.attr in CLOCKS:
                yield f"line {node.lineno} asks a clock"


@pytest.mark.parametrize("path", python_files(*PURE), ids=str)
def test_a_module_is_pure(path):
    assert list(impurities(tree_of(path))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import trio",
        "import io",
        "from io import BytesIO, StringIO",
        "import os.path",
        "from os import path",
        "from superfluid import front",
        "from superfluid.front import wire",
        "from ..front import wire",
        "def f():\n    import time",
        "async def f(): ...",
        "async def f(x):\n    async with x: pass",
        "open('x')",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.date.today()",
    ],
)
def test_the_test_sees_what_is_not(source):
    assert list(impurities(ast.parse(source)))


@pytest.mark.slow
def test_nothing_impure_comes_in_by_the_back_door():
    """Libraries may load what they like of the standard library; the runtime, the engine and our own shells stay out."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY_ALL], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())

    assert "superfluid.core.schedule" in loaded
    assert "superfluid.chat.codec" in loaded
    tops = {name.partition(".")[0] for name in loaded}
    assert not tops & {
        "trio",
        "outcome",
        "llama_cpp",
        "numpy",
        "structlog",
        "h11",
        "click",
        "prometheus_client",
    }
    ours = {name for name in loaded if name.startswith("superfluid.")}
    assert {name.split(".")[1] for name in ours} == {"core", "chat"}


@pytest.mark.parametrize("folder", PURE)
def test_the_linter_is_told_too(folder):
    rules = (ROOT / folder / "ruff.toml").read_text()

    assert 'extend = "../../pyproject.toml"' in rules
    for module in ("trio", "os", "time", "random", "socket", "subprocess", "logging", "llama_cpp"):
        assert f'"{module}".msg' in rules
