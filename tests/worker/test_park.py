"""Park files: what was sealed comes back, and whatever is wrong with a file makes no entry and ends nothing."""

import errno
import os
import queue
import resource
import stat
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superfluid.core.limits import MAX_PARK_NAME_BYTES, MIB, PARK_SYNC_BYTES
from superfluid.worker import park
from superfluid.worker.filer import Filing
from superfluid.worker.host import Entry, HostMemory
from superfluid.worker.messages import Fetch, Filed, Seal
from superfluid.worker.park import Encoding, Header, ParkError

IDENTITY = "tiny model, settings, library"
DIGEST = bytes(range(32))
HEADER = Header(
    identity=IDENTITY,
    digest=DIGEST,
    positions=40,
    encoding=Encoding.RAW,
    state_bytes=MIB + 777,
    stored_bytes=MIB + 777,
)


def noise(size, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


class Bench:
    """Host memory, the threads, and their answers."""

    def __init__(self):
        self.host = HostMemory()
        self._answers = queue.SimpleQueue()
        self._filing = Filing(self.host, self._answers.put)
        self._tickets = 0

    def put(self, number, size=HEADER.state_bytes, positions=40, seed=1):
        assert self.host.put(number, Entry(positions=positions, state=noise(size, seed)))

    def seal(self, entry, path, *, drop=False, **changes):
        self._tickets += 1
        fields = {"identity": IDENTITY, "digest": DIGEST, "positions": 40} | changes
        self._filing.seal(Seal(ticket=self._tickets, entry=entry, path=str(path), **fields))
        if drop:
            self.host.drop(entry)
        return self._answer()

    def fetch(self, path, entry, **changes):
        self._tickets += 1
        fields = {"identity": IDENTITY, "digest": DIGEST, "positions": 40} | changes
        self._filing.fetch(Fetch(ticket=self._tickets, entry=entry, path=str(path), **fields))
        return self._answer()

    def _answer(self) -> Filed:
        answer = self._answers.get(timeout=20)
        assert answer.ticket == self._tickets
        return answer


@pytest.fixture(scope="module")
def bench():
    return Bench()


@pytest.fixture
def parked(bench, tmp_path):
    """A whole park file."""
    path = tmp_path / "park" / "s1.park"
    bench.host.drop(1)
    bench.put(1)
    assert bench.seal(1, path, drop=True).ok
    return path


def refused(bench, path, match, **changes):
    """A fetch of *path* is refused for that reason, and there is no entry."""
    answer = bench.fetch(path, 2, **changes)
    assert (answer.ok, answer.size, bench.host.get(2)) == (False, 0, None), path
    assert match in answer.detail


# -- there and back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4096, PARK_SYNC_BYTES, PARK_SYNC_BYTES + 1])
def test_what_was_sealed_is_what_is_fetched(bench, tmp_path, size):
    path = tmp_path / "s1.park"
    for number in (3, 4):
        bench.host.drop(number)
    bench.put(3, size)

    sealed = bench.seal(3, path)
    fetched = bench.fetch(path, 4)

    assert (sealed.ok, sealed.size, sealed.detail) == (True, path.stat().st_size, "")
    assert (fetched.ok, fetched.size) == (True, size)
    entry = bench.host.get(4)
    assert (entry.positions, entry.state.tobytes()) == (40, noise(size).tobytes())
    assert not entry.state.flags.writeable


def test_the_header_says_what_the_file_is_without_reading_it(parked):
    header = park.read_header(parked)

    assert header == HEADER
    assert header.file_bytes == parked.stat().st_size


def test_files_are_the_owners_alone(parked):
    assert stat.S_IMODE(parked.stat().st_mode) == 0o600
    assert stat.S_IMODE(parked.parent.stat().st_mode) == 0o700
    assert [path.name for path in parked.parent.iterdir()] == ["s1.park"]


def test_a_file_is_synced_before_it_has_its_name_and_the_directory_after(bench, tmp_path, monkeypatch):
    """Field case: a renamed file vanished with the power, since its directory was not synced."""
    seen = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(stat.S_ISDIR(os.fstat(fd).st_mode)) or fsync(fd))
    monkeypatch.setattr(Path, "rename", lambda old, new: seen.append(new) or rename(old, new))
    bench.host.drop(5)
    bench.put(5)

    assert bench.seal(5, tmp_path / "s1.park").ok
    assert seen == [False, tmp_path / "s1.park", True]


def test_a_later_seal_replaces_the_file(bench, parked):
    bench.host.drop(6)
    bench.put(6, 5000, positions=50, seed=2)

    assert bench.seal(6, parked, positions=50).ok
    refused(bench, parked, "other tokens")
    assert park.read_header(parked).positions == 50


# -- what is wrong with a file ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"identity": "another model"}, "another model"),
        ({"identity": ""}, "another model"),
        ({"digest": bytes(32)}, "other tokens"),
        ({"digest": DIGEST[:31]}, "other tokens"),
        ({"positions": 41}, "other tokens"),
        ({"positions": 39}, "other tokens"),
    ],
)
def test_a_file_of_something_else_is_refused(bench, parked, changes, match):
    refused(bench, parked, match, **changes)


def test_a_file_cut_anywhere_is_refused(bench, parked):
    """Field case F22: old readers ran past the end of a truncated file."""
    whole = parked.stat().st_size
    for size in [*range(whole - whole % 4096, 0, -4096), *range(160, -1, -1)]:
        os.truncate(parked, size)
        refused(bench, parked, "it is cut short" if size < 100 else "it")


def test_a_flipped_bit_anywhere_is_refused(bench, parked):
    data = bytearray(parked.read_bytes())
    places = [
        *range(150),
        *range(len(data) - 50, len(data)),
        *np.random.default_rng(4).integers(0, len(data), 150),
    ]
    for place in places:
        data[place] ^= 1 << place % 8
        parked.write_bytes(data)
        refused(bench, parked, "")
        data[place] ^= 1 << place % 8
    parked.write_bytes(data)
    assert bench.fetch(parked, 7).ok
    bench.host.drop(7)


@pytest.mark.parametrize("more", [b"\0", b"x" * 4096, park.END])
def test_bytes_behind_the_end_are_refused(bench, parked, more):
    with parked.open("ab") as file:
        file.write(more)

    refused(bench, parked, "bytes instead of")


def test_parts_that_changed_places_are_refused(bench, parked):
    data = parked.read_bytes()
    head, part = len(HEADER.pack()), 4096
    first, second, rest = (
        data[head : head + part],
        data[head + part : head + 2 * part],
        data[head + 2 * part :],
    )
    parked.write_bytes(data[:head] + second + first + rest)

    refused(bench, parked, "damaged")


def test_two_files_that_changed_places_are_refused(bench, parked):
    """Field case: the disk tier returned another request's bytes."""
    other = parked.with_name("s2.park")
    bench.host.drop(8)
    bench.put(8, seed=3)
    assert bench.seal(8, other, digest=bytes(32)).ok
    parked.rename(parked.with_name("x"))
    other.rename(parked)
    parked.with_name("x").rename(other)

    refused(bench, parked, "other tokens")
    refused(bench, other, "other tokens", digest=bytes(32))


def test_what_is_no_file_is_refused(bench, parked, tmp_path):
    (tmp_path / "link").symlink_to(parked)
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("hello " * 100)
    (tmp_path / "empty").touch()

    for name, match in {
        "none": "No such file",
        "directory": "not a file",
        "fifo": "not a file",
        "link": "not a file",
        "text": "not a park file",
        "empty": "cut short",
    }.items():
        refused(bench, tmp_path / name, match)
        with pytest.raises((ParkError, OSError)):
            park.read_header(tmp_path / name)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(replace(HEADER, stored_bytes=1 << 50, state_bytes=1 << 50), id="a petabyte"),
        pytest.param(
            replace(HEADER, stored_bytes=(1 << 64) - 1, state_bytes=(1 << 64) - 1), id="all there is"
        ),
        pytest.param(replace(HEADER, state_bytes=HEADER.stored_bytes + 1), id="more than is stored"),
        pytest.param(replace(HEADER, encoding=Encoding.Q8, state_bytes=1 << 40), id="a bomb"),
        pytest.param(replace(HEADER, positions=0), id="no positions"),
        pytest.param(replace(HEADER, stored_bytes=0, state_bytes=0), id="no bytes"),
    ],
)
def test_a_size_that_cannot_be_is_refused_before_anything_is_allocated(bench, parked, header, monkeypatch):
    monkeypatch.setattr(np, "empty", None)
    data = parked.read_bytes()
    parked.write_bytes(header.pack() + data[len(HEADER.pack()) :])

    refused(bench, parked, "it", positions=header.positions)


def test_a_file_of_another_version_or_encoding_is_refused(bench, parked):
    data = parked.read_bytes()
    for place, match in {8: "not a park file of this version", 10: "damaged"}.items():
        parked.write_bytes(data[:place] + bytes([9]) + data[place + 1 :])
        refused(bench, parked, match)
    parked.write_bytes(replace(HEADER, encoding=1).pack() + data[len(HEADER.pack()) :])
    refused(bench, parked, "none of this version")


def test_names_longer_than_a_header_holds_are_refused(bench, tmp_path):
    bench.host.drop(9)
    bench.put(9)

    answer = bench.seal(9, tmp_path / "s.park", identity="x" * (MAX_PARK_NAME_BYTES + 1))

    assert (answer.ok, list(tmp_path.iterdir())) == (False, [])


def test_a_file_larger_than_memory_is_refused(bench, tmp_path):
    size = 8 << 40
    header = replace(HEADER, stored_bytes=size, state_bytes=size)
    path = tmp_path / "huge.park"
    path.write_bytes(header.pack())
    os.truncate(path, header.file_bytes)  # takes no space

    refused(bench, path, "too little memory")


# -- what is wrong with a request or the disk -------------------------------------------------------


def test_an_entry_that_is_not_there_is_not_sealed(bench, tmp_path):
    bench.host.drop(10)
    missing = bench.seal(10, tmp_path / "a.park")
    bench.put(10)
    other = bench.seal(10, tmp_path / "a.park", positions=41)

    assert [answer.detail for answer in (missing, other)] == [
        "there is no such entry of so many positions"
    ] * 2
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_is_there_is_not_overwritten(bench, parked):
    bench.host.drop(11)
    bench.put(11, 10, seed=9)

    assert not bench.fetch(parked, 11).ok
    assert bench.host.get(11).state.tobytes() == noise(10, 9).tobytes()


@contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_nothing_and_the_old_file(bench, parked):
    before = parked.read_bytes()
    bench.host.drop(12)
    bench.put(12, seed=5)

    with files_of_at_most(MIB):
        answer = bench.seal(12, parked)

    assert (answer.ok, os.strerror(errno.EFBIG) in answer.detail) == (False, True)
    assert [path.name for path in parked.parent.iterdir()] == ["s1.park"]
    assert parked.read_bytes() == before
    assert bench.seal(12, parked).ok


def test_a_directory_that_cannot_be_made_is_said(bench, tmp_path):
    bench.host.drop(13)
    bench.put(13)

    assert "No such file" in bench.seal(13, tmp_path / "a" / "b" / "s.park").detail
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_workers_are_found_and_overwritten(bench, parked):
    leftover = parked.with_name(f"s1.park.{os.getpid()}-{bench._tickets + 1}.tmp")
    leftover.write_bytes(b"half")
    bench.host.drop(14)
    bench.put(14)

    assert park.leftovers(parked.parent) == [leftover]
    assert bench.seal(14, parked).ok
    assert park.leftovers(parked.parent) == []
