"""The directory of park files: which of those that lie there are used."""

import os
from array import array

import pytest
import structlog

from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.core.origin import Origin
from superfluid.sched.parkfiles import Parked, ParkFiles
from superfluid.worker import park
from tests.sched.simulated_worker import write_park_file

STREAM = array("I", range(100))
ORIGIN = Origin(identity="digest kv=f16 library=1", rows=4)
N_CTX = 4096


def make(tmp_path, *, lossy=False):
    return ParkFiles(tmp_path / "park", lossy=lossy)


def seal(files, session, stream=STREAM, exact=0, name=None):
    name = ORIGIN.name(exact) if name is None else name
    write_park_file(files.seal(SealFile(ticket=1, entry=2, session=session, stream=stream, name=name)))
    return files.path(session)


def judge(files, streams, *, origin=ORIGIN, n_ctx=N_CTX):
    return list(files.judge(files.scan(), streams.get, origin, n_ctx=n_ctx))


def used(files, streams):
    """What of the directory can be used, as (session, positions)."""
    return [(file.session, len(file.stream)) for file in judge(files, streams) if isinstance(file, Parked)]


@pytest.fixture
def files(tmp_path):
    files = make(tmp_path)
    files.sweep()
    return files


@pytest.fixture
def log_lines():
    with structlog.testing.capture_logs() as lines:
        yield lines


def test_the_directory_is_made_for_its_owner_alone(files):
    assert files.directory.stat().st_mode & 0o777 == 0o700
    assert judge(files, {}) == []


@pytest.mark.parametrize("lossy", [False, True])
def test_what_was_sealed_is_found_again_by_the_next_daemon(tmp_path, lossy):
    files = make(tmp_path, lossy=lossy)
    files.sweep()
    path = seal(files, 7, exact=60)
    again = make(tmp_path)

    (parked,) = judge(again, {7: array("I", [*STREAM, 1, 2])})

    assert parked == Parked(
        session=7, stream=STREAM, name=ORIGIN.name(60), exact=60, size=path.stat().st_size, lossy=lossy
    )


def test_a_padding_that_is_none_any_more_costs_the_exactness_alone(files):
    """The name stays what it is in the file: the worker compares it."""
    seal(files, 7, exact=60)

    (parked,) = judge(files, {7: STREAM}, origin=Origin(identity=ORIGIN.identity, rows=8))

    assert (parked.exact, parked.name) == (0, ORIGIN.name(60))


def test_a_fetch_asks_for_exactly_what_a_seal_wrote(files):
    sealed = files.seal(SealFile(ticket=1, entry=2, session=7, stream=STREAM, name="name"))
    fetch = files.fetch(FetchFile(ticket=3, entry=4, session=7, stream=STREAM, name="name"))

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
        ({"origin": Origin(identity="other kv=f16 library=1")}, STREAM, "another model or other settings"),
        ({"origin": Origin(identity="digest kv=f16 library=2")}, STREAM, "another model or other settings"),
        ({"n_ctx": 99}, STREAM, "it has 100 positions, and the context 99"),
        ({}, STREAM[:-1], "shorter"),
        ({}, array("I", [9, *STREAM[1:]]), "other tokens"),
    ],
    ids=["another model", "another library", "too long", "a shorter session", "a rewritten history"],
)
def test_what_does_not_fit_is_not_used_and_said(files, log_lines, changes, stream, reason):
    path = seal(files, 7)

    (refused,) = judge(files, {7: stream}, **changes)

    assert (refused.session, refused.size, refused.gone) == (7, path.stat().st_size, False)
    (line,) = log_lines
    assert (line["session"], line["bytes"]) == (7, path.stat().st_size)
    assert reason in line["reason"]
    assert path.exists(), "it may fit again: the model may come back"


def test_a_context_that_it_just_fits_is_enough(files):
    seal(files, 7)

    assert [file.session for file in judge(files, {7: STREAM}, n_ctx=100) if isinstance(file, Parked)] == [7]


def test_a_file_whose_session_is_gone_is_told_from_others(files, log_lines):
    path = seal(files, 7)
    path.write_bytes(b"damaged besides")

    (refused,) = judge(files, {})

    assert refused.gone
    assert log_lines[0]["then"] == "it is removed"


def test_a_file_of_a_daemon_that_said_nothing_of_exactness_is_not_used(files):
    seal(files, 7, name=ORIGIN.identity)

    assert used(files, {7: STREAM}) == []


def test_damage_is_told_and_costs_only_the_file_itself(files, log_lines):
    for session in (1, 2, 3):
        os.utime(seal(files, session), (session, session))
    files.path(1).write_bytes(b"")
    data = bytearray(files.path(2).read_bytes())
    data[12] ^= 1
    files.path(2).write_bytes(data)

    assert used(files, dict.fromkeys((1, 2, 3), STREAM)) == [(3, 100)]
    assert {line["session"]: line["bytes"] for line in log_lines} == {1: 0, 2: len(data)}


def test_what_is_no_park_file_is_left_alone_and_leftovers_go(files):
    names = ("notes.txt", "mine.park", "007.park", f"7.park.99-1{park.TEMPORARY}")
    paths = [files.directory / name for name in names]
    for path in paths:
        path.write_text("x")
    files.sweep()

    assert judge(files, {}) == []
    assert [path.exists() for path in paths] == [True, True, True, False]


def test_what_is_no_file_takes_no_room(files):
    (files.directory / "8.park").mkdir()
    (files.directory / "9.park").symlink_to(seal(files, 7))

    assert [file.size for file in judge(files, {8: STREAM, 9: STREAM}) if file.session != 7] == [0, 0]


def test_the_file_that_was_written_last_comes_last(files):
    for session, written in ((1, 30), (2, 10), (3, 20)):
        os.utime(seal(files, session), (written, written))

    assert [session for session, _ in used(files, dict.fromkeys((1, 2, 3), STREAM))] == [2, 3, 1]


def test_a_file_is_removed_once_and_again(files):
    path = seal(files, 7)
    files.remove(RemoveFile(session=7))
    files.remove(RemoveFile(session=7))

    assert not path.exists()


def test_a_directory_that_cannot_be_used_says_so(tmp_path):
    (tmp_path / "park").write_text("in the way")

    with pytest.raises(OSError, match="park"):
        make(tmp_path).sweep()
