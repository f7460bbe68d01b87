"""The document that tells a user which files there are knows all of them, and what a refused start says."""

import re
from fnmatch import fnmatch

import pytest

from superfluid.core.errors import LogCorrupt
from superfluid.wal.sync import TEMPORARY_SUFFIX
from superfluid_protocol import address
from tests.gates.repository import ROOT
from tests.wal.builders import begun, encoded, held

DOCUMENT = (ROOT / "docs" / "log.md").read_text()
FILES = {row[0]: row[1] for row in re.findall(r"^\| `([^`]+)` \|[^|]*\| ([^|]+?) \|", DOCUMENT, re.MULTILINE)}


def documented(name):
    """The row that speaks of a file in the sessions directory."""
    (found,) = [pattern for pattern in FILES if fnmatch(f"{address.SESSIONS_NAME}/{name}", pattern)]
    return found


def test_every_file_of_a_torn_log_is_documented_and_whether_it_holds_content(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()
    with (tmp_path / "s" / "wal.log").open("ab") as file:
        file.write(b"SFB3 a secret that was never acknowledged")

    log, _ = begun(tmp_path / "s")
    log.close()

    made = {path.name: path for path in (tmp_path / "s").iterdir()}
    assert len(made) == 4
    for name, path in made.items():
        has_content = b"a secret" in path.read_bytes() or name == "wal.log"
        assert ("yes" in FILES[documented(name)]) == has_content, name


def test_the_other_names_are_documented():
    assert f"$SUPERFLUID_HOME/{address.SOCKET_NAME}" in FILES
    assert f"$SUPERFLUID_HOME/{address.SOCKET_NAME}.lock" in FILES
    assert f"{address.SESSIONS_NAME}/*{TEMPORARY_SUFFIX}" in FILES
    assert "wal.log.torn-*" in (ROOT / "README.md").read_text()


def test_what_a_refused_start_says_is_documented(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()
    with (tmp_path / "s" / "wal.log").open("r+b") as file:
        file.seek(160)
        file.write(b"\xff" * 8)

    with pytest.raises(LogCorrupt, match=r" is damaged at offset \d+: "):
        held(tmp_path / "s")

    assert "is damaged at offset N: " in DOCUMENT
