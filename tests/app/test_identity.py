"""Which models a sessions directory takes."""

import json
import stat
from array import array
from types import SimpleNamespace

import pytest
import structlog

from superfluid.app.identity import NAME, Recorded, check_vocabulary
from superfluid.core.errors import StartError
from superfluid.core.state import Session
from superfluid.sched.model import Text
from tests.daemon import GREEDY

NOTHING = Recorded(any_sessions=False, largest_token=-1, fingerprints=frozenset())


def text(digest="a", *, n_tokens=100, fingerprint=7):
    return Text(
        content="",
        vocabulary=SimpleNamespace(n_tokens=n_tokens),
        vocabulary_digest=digest,
        codec=None,
        no_codec="",
        fingerprint=fingerprint,
    )


def session(number, *tokens, fingerprint=None):
    return Session(
        id=number,
        parent=None,
        fork_at=0,
        params=GREEDY,
        own_tokens=array("I", tokens),
        fingerprint=fingerprint,
    )


@pytest.fixture
def lines():
    with structlog.testing.capture_logs() as lines:
        yield lines


def test_what_sessions_tell():
    assert Recorded.of([]) == NOTHING
    assert Recorded.of([session(1), session(2, 5, 99, 3, fingerprint=7)]) == Recorded(
        any_sessions=True, largest_token=99, fingerprints=frozenset({7})
    )


def test_the_first_vocabulary_is_remembered_for_the_owner_alone(tmp_path, lines):
    check_vocabulary(tmp_path, text(), "first", NOTHING)

    file = tmp_path / NAME
    assert json.loads(file.read_text()) == {"vocabulary": "a", "model": "first"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]
    recorded = Recorded.of([session(1, 5)])
    check_vocabulary(tmp_path, text(fingerprint=8), "same vocabulary", recorded)
    with pytest.raises(StartError, match="made with first, whose vocabulary is not that of other"):
        check_vocabulary(tmp_path, text("b"), "other", recorded)
    check_vocabulary(tmp_path, text("b"), "other", NOTHING)
    assert json.loads(file.read_text())["model"] == "other"
    assert lines == []


def test_without_its_memory_ids_beyond_the_vocabulary_are_refused(tmp_path):
    with pytest.raises(StartError, match="token ids that the vocabulary of other does not have"):
        check_vocabulary(tmp_path, text(n_tokens=99), "other", Recorded.of([session(1, 5, 99)]))
    assert not (tmp_path / NAME).exists()


def test_without_its_memory_another_model_is_warned_of_by_name(tmp_path, lines):
    check_vocabulary(tmp_path, text(), "other", Recorded.of([session(1, 99, fingerprint=8)]))

    (line,) = lines
    assert line["log_level"] == "warning"
    assert (line["missing"], line["model"]) == (str(tmp_path / NAME), "other")
    assert (tmp_path / NAME).exists()


def test_without_its_memory_the_model_that_sessions_ran_on_is_known(tmp_path, lines):
    check_vocabulary(tmp_path, text(), "same", Recorded.of([session(1, 99, fingerprint=7)]))

    assert lines == []
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("content", ["", "null", "[]", "no json"])
def test_a_memory_that_cannot_be_read_guards_still(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    with pytest.raises(StartError, match="cannot be read"):
        check_vocabulary(tmp_path, text(), "other", Recorded.of([session(1, 5)]))


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StartError, match="cannot be written"):
        check_vocabulary(tmp_path / "gone", text(), "first", NOTHING)
