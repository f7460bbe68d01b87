"""What the documentation reads off the code is what the code says now."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_limits_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)

    assert (ROOT / "docs" / "limits.md").read_text() == generate.render(), "run: python docs/generate.py"


def test_every_limit_has_a_value_and_a_reason() -> None:
    text = (ROOT / "superfluid" / "core" / "limits.py").read_text()
    documented = (ROOT / "docs" / "limits.md").read_text()

    names = [
        line.split(":")[0]
        for line in text.splitlines()
        if ": Final = " in line and not line.startswith(("KIB", "MIB"))
    ]

    assert names
    assert [name for name in names if f"`{name}`" not in documented] == []
