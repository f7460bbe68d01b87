"""The demo, on the real model: what `make demo` tells is true."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "clients" / "python" / "examples" / "demo.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_ends_well():
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step was as it should be." in done.stdout


@pytest.mark.slow
def test_the_demo_fails_where_a_step_does(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, DEMO, str(tmp_path / "no-model.gguf")],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )

    assert done.returncode == 1
    assert "WRONG: the daemon does not start" in done.stderr
    assert "no-model.gguf" in done.stderr
