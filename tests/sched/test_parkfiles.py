"""The directory of park files: which of those that lie there are used."""

import os
from array import array

import pytest
import structlog

from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.sched.parkfiles import ParkFiles
from superfluid.worker import park
from tests.sched.simulated_worker import write_park_file

STREAM = array("I", range(100))


def make(tmp_path, *, lossy=False, model="digest", settings="n_ctx=4096"):
    files = ParkFiles(tmp_path / "park", lossy=lossy)
    files.identify(model, settings)
    return files


def seal(files, session, stream=STREAM, exact=0):
    order = SealFile(ticket=1, entry=2, session=session, stream=stream, exact=exact)
    write_park_file(files.seal(order))
    return files.path(session)


def found(files, streams):
    """What of the directory can be used, as (session, positions)."""
    return [(parked.session, len(parked.stream)) for parked in files.usable(files.prepare(), streams.get)]


@pytest.fixture
def files(tmp_path):
    files = make(tmp_path)
    files.prepare()
    return files


@pytest.fixture
def log_lines():
    with structlog.testing.capture_logs() as lines:
        yield lines


def test_the_directory_is_made_for_its_owner_alone(files):
    assert files.directory.stat().st_mode & 0o777 == 0o700
    assert found(files, {}) == []


@pytest.mark.parametrize("lossy", [False, True])
def test_what_was_sealed_is_found_again_by_the_next_daemon(tmp_path, lossy):
    files = make(tmp_path, lossy=lossy)
    files.prepare()
    path = seal(files, 7, exact=0 if lossy else 60)
    again = make(tmp_path, lossy=lossy)

    (parked,) = again.usable(again.prepare(), {7: array("I", [*STREAM, 1, 2])}.get)

    assert (parked.session, parked.stream, parked.size) == (7, STREAM, path.stat().st_size)
    assert parked.exact == (0 if lossy else 60)
    assert again.encodings == {7: park.Encoding.Q8 if lossy else park.Encoding.RAW}


def test_a_fetch_asks_for_exactly_what_a_seal_wrote(files):
    sealed = files.seal(SealFile(ticket=1, entry=2, session=7, stream=STREAM, exact=60))
    fetch = files.fetch(FetchFile(ticket=3, entry=4, session=7, stream=STREAM, exact=60))

    assert (fetch.path, fetch.identity, fetch.digest, fetch.positions) == (
        sealed.path,
        sealed.identity,
        sealed.digest,
        sealed.positions,
    )
    assert (fetch.ticket, fetch.entry) == (3, 4)


@pytest.mark.parametrize(
    ("changes", "stream", "reason"),
    [
        ({"model": "other"}, STREAM, "another model or other settings"),
        ({"settings": "n_ctx=8192"}, STREAM, "another model or other settings"),
        ({}, None, "not there any more, or shorter"),
        ({}, STREAM[:-1], "not there any more, or shorter"),
        ({}, array("I", [9, *STREAM[1:]]), "other tokens"),
    ],
    ids=["another model", "other settings", "no session", "a shorter session", "a rewritten history"],
)
def test_what_does_not_fit_is_not_used_and_said(tmp_path, files, log_lines, changes, stream, reason):
    path = seal(files, 7)

    assert found(make(tmp_path, **changes), {7: stream}) == []

    (line,) = log_lines
    assert line["session"] == 7
    assert reason in line["reason"]
    assert path.exists(), "it may fit again: the model may come back"


def test_a_file_of_a_daemon_that_said_nothing_of_exactness_is_not_used(files, monkeypatch):
    monkeypatch.setattr(files, "_name", lambda _exact: "digest n_ctx=4096")
    seal(files, 7)

    assert found(files, {7: STREAM}) == []


def test_damage_is_told_and_costs_only_the_file_itself(files, log_lines):
    for session in (1, 2, 3):
        seal(files, session)
    files.path(1).write_bytes(b"")
    data = bytearray(files.path(2).read_bytes())
    data[12] ^= 1
    files.path(2).write_bytes(data)

    assert found(files, dict.fromkeys((1, 2, 3), STREAM)) == [(3, 100)]
    assert sorted(line["file"] for line in log_lines) == [str(files.path(1)), str(files.path(2))]


def test_what_is_no_park_file_is_left_alone_and_leftovers_go(files):
    other, directory = files.directory / "notes.txt", files.directory / "8.park"
    named, leftover = files.directory / "mine.park", files.directory / f"7.park.99-1{park.TEMPORARY}"
    for path in (other, named, leftover):
        path.write_text("x")
    directory.mkdir()

    assert found(files, {}) == []
    assert [path.exists() for path in (other, named, directory, leftover)] == [True, True, True, False]


def test_the_file_that_was_written_last_comes_last(files):
    for session, written in ((1, 30), (2, 10), (3, 20)):
        os.utime(seal(files, session), (written, written))

    assert [session for session, _ in found(files, dict.fromkeys((1, 2, 3), STREAM))] == [2, 3, 1]


def test_a_file_is_removed_once_and_again(files):
    path = seal(files, 7)
    files.remove(RemoveFile(session=7))
    files.remove(RemoveFile(session=7))

    assert not path.exists()


def test_a_directory_that_cannot_be_used_says_so(tmp_path):
    (tmp_path / "park").write_text("in the way")

    with pytest.raises(OSError, match="park"):
        make(tmp_path).prepare()
