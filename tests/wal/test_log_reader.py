"""Reading beside the server: at any moment, only what is durable; without a server, what the next start would keep."""

import pytest

from superfluid.core.errors import LogCorrupt, StartError
from superfluid.wal import OsFiles, read_log
from tests.wal.builders import begun, encoded, numbers
from tests.wal.hooked_files import HookedFiles, ShortWrites


@pytest.mark.parametrize("earlier_runs", [0, 1])
def test_a_live_reader_stops_at_the_mark_at_every_step_of_an_append(tmp_path, earlier_runs):
    for _ in range(earlier_runs):
        begun(tmp_path / "s")[0].close()
    files = HookedFiles()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    seen = {}

    def look(op, name):
        seen[op, name] = numbers(read_log(tmp_path / "s"))

    files.before = look
    log.commit([encoded(1), encoded(2)])
    files.before = None

    assert seen[("fsync", "wal.log")] == [0], "written, and not durable"
    assert seen[("pwrite", "wal.mark")] == [0], "durable, and not witnessed"
    assert numbers(read_log(tmp_path / "s")) == [0, 1, 2]
    log.close()


def test_a_live_reader_never_sees_what_is_taken_back(tmp_path):
    files = ShortWrites()
    log, _ = begun(tmp_path / "s", files=files)
    log.commit([encoded(0)])
    seen = []
    files.before = lambda op, name: seen.append(numbers(read_log(tmp_path / "s")))
    files.take = 70
    with pytest.raises(Exception, match="nothing of this was stored"):
        log.commit([encoded(1)])

    assert seen
    assert all(view == [0] for view in seen)
    log.close()


def test_a_reader_that_began_before_an_append_goes_on_to_its_own_end(tmp_path):
    log, _ = begun(tmp_path / "s")
    for number in range(3):
        log.commit([encoded(number)])
    reader = read_log(tmp_path / "s")
    first = next(reader)
    log.commit([encoded(3)])

    assert numbers([first, *reader]) == [0, 1, 2]
    log.close()


def test_without_a_server_it_reads_what_the_next_start_would_keep(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    mark = (tmp_path / "s" / "wal.mark").read_bytes()
    log.commit([encoded(1)])
    log.close()
    path = tmp_path / "s" / "wal.log"
    path.write_bytes(path.read_bytes() + b"torn")
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    assert numbers(read_log(path)) == [0, 1]

    # An older mark, as a power loss leaves it, and none at all.
    (tmp_path / "s" / "wal.mark").write_bytes(mark)
    assert numbers(read_log(tmp_path / "s")) == [0, 1]
    (tmp_path / "s" / "wal.mark").unlink()
    assert numbers(read_log(tmp_path / "s")) == [0, 1]
    assert path.read_bytes() == before["wal.log"]
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted({*before} - {"wal.mark"})


def test_readers_do_not_hinder_each_other_or_a_start(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.close()
    first, second = read_log(tmp_path / "s"), read_log(tmp_path / "s")
    next(first)
    next(second)

    log, found = begun(tmp_path / "s")

    assert found == [0]
    log.close()


def test_damage_is_told_after_what_precedes_it(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    end = log.end
    log.commit([encoded(1)])
    log.close()
    path = tmp_path / "s" / "wal.log"
    data = bytearray(path.read_bytes())
    data[end + 70] ^= 1
    path.write_bytes(data)

    reader = read_log(tmp_path / "s")

    assert numbers([next(reader)]) == [0]
    with pytest.raises(LogCorrupt, match=f"at offset {end}"):
        next(reader)


@pytest.mark.parametrize("name", ["nothing", "empty", "empty/wal.log"])
def test_no_log_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()

    with pytest.raises(StartError, match="No such file"):
        next(read_log(tmp_path / name))


def test_nothing_stays_open(tmp_path):
    log, _ = begun(tmp_path / "s")
    log.commit([encoded(0)])
    log.commit([encoded(1)])
    log.close()

    class Counted(OsFiles):
        opened = 0

        def open(self, path, flags, mode=0o600):
            self.opened += 1
            return super().open(path, flags, mode)

        def close(self, fd):
            self.opened -= 1
            super().close(fd)

    files = Counted()
    reader = read_log(tmp_path / "s", files=files)
    next(reader)
    reader.close()
    assert files.opened == 0

    log, _ = begun(tmp_path / "s", files=files)
    log.close()
    assert files.opened == 0
    (tmp_path / "s" / "wal.log").write_bytes(b"damaged")
    with pytest.raises(LogCorrupt):
        begun(tmp_path / "s", files=files)
    assert files.opened == 0
