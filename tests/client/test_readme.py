"""The Python in the documents runs as it stands there, one program after the other, against a real daemon."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import daemons
from tests.gates.repository import ROOT, tracked

pytestmark = pytest.mark.slow


def programs(path: Path) -> list[str]:
    """The Python blocks of a document."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, endless_model: Path) -> Iterator[Path]:
    """A user's home with a running daemon in its usual place."""
    home = tmp_path_factory.mktemp("home")
    place = home / ".superfluid"
    with daemons() as make:
        place.mkdir()
        make(place, endless_model, socket_path=place / "superfluid.sock", context=2048).start().ready()
        yield home


def run(program: str, home: Path) -> str:
    env = os.environ | {"HOME": str(home), "SUPERFLUID_HOME": str(home / ".superfluid")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_readme_shows_a_conversation_and_the_frames_below_it(home: Path):
    conversation, by_hand = programs(Path("README.md"))

    said = run(conversation, home)
    listed = run(by_hand, home)

    assert re.search(r"\([1-9]\d* tokens came from the cache\)$", said.rstrip("\n"))
    assert listed.startswith("SessionList(sessions=(SessionSummary(id=1, ")
    assert "id=2, parent=1" in listed


@pytest.mark.parametrize(
    "path",
    [path for path in tracked() if path.suffix == ".md" and path != Path("README.md") and programs(path)],
    ids=str,
)
def test_the_programs_of_the_other_documents_run(home: Path, path: Path):
    for program in programs(path):
        run(program, home)
