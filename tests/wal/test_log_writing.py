"""Appending on real files: the order of things, and what each failure leaves behind."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from superfluid.core.errors import LogCorrupt, LogReadOnly, LogRefused, LogUnknown, StartError
from superfluid.core.frame import HEAD_BYTES
from superfluid.core.limits import LOG_RESERVE_BYTES
from superfluid.wal import Log, OsFiles
from tests.wal import mounts
from tests.wal.builders import begun, encoded, held, numbers, open_log
from tests.wal.hooked_files import HookedFiles, ShortWrites

WRITES = {"pwrite", "fsync", "ftruncate", "rename"}


def writes(files):
    """The calls that change something or make it durable."""
    return [call for call in files.calls if call[0] in WRITES and call[1] != "lock"]


# -- order ------------------------------------------------------------------------------------------


def test_a_commit_is_write_then_fsync_then_mark(tmp_path):
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)
    files.calls.clear()

    log.commit([encoded(1), encoded(2)])

    assert writes(files) == [("pwrite", "wal.log"), ("fsync", "wal.log"), ("pwrite", "wal.mark")]
    log.close()


def test_a_close_syncs_both_files(tmp_path):
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)
    files.calls.clear()

    assert log.close()

    assert writes(files) == [
        ("pwrite", "wal.log"),
        ("fsync", "wal.log"),
        ("pwrite", "wal.mark"),
        ("fsync", "wal.mark"),
    ]


def test_new_files_are_synced_before_they_are_named_and_their_names_after(tmp_path):
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)

    created = writes(files)
    for name in ("wal.log", "wal.mark"):
        at = created.index(("rename", name))
        assert created[at - 2 : at + 2] == [
            ("pwrite", f"{name}.new"),
            ("fsync", f"{name}.new"),
            ("rename", name),
            ("fsync", "s"),
        ]
    assert ("fsync", tmp_path.name) in created, "the new directory's own name"
    log.close()


def test_nothing_is_written_between_opening_and_beginning(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(1)])
    log.close()
    files = HookedFiles()

    opened = open_log(tmp_path / "s", files=files)
    assert numbers(opened.commands) == [1]
    opened.log.close()

    assert writes(files) == []


def test_a_torn_tail_is_copied_and_synced_before_it_is_cut(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.close()
    path = tmp_path / "s" / "wal.log"
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"torn")
    files = HookedFiles()

    log, _ = begun(tmp_path / "s", files=files, now_ms=9)

    name = f"wal.log.torn-{end}-9"
    assert writes(files) == [
        ("pwrite", f"{name}.new"),
        ("fsync", f"{name}.new"),
        ("rename", name),
        ("fsync", "s"),
        ("ftruncate", "wal.log"),
        ("pwrite", "wal.log"),  # what was last proven, anew
        ("fsync", "wal.log"),
        ("pwrite", "wal.log"),  # the start frame
        ("fsync", "wal.log"),
        ("pwrite", "wal.mark"),
        ("fsync", "wal.mark"),
    ]
    log.close()


def test_the_mark_is_synced_once_a_second_while_dirty(tmp_path):
    now = 100.0
    files = HookedFiles()
    log = Log.open(tmp_path / "s", now_ms=0, files=files, monotonic=lambda: now).log
    log.begin()
    assert log.mark_due_at is None
    files.calls.clear()

    log.commit([encoded(1)])
    assert log.mark_due_at == 101.0
    log.sync_mark_if_due(100.9)
    assert ("fsync", "wal.mark") not in files.calls
    now = 101.5
    log.sync_mark_if_due(now)
    assert files.calls.count(("fsync", "wal.mark")) == 1
    assert log.mark_due_at is None
    log.sync_mark_if_due(200.0)
    assert files.calls.count(("fsync", "wal.mark")) == 1
    log.commit([encoded(2)])
    assert log.mark_due_at == 102.5
    log.close()


def test_a_slow_fsync_is_counted_and_told(tmp_path):
    ticks = iter(range(0, 10_000, 2))
    told = []
    log = Log.open(
        tmp_path / "s", now_ms=0, monotonic=lambda: float(next(ticks)), on_slow_fsync=told.append
    ).log
    log.begin()
    before = log.statistics()

    log.commit([encoded(1)])

    after = log.statistics()
    assert after.slow_fsyncs == before.slow_fsyncs + 1
    assert after.fsync_seconds == before.fsync_seconds + 2.0
    assert told[-1] == 2.0
    log.close()


def test_statistics_count(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(1), encoded(2)])
    log.commit([encoded(3)])

    counts = log.statistics()

    assert (counts.refused, counts.slow_fsyncs) == (0, 0)
    assert counts.fsync_seconds > 0
    assert counts.end == log.end == (tmp_path / "s" / "wal.log").stat().st_size
    log.close()


# -- batches ----------------------------------------------------------------------------------------


def test_batches_of_all_sizes_come_back_in_order(tmp_path):
    log, _ = begun(tmp_path / "s")
    sizes = [0, 1, 15, 16, 17, 100, 5_000, 70_000, 3_000_000]
    log.commit([encoded(number, size=size) for number, size in enumerate(sizes)])
    log.commit([encoded(number, size=size) for number, size in enumerate(sizes, 100)])
    log.close()

    assert held(tmp_path / "s") == [*range(len(sizes)), *range(100, 100 + len(sizes))]


def test_the_reserve_is_beyond_the_end_of_the_file(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(1)])

    found = (tmp_path / "s" / "wal.log").stat()

    assert found.st_size == log.end
    assert found.st_blocks * 512 >= LOG_RESERVE_BYTES
    log.close()


def test_a_file_system_without_a_reserve_is_served_without(tmp_path):
    files = HookedFiles()
    files.fail(("allocate", "wal.log"), code=errno.EOPNOTSUPP)
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(1)])
    log.close()

    assert files.calls.count(("allocate", "wal.log")) == 1
    assert held(tmp_path / "s") == [1]


# -- refused: nothing of it is there ----------------------------------------------------------------


def assert_refused_and_well(log, directory):
    """The log refused a commit, takes the next one, and holds that one only."""
    assert log.read_only is None
    assert (directory / "wal.log").stat().st_size == log.end
    log.commit([encoded(2)])
    log.close()
    assert held(directory) == [0, 2]


@pytest.mark.parametrize(("code", "times"), [(errno.ENOSPC, 2), (errno.EDQUOT, 2), (errno.EIO, 1)])
def test_no_room_for_the_reserve_refuses_before_anything_is_written(tmp_path, code, times):
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    files.fail(*[("allocate", "wal.log")] * times, code=code)
    files.calls.clear()

    with pytest.raises(LogRefused, match="nothing of this was stored"):
        log.commit([encoded(1, noise=LOG_RESERVE_BYTES)])

    assert writes(files) == []
    assert log.statistics().refused == 1
    assert_refused_and_well(log, tmp_path / "s")


@pytest.mark.parametrize("take", [0, 1, 16, 63, 64, 95])
def test_a_failed_write_is_cut_back_and_synced(tmp_path, take):
    files = ShortWrites()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    files.calls.clear()
    files.take = take

    with pytest.raises(LogRefused):
        log.commit([encoded(1)])

    assert writes(files)[-2:] == [("ftruncate", "wal.log"), ("fsync", "wal.log")]
    files.calls.clear()
    assert_refused_and_well(log, tmp_path / "s")
    assert files.calls[0] == ("allocate", "wal.log"), "the cut took the reserve with it"


def test_a_short_write_goes_on_when_the_rest_is_taken(tmp_path):
    class Sips(OsFiles):
        def pwrite(self, fd, data, offset):
            return super().pwrite(fd, bytes(data[:7]), offset)

    log, _ = begun(tmp_path / "s", files=Sips())
    log.commit([encoded(1)])
    log.close()

    assert held(tmp_path / "s") == [1]


def test_a_write_that_takes_nothing_is_a_failed_one(tmp_path):
    class Full(OsFiles):
        stuck = False

        def pwrite(self, fd, data, offset):
            return 0 if self.stuck else super().pwrite(fd, data, offset)

    files = Full()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    files.stuck = True
    with pytest.raises(LogRefused):
        log.commit([encoded(1)])
    files.stuck = False
    assert_refused_and_well(log, tmp_path / "s")


# -- unknown: a restart tells -----------------------------------------------------------------------

UNKNOWN = {
    "fsync": ([("fsync", "wal.log")], None, True),
    "the mark": ([("pwrite", "wal.mark")], None, True),
    "short write, then the cut-back": ([("ftruncate", "wal.log")], 70, False),
    "short write, then the cut-back's fsync": ([("fsync", "wal.log")], 70, False),
}


@pytest.mark.parametrize(("failing", "take", "there"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_outcome_freezes_the_log_until_a_restart(tmp_path, failing, take, there):
    files = ShortWrites()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    files.fail(*failing)
    files.take = take

    with pytest.raises(LogUnknown, match=r"whether this was stored is unknown.*read the session after it"):
        log.commit([encoded(1)])

    assert log.read_only is not None
    assert log.mark_due_at is None
    files.calls.clear()
    with pytest.raises(LogReadOnly, match="until a restart"):
        log.commit([encoded(2)])
    log.sync_mark_if_due(1e12)
    assert not log.close()
    assert writes(files) == [], "nothing more is written, no close frame either"

    log, found = begun(tmp_path / "s")
    assert found == ([0, 1] if there else [0])
    assert log.read_only is None
    log.commit([encoded(3)])
    log.close()
    assert held(tmp_path / "s") == [*found, 3]


def test_a_mark_that_cannot_be_synced_freezes_the_log(tmp_path):
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    files.fail(("fsync", "wal.mark"))

    log.sync_mark_if_due(1e12)

    assert "syncing the mark" in log.read_only
    with pytest.raises(LogReadOnly):
        log.commit([encoded(1)])
    log.close()


@pytest.mark.parametrize(
    "change", [lambda fd, end: os.pwrite(fd, b"x", end), lambda fd, end: os.ftruncate(fd, end - 1)]
)
def test_a_file_somebody_else_changed_turns_read_only(tmp_path, change):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    fd = os.open(tmp_path / "s" / "wal.log", os.O_RDWR)
    change(fd, log.end)
    os.close(fd)
    before = (tmp_path / "s" / "wal.log").read_bytes()

    with pytest.raises(LogReadOnly, match="something else changed it"):
        log.commit([encoded(1)])
    assert not log.close()

    assert (tmp_path / "s" / "wal.log").read_bytes() == before


CLOSES = [("fsync", "wal.log"), ("pwrite", "wal.log"), ("pwrite", "wal.mark"), ("fsync", "wal.mark")]


@pytest.mark.parametrize("failing", CLOSES)
def test_a_close_that_fails_releases_everything_and_loses_nothing(tmp_path, failing):
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    files.fail(failing)

    assert not log.close()
    assert not log.close()

    assert held(tmp_path / "s") == [0]


def test_a_close_twice_and_without_a_beginning(tmp_path):
    log, _ = begun(tmp_path / "s")
    assert log.close()
    assert log.close()
    opened = open_log(tmp_path / "s")
    assert not opened.log.close()

    again = open_log(tmp_path / "s")
    assert again.clean
    again.log.close()


# -- a start that cannot write ----------------------------------------------------------------------

STARTS = {
    "no room for the copy of the tail": ("pwrite", "wal.log.torn-"),
    "the copy's fsync fails": ("fsync", "wal.log.torn-"),
    "the cut fails": ("ftruncate", "wal.log"),
    "what was proven cannot be written anew": ("pwrite", "wal.log"),
    "or synced": ("fsync", "wal.log"),
}


@pytest.mark.parametrize("failing", STARTS.values(), ids=STARTS.keys())
def test_a_start_that_cannot_repair_reads_on(tmp_path, failing):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()
    path = tmp_path / "s" / "wal.log"
    path.write_bytes(path.read_bytes() + b"torn")
    files = HookedFiles()

    def hook(op, name):
        if op == failing[0] and (
            name.startswith(failing[1]) if failing[1].endswith("-") else name == failing[1]
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files.before = hook
    log, found = begun(tmp_path / "s", files=files)

    assert found == [0]
    assert "could not be repaired" in log.read_only
    with pytest.raises(LogReadOnly):
        log.commit([encoded(1)])
    assert not log.close()
    if failing[0] != "ftruncate" and failing[1] == "wal.log.torn-":
        assert path.read_bytes().endswith(b"torn")
        assert list(path.parent.glob("*.new")) == []

    # With room again, the next start repairs.
    log, found = begun(tmp_path / "s")
    assert (found, log.read_only) == ([0], None)
    log.commit([encoded(1)])
    log.close()
    assert held(tmp_path / "s") == [0, 1]


@pytest.mark.parametrize("failing", [("pwrite", "wal.log"), ("fsync", "wal.log"), ("allocate", "wal.log")])
def test_a_start_frame_that_cannot_be_written_leaves_the_log_readable(tmp_path, failing):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()
    files = HookedFiles()
    files.fail(*[failing] * 2, code=errno.ENOSPC)

    log, found = begun(tmp_path / "s", files=files)

    assert found == [0]
    assert log.read_only is not None
    with pytest.raises(LogReadOnly):
        log.commit([encoded(1)])
    log.close()
    assert held(tmp_path / "s") == [0]


# -- a full disk ------------------------------------------------------------------------------------

FULL = """
import resource, sys
from pathlib import Path
from superfluid.core.errors import LogRefused
from tests.wal.builders import begun, encoded
log, _ = begun(Path(sys.argv[1]))
log.commit([encoded(0)])
limit = log.end + 100
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
refused = 0
try:
    log.commit([encoded(n, size=90) for n in (10, 11, 12)])
except LogRefused:
    refused += 1
assert Path(sys.argv[1], "wal.log").stat().st_size == log.end
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for n in (1, 2, 3):
    log.commit([encoded(n)])
assert refused == 1 and log.read_only is None
assert log.close()
"""


@pytest.mark.slow
def test_at_a_limit_of_the_file_size_the_append_is_refused_and_later_ones_are_not(tmp_path):
    """RLIMIT_FSIZE cuts a write in the middle, for any user, as a full disk without a reserve would."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "s")], cwd=root, check=True)

    assert held(tmp_path / "s") == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", [mounts.appends_until_full_and_again, mounts.torn_tail_without_room_for_its_copy]
)
def test_a_full_disk(tmp_path, scenario):
    mounts.run(scenario, tmp_path)


# -- permissions and places -------------------------------------------------------------------------


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_everything_is_for_the_owner_alone(tmp_path):
    directory = tmp_path / "home" / "sessions"
    log, _ = begun(directory)
    log.commit([encoded(0)])
    log.close()
    path = directory / "wal.log"
    path.write_bytes(path.read_bytes() + b"torn")
    for name in ("wal.log", "wal.mark", "lock"):
        (directory / name).chmod(0o644)
    log, _ = begun(directory)
    log.close()

    modes = {
        entry.name.split(".torn")[0]: stat.S_IMODE(entry.stat().st_mode) for entry in directory.iterdir()
    }
    assert modes == {"wal.log": 0o600, "wal.mark": 0o600, "lock": 0o600}
    assert len(list(directory.iterdir())) == 4
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700


def test_an_empty_directory_is_closed_to_others_and_a_shared_one_is_a_warning(tmp_path):
    empty, shared = tmp_path / "empty", tmp_path / "shared"
    for directory in (empty, shared):
        directory.mkdir()
        directory.chmod(0o755)
    (shared / "something").touch()

    of_empty, of_shared = open_log(empty), open_log(shared)
    of_empty.log.close()
    of_shared.log.close()

    assert of_empty.warnings == ()
    assert stat.S_IMODE(empty.stat().st_mode) == 0o700
    [warning] = of_shared.warnings
    assert "chmod 700" in warning
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("kind", "warned"), [("nfs4", True), ("fuse.sshfs", True), ("ext4", False), (None, False)]
)
def test_a_file_system_that_may_not_keep_its_word_is_named_once(tmp_path, kind, warned):
    class Remote(OsFiles):
        def file_system(self, fd):
            return kind

    opened = open_log(tmp_path / "s", files=Remote())
    opened.log.close()

    assert [kind in text for text in opened.warnings] == [True] * warned


def test_the_file_system_of_a_directory_is_found(tmp_path):
    files = OsFiles()
    fd = files.open(Path("/proc"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert files.file_system(fd) == "proc"
    finally:
        files.close(fd)


def a_directory_in_the_way(directory):
    (directory / "wal.log").mkdir()


def a_fifo_in_the_way(directory):
    os.mkfifo(directory / "wal.log")


def a_link_to_nothing(directory):
    (directory / "wal.log").symlink_to("/nowhere/wal.log")


def a_file_for_a_directory(directory):
    directory.rmdir()
    directory.touch()


@pytest.mark.parametrize(
    ("obstruct", "text"),
    [
        (a_directory_in_the_way, "Is a directory"),
        (a_fifo_in_the_way, "not a regular file"),
        (a_link_to_nothing, "symbolic link to nothing"),
        (a_file_for_a_directory, "Not a directory"),
    ],
)
def test_what_cannot_be_a_log_is_named(tmp_path, obstruct, text):
    directory = tmp_path / "s"
    directory.mkdir(0o700)
    obstruct(directory)

    with pytest.raises(StartError, match=text):
        open_log(directory)


def test_progress_is_told(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()
    told = []

    opened = Log.open(tmp_path / "s", now_ms=0, progress=lambda done, total: told.append((done, total)))
    opened.log.close()

    size = (tmp_path / "s" / "wal.log").stat().st_size
    assert told[-1] == (size, size)
    assert all(HEAD_BYTES <= done <= total == size for done, total in told)


def test_a_log_that_cannot_be_read_is_refused_with_the_offset(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()

    class Unreadable(OsFiles):
        def pread(self, fd, count, offset):
            if offset == HEAD_BYTES:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(fd, count, offset)

    with pytest.raises(LogCorrupt, match=f"at offset {HEAD_BYTES}: it cannot be read"):
        open_log(tmp_path / "s", files=Unreadable())
