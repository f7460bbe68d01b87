"""`make` leaves the machine alone that it runs on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gates.repository import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
@pytest.mark.parametrize(
    ("ci", "user", "installs"),
    [("", "0", False), ("1", "0", True), ("", "1000", False), ("1", "1000", False)],
)
def test_strace_is_installed_in_ci_only(tmp_path: Path, ci: str, user: str, installs: bool):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in {"apt-get": f'echo "$@" >> {tmp_path}/installed', "id": f"echo {user}"}.items():
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    make, bash = shutil.which("make"), shutil.which("bash")
    assert make is not None
    assert bash is not None
    (commands / "bash").symlink_to(bash)
    env = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }

    done = subprocess.run(
        [make, "strace"],
        cwd=ROOT,
        env=env | {"PATH": str(commands), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed").exists() == installs
    # Whoever goes without is told so, in one line.
    assert len(done.stderr.splitlines()) == (not installs)
    assert ("apt-get install strace" in done.stderr) == (not installs)
