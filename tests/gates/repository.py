"""The repository as these tests see it: its root, and the files that a clone of it holds."""

import ast
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_NOT_OURS = {".git", ".venv", "__pycache__", "node_modules", "build", "dist"}


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project, relative to its root; what a working copy has besides does not count.

    An unpacked source archive has no list of its files: there, all files are the project's.
    """
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        paths = [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]
    else:
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return tuple(sorted(p for p in paths if not _NOT_OURS & set(p.parts) and (ROOT / p).is_file()))


def python_files(*folders: str) -> list[Path]:
    """The Python files in these folders, or in all."""
    found = [path for path in tracked() if path.suffix == ".py"]
    return [path for path in found if not folders or any(path.is_relative_to(f) for f in folders)]


def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in a module, nested ones and methods too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(tree: ast.AST) -> Iterator[str]:
    """The full name of every module (or of what is taken from one) that is imported anywhere in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
