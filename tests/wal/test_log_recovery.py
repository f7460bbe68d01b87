"""Recovery on real files: one log, many ways to break it."""

import re
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cbor2
import pytest

from superfluid.core.errors import LogCorrupt, StartError
from superfluid.core.frame import HEAD_BYTES, Kind, Position, build_frame, decode_head
from superfluid.core.walk import Walker
from superfluid.wal import OsFiles
from superfluid.wal.reader import read_frames
from tests.wal.builders import begun, encoded, held, numbers, open_log


@dataclass
class Written:
    """A log and the mark beside it, as they stood after each frame."""

    directory: Path
    data: bytes
    ends: list[int]
    marks: list[bytes]
    counts: list[int]

    def restore(self, frames=-1, *, data=None, mark=True):
        """Put the log back as it was after so many frames, or with this content."""
        (self.directory / "wal.log").write_bytes(self.data[: self.ends[frames]] if data is None else data)
        if mark:
            (self.directory / "wal.mark").write_bytes(self.marks[frames])
        else:
            (self.directory / "wal.mark").unlink(missing_ok=True)
        for copy in self.directory.glob("wal.log.torn-*"):
            copy.unlink()

    def frame_at(self, offset):
        """The number of frames that end at or before this offset, less one: an index into ``ends``."""
        return max(n for n, end in enumerate(self.ends) if end <= offset)


def write_log(directory, commits, *, close=False):
    """A log of so many commits of two commands each; index 0 is after the start frame."""
    log, _ = begun(directory)
    path, mark = directory / "wal.log", directory / "wal.mark"
    written = Written(directory, b"", [log.end], [mark.read_bytes()], [0])
    for number in range(0, 2 * commits, 2):
        log.commit([encoded(number), encoded(number + 1)])
        written.ends.append(log.end)
        written.marks.append(mark.read_bytes())
        written.counts.append(number + 2)
    log.close()
    if close:
        written.ends.append(path.stat().st_size)
        written.marks.append(mark.read_bytes())
        written.counts.append(written.counts[-1])
    written.data = path.read_bytes()
    return written


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_cut_at_every_byte_keeps_what_was_acknowledged_by_then(tmp_path):
    written = write_log(tmp_path / "s", 12, close=True)
    for cut in range(written.ends[0], len(written.data)):
        frames = written.frame_at(cut)
        written.restore(frames, data=written.data[:cut])

        opened = open_log(written.directory)
        found = numbers(opened.commands)
        opened.log.begin()
        assert opened.log.read_only is None
        opened.log.close()

        assert found == list(range(written.counts[frames])), cut
        # The start and close frames landed on a boundary: the next opening is a clean one.
        again = open_log(written.directory)
        assert again.clean, cut
        assert numbers(again.commands) == found
        again.log.close()


@pytest.mark.parametrize("frames", [0, 1, 2, 3])
def test_a_cut_below_the_mark_refuses_and_names_the_offset(tmp_path, frames):
    written = write_log(tmp_path / "s", 3)
    for cut in range(HEAD_BYTES, written.ends[frames]):
        written.restore(frames, data=written.data[:cut])
        begin = max([HEAD_BYTES, *(end for end in written.ends if end <= cut)])

        with pytest.raises(LogCorrupt, match=f"at offset {begin}:"):
            open_log(written.directory)


@pytest.mark.slow
@pytest.mark.parametrize("with_mark", [False, True])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_flip_of_any_byte(tmp_path, frames, with_mark):
    """Refused where the mark or a later frame vouches for the byte, a torn tail where nothing does."""
    written = write_log(tmp_path / "s", 2)
    whole = written.data[: written.ends[frames]]
    for at in range(HEAD_BYTES, len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x20
        written.restore(frames, data=bytes(flipped), mark=with_mark)
        frame = max([HEAD_BYTES, *(end for end in written.ends if end <= at)])

        if with_mark or frame < written.ends[frames - 1]:
            with pytest.raises(LogCorrupt, match=f"at offset {frame}:"):
                open_log(written.directory)
        else:
            assert held(written.directory) == list(range(written.counts[frames - 1]))


@pytest.mark.parametrize("at", range(0, HEAD_BYTES, 8))
def test_a_flip_in_the_head_is_healed_from_its_copy(tmp_path, at):
    written = write_log(tmp_path / "s", 1)
    flipped = bytearray(written.data)
    flipped[at] ^= 0x20
    written.restore(data=bytes(flipped))

    opened = open_log(written.directory)
    assert numbers(opened.commands) == [0, 1]
    opened.log.begin()
    opened.log.close()

    assert any("head" in warning for warning in opened.warnings)
    assert (written.directory / "wal.log").read_bytes()[:HEAD_BYTES] == written.data[:HEAD_BYTES]


@pytest.mark.parametrize("data", [b"", b"S", bytes(128), b"garbage" * 100])
def test_a_log_without_a_head_is_refused(tmp_path, data):
    written = write_log(tmp_path / "s", 1)
    written.restore(data=data)

    with pytest.raises(LogCorrupt, match="at offset 0"):
        open_log(written.directory)
    assert (written.directory / "wal.log").read_bytes() == data


def test_a_log_of_the_older_format_is_named(tmp_path):
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    shutil.copy(Path(__file__).parents[2] / "protocol/vectors/wal-v2.bin", directory / "wal.log")

    with pytest.raises(StartError, match="version 2"):
        open_log(directory)


# -- torn tails -------------------------------------------------------------------------------------


def other_frame(written, payload=b"lost", kind=Kind.DATA):
    """A whole frame that would come next."""
    reading = decode_head(written.data)
    assert reading is not None
    position = end_of(written)
    return build_frame(kind, payload, at=position, durable=position.offset, key=reading.head.key).data


def end_of(written) -> Position:
    reading = decode_head(written.data)
    assert reading is not None
    files, path = OsFiles(), written.directory / "wal.log"
    fd = files.open(path, 0)
    try:
        walk = read_frames(files, fd, path, Walker(reading.head, None), limit=len(written.data))
        while True:
            try:
                next(walk)
            except StopIteration as stop:
                return stop.value.at
    finally:
        files.close(fd)


TAILS = {
    **{f"{n} zeros": lambda _, n=n: bytes(n) for n in (1, 8, 512, 4096)},
    "one byte": lambda _: b"S",
    "a magic": lambda _: b"SFB3",
    "a header": lambda w: other_frame(w)[:64],
    "a frame without its last byte": lambda w: other_frame(w)[:-1],
    "a frame whose second half is zeros": lambda w: other_frame(w, b"x" * 900)[:512] + bytes(452),
    "garbage over several blocks": lambda _: b"garbage!" * 2000,
    "garbage, then zeros": lambda _: b"garbage!" + bytes(5000),
    "the log's own bytes, torn": lambda w: other_frame(w, w.data)[:-5],
    "the log's own bytes, shifted and torn": lambda w: other_frame(w, b"1234" + w.data)[:-5],
}


@pytest.mark.parametrize("with_mark", [True, False])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_torn_tail_is_copied_aside_and_cut_off(tmp_path, tail, with_mark):
    written = write_log(tmp_path / "s", 3, close=True)
    torn = tail(written)
    written.restore(data=written.data + torn, mark=with_mark)

    opened = open_log(written.directory, now_ms=77)
    assert numbers(opened.commands) == list(range(6))
    opened.log.begin()
    opened.log.commit([encoded(6)])
    opened.log.close()

    assert not opened.clean
    [warning] = [text for text in opened.warnings if "unfinished" in text]
    assert f"{len(torn)} bytes from offset {len(written.data)}" in warning
    copies = {path.name: path for path in written.directory.glob("wal.log.torn-*")}
    if torn.strip(b"\0"):
        assert list(copies) == [f"wal.log.torn-{len(written.data)}-77"]
        [copy] = copies.values()
        assert copy.read_bytes() == torn.rstrip(b"\0")
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    else:
        assert copies == {}
    assert held(written.directory) == list(range(7))


def test_two_torn_tails_at_one_place_and_time_are_both_kept(tmp_path):
    written = write_log(tmp_path / "s", 1)
    for torn in (b"first", b"second"):
        (written.directory / "wal.log").write_bytes(written.data + torn)
        (written.directory / "wal.mark").write_bytes(written.marks[-1])
        log, _ = begun(written.directory)
        log.close()

    assert sorted(path.read_bytes() for path in written.directory.glob("wal.log.torn-*")) == [
        b"first",
        b"second",
    ]


def test_half_made_files_of_a_crash_are_removed(tmp_path):
    written = write_log(tmp_path / "s", 1)
    leftovers = [written.directory / name for name in ("wal.mark.new", "wal.log.torn-5-5.new")]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    (written.directory / "other.new").write_bytes(b"not ours")

    log, found = begun(written.directory)
    log.close()

    assert found == [0, 1]
    assert [path.exists() for path in leftovers] == [False, False]
    assert (written.directory / "other.new").exists()


# -- refusals ---------------------------------------------------------------------------------------


def undecodable(written):
    return written.data + other_frame(written, b"\x81\xff")


DAMAGE = {
    "a hole in the middle": lambda w: w.data[: w.ends[0]] + bytes(16) + w.data[w.ends[0] + 16 :],
    "a frame taken out": lambda w: w.data[: w.ends[0]] + w.data[w.ends[1] :],
    "a frame twice": lambda w: w.data[: w.ends[1]] + w.data[w.ends[0] :],
    "a short file": lambda w: w.data[: w.ends[1]],
    "a snapshot": lambda w: w.data + other_frame(w, b"state", Kind.SNAPSHOT),
    "an undecodable frame at the tail": undecodable,
    "a batch that is no batch": lambda w: w.data + other_frame(w, cbor2.dumps({"a": 1})),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_refused_start_names_the_ways_out_and_changes_nothing(tmp_path, damage):
    written = write_log(tmp_path / "s", 3, close=True)
    written.restore(data=damage(written))
    before = {path.name: path.read_bytes() for path in written.directory.iterdir() if path.name != "lock"}

    with pytest.raises(LogCorrupt) as caught:
        held(written.directory)

    text = str(caught.value)
    assert str(written.directory / "wal.log") in text
    assert "at offset" in text
    assert "move wal.log aside" in text
    assert "intact copy" in text
    assert not re.search(r"--\w", text), "no option of this version helps here"
    after = {path.name: path.read_bytes() for path in written.directory.iterdir() if path.name != "lock"}
    assert after == before


def test_the_way_out_is_one(tmp_path):
    written = write_log(tmp_path / "s", 2)
    written.restore(data=written.data[: written.ends[0]])
    (written.directory / "wal.log").rename(written.directory / "aside")

    log, found = begun(written.directory)
    log.commit([encoded(5)])
    log.close()

    assert found == []
    assert held(written.directory) == [5]


def test_an_undecodable_frame_names_its_offset(tmp_path):
    written = write_log(tmp_path / "s", 1)
    written.restore(data=undecodable(written))

    with pytest.raises(LogCorrupt, match=f"at offset {len(written.data)}: .*no CBOR"):
        held(written.directory)


# -- marks ------------------------------------------------------------------------------------------


def foreign_mark(written, tmp_path):
    return write_log(tmp_path / "other", 5).marks[-1]


MARKS = {
    "missing": (lambda _w, _t: None, "is missing"),
    "of another log": (foreign_mark, "does not speak of this log"),
    "empty": (lambda _w, _t: b"", "does not speak of this log"),
    "all zeros": (lambda _w, _t: bytes(8192), "does not speak of this log"),
    "garbage": (lambda _w, _t: b"garbage!" * 1024, "does not speak of this log"),
    "stale": (lambda w, _t: w.marks[0], None),
    "with one slot damaged": (lambda w, _t: bytes(64) + w.marks[-1][64:], None),
    "with the other slot damaged": (lambda w, _t: w.marks[-1][:4096] + bytes(4096), None),
}


@pytest.mark.parametrize(("make", "warning"), MARKS.values(), ids=MARKS.keys())
def test_a_mark_that_cannot_vouch_is_a_warning_at_most(tmp_path, make, warning):
    written = write_log(tmp_path / "s", 3)
    mark = make(written, tmp_path)
    written.restore(mark=False)
    if mark is not None:
        (written.directory / "wal.mark").write_bytes(mark)

    opened = open_log(written.directory)
    assert numbers(opened.commands) == list(range(6))
    opened.log.begin()
    opened.log.commit([encoded(6)])
    opened.log.close()

    assert [text for text in opened.warnings if warning and warning in text] == list(opened.warnings)
    assert bool(opened.warnings) == bool(warning)
    again = open_log(written.directory)
    assert (again.clean, again.warnings) == (True, ())
    assert numbers(again.commands) == list(range(7))
    again.log.close()


def test_the_mark_of_a_newer_state_refuses_an_older_log(tmp_path):
    """A log put back from a backup, beside today's mark, lacks what was acknowledged since."""
    written = write_log(tmp_path / "s", 3)
    written.restore(1)
    (written.directory / "wal.mark").write_bytes(written.marks[3])

    with pytest.raises(LogCorrupt, match=f"at offset {written.ends[1]}: the file ends here"):
        open_log(written.directory)


def test_each_run_has_an_epoch_of_its_own(tmp_path):
    written = write_log(tmp_path / "s", 1)
    for expected in (2, 3, 4):
        log, _ = begun(written.directory)
        assert log.epoch == expected
        log.close()


def test_the_epoch_outlives_a_log_that_was_moved_aside(tmp_path):
    written = write_log(tmp_path / "s", 1)
    (written.directory / "wal.log").unlink()

    log, _ = begun(written.directory)
    log.close()

    assert log.epoch == 2


def test_ids_of_store_and_log_stay(tmp_path):
    first, _ = begun(tmp_path / "s")
    first.close()
    second, _ = begun(tmp_path / "s")
    second.close()

    assert (second.log_id, second.store_id) == (first.log_id, first.store_id)
    assert len(first.store_id) == 16
    assert first.store_id != first.log_id


# -- kill -9 ----------------------------------------------------------------------------------------

SERVER = """
import sys
from pathlib import Path
from tests.wal.builders import begun, encoded
log, _ = begun(Path(sys.argv[1]))
for number in range(3):
    log.commit([encoded(number)])
print(log.end, flush=True)
sys.stdin.read()
"""


def killed_server(directory):
    """A server that acknowledged three commands and was killed; the log's end at that time."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        text=True,
    ) as server:
        end = int(server.stdout.readline())
        server.kill()
        assert server.wait() == -signal.SIGKILL
    return end


@pytest.mark.slow
def test_after_kill_9_everything_acknowledged_is_there_at_once(tmp_path):
    killed_server(tmp_path / "s")

    opened = open_log(tmp_path / "s")
    assert numbers(opened.commands) == [0, 1, 2]
    assert not opened.clean
    assert opened.warnings == ()
    opened.log.close()


@pytest.mark.slow
def test_after_kill_9_damage_to_the_last_acknowledged_frame_is_refused(tmp_path):
    end = killed_server(tmp_path / "s")
    path = tmp_path / "s" / "wal.log"
    data = path.read_bytes()
    assert len(data) == end
    for damaged in (data[:-1], data[:-1] + b"\x01", data[:-16] + bytes(16), data[: end - 100]):
        path.write_bytes(damaged)
        with pytest.raises(LogCorrupt, match="the mark vouches"):
            open_log(tmp_path / "s")
