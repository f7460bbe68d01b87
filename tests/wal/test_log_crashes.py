"""The process or the machine ends inside a start, a commit or a close: at every system call, with many outcomes."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from superfluid.core.errors import LogUnknown
from tests.wal.builders import begun, encoded, held
from tests.wal.memory_files import BLOCK, Crash, Fault, MemoryFiles

DIRECTORY = Path("/sessions")
SEEDS = range(12)

pytestmark = pytest.mark.slow


def coin(seed):
    """Seeds 0 and 1 lose and keep everything; the others decide sector by sector."""
    source = random.Random(seed)
    return (lambda: bool(seed)) if seed < 2 else (lambda: source.random() < 0.5)


def last_call(files, action):
    """How many changing calls the action makes, by doing it once."""
    before = len(files.calls)
    action()
    return sum(op not in {"open", "pread"} for op, _ in files.calls[before:])


def crashed(prepare, action, point, seed):
    """A disk on which the action ended at its call of this number."""
    files = MemoryFiles()
    state = prepare(files)
    files.crash_in = point
    with suppress(Crash):
        action(files, state)
    if seed is None:
        files.kill()
    else:
        files.power_loss(coin(seed))
    return files


def every_crash(prepare, action):
    """A disk for each call at which the action can end, and each way to end: a kill (None), or power losses."""
    files = MemoryFiles()
    state = prepare(files)
    calls = last_call(files, lambda: action(files, state))
    assert calls > 2
    for point in range(calls + 1):
        for seed in (None, *SEEDS):
            yield crashed(prepare, action, point, seed)


def with_two_commits(files):
    log, _ = begun(DIRECTORY, files=files)
    log.commit([encoded(0)])
    log.commit([encoded(1, size=5000)])
    return log


def with_a_frame_the_disk_does_not_hold(files):
    """Killed after a failed fsync: the last frame is seen, and only writing it again makes it durable."""
    log = with_two_commits(files)
    files.faults = [Fault("fsync", "wal.log")]
    with pytest.raises(LogUnknown):
        log.commit([encoded(2, noise=5 * BLOCK)])
    files.kill()


def with_a_torn_tail(files):
    with_two_commits(files)
    files.kill()
    log = files.seen_names[DIRECTORY / "wal.log"]
    log.write(b"torn" * 3000, len(log.seen))
    log.sync()


def restart(files, _state=None):
    return begun(DIRECTORY, files=files)


def test_a_crash_in_the_first_start_leaves_a_directory_that_starts():
    for files in every_crash(lambda files: None, restart):
        log, found = restart(files)
        assert found == []
        assert log.read_only is None


def test_a_crash_in_a_commit_keeps_what_was_acknowledged():
    def commit(files, log):
        log.commit([encoded(2, size=9000), encoded(3)])

    seen = set()
    for files in every_crash(with_two_commits, commit):
        _, found = restart(files)
        assert found in ([0, 1], [0, 1, 2, 3])
        seen.add(len(found))
    assert seen == {2, 4}, "both outcomes happen"


def test_a_crash_in_a_close_loses_nothing():
    for files in every_crash(with_two_commits, lambda _, log: log.close()):
        assert restart(files)[1] == [0, 1]


def test_a_crash_in_a_restart_never_refuses_a_frame_of_unknown_outcome():
    """A start frame must not reach the disk before the frame it vouches for has been written again."""
    seen = set()
    for files in every_crash(with_a_frame_the_disk_does_not_hold, restart):
        _, found = restart(files)
        assert found in ([0, 1], [0, 1, 2])
        seen.add(len(found))
    assert seen == {2, 3}


def test_a_frame_of_unknown_outcome_that_a_start_has_served_stays():
    for seed in SEEDS:
        files = MemoryFiles()
        with_a_frame_the_disk_does_not_hold(files)
        _, found = restart(files)
        assert found == [0, 1, 2]
        files.power_loss(coin(seed))
        assert restart(files)[1] == [0, 1, 2]


def test_a_frame_of_unknown_outcome_that_the_disk_lost_is_gone_for_good():
    files = MemoryFiles()
    with_a_frame_the_disk_does_not_hold(files)
    files.power_loss(coin(0))

    log, found = restart(files)
    assert found == [0, 1]
    log.commit([encoded(9)])
    log.close()

    assert held(DIRECTORY, files=files) == [0, 1, 9]


def test_a_crash_while_a_torn_tail_is_cut_off():
    for files in every_crash(with_a_torn_tail, restart):
        log, found = restart(files)
        assert found == [0, 1]
        assert log.read_only is None
        copies = [path for path in files.seen_names if ".torn-" in path.name]
        assert all(files.content(path) == b"torn" * 3000 for path in copies)
        assert len(files.content(DIRECTORY / "wal.log")) == log.end
        assert copies, "nothing is cut off that was not copied"


def test_an_append_that_shears_the_block_it_shares_with_an_acknowledged_frame():
    """Sectors of the shared block go to disk in any mixture; the acknowledged frame's bytes are in all of them."""
    for seed in range(40):
        files = MemoryFiles()
        log, _ = begun(DIRECTORY, files=files)
        for number in range(8):
            log.commit([encoded(number)])
        files.crash_in = 2
        with pytest.raises(Crash):
            log.commit([encoded(8, noise=2000)])
        files.power_loss(coin(seed))

        _, found = restart(files)

        assert found in (list(range(8)), list(range(9)))
