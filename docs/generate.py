"""Writes the parts of the documentation that are read off the code: `python docs/generate.py`.

A test runs `render` and compares, so that they cannot fall behind.
"""

import ast
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / "superfluid" / "core" / "limits.py"
LIMITS_DOC = ROOT / "docs" / "limits.md"

HEAD = """# Limits

Every buffer, queue and map that a client can grow has a bound. This table is read off `superfluid/core/limits.py`
by `python docs/generate.py`. Besides, the wire format itself bounds a frame to 64 MiB and nesting to 64 levels.

| limit | value | meaning and reason |
|---|---|---|
"""


def render() -> str:
    """The text of docs/limits.md."""
    rows = [f"| `{name}` | {value} | {reason} |" for name, value, reason in limits(LIMITS.read_text())]
    return HEAD + "\n".join(rows) + "\n"


def limits(source: str) -> list[tuple[str, str, str]]:
    """(name, value as written, reason) of every constant that has a reason behind it."""
    found: list[tuple[str, str, str]] = []
    body = ast.parse(source).body
    for statement, following in pairwise(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            continue
        assert statement.value is not None
        value = ast.unparse(statement.value).replace(" * ", " ").replace("1 << 20", "1,048,576")
        found.append(
            (
                statement.target.id,
                value.replace("KIB", "KiB").replace("MIB", "MiB"),
                " ".join(str(following.value.value).split()),
            )
        )
    return found


if __name__ == "__main__":
    LIMITS_DOC.write_text(render())
