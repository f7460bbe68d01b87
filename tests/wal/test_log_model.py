"""The log against a model, on a disk that fails: acknowledged implies present, refused implies absent."""

import errno
import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from superfluid.core.errors import LogReadOnly, LogRefused, LogUnknown
from tests.wal.builders import begun, encoded
from tests.wal.memory_files import Crash, Fault, MemoryFiles

DIRECTORY = Path("/sessions")
LOG_FAULTS = [
    Fault("pwrite", "wal.log"),
    Fault("pwrite", "wal.log", errno.ENOSPC, taken=1),
    Fault("pwrite", "wal.log", errno.ENOSPC, taken=70),
    Fault("pwrite", "wal.log", errno.EIO, taken=5000),
    Fault("allocate", "wal.log", errno.EIO),
    Fault("allocate", "wal.log", errno.ENOSPC),
    Fault("allocate", "wal.log", errno.EOPNOTSUPP),
    Fault("fsync", "wal.log"),
    Fault("ftruncate", "wal.log"),
    Fault("pwrite", "wal.mark"),
    Fault("fsync", "wal.mark"),
    Fault("rename", "wal."),
    Fault("fsync_dir", "sessions"),
]
faults = st.lists(st.sampled_from(LOG_FAULTS), max_size=2)
sizes = st.lists(st.sampled_from([0, 300, 5000, 12_000, 20_000]), min_size=1, max_size=3)
crash_points = st.integers(0, 6)
crashes = st.none() | st.integers(0, 2**32)


def coin(seed):
    """A coin that falls as this seed has it; small seeds make it fall one way only."""
    if seed < 2:
        return lambda: bool(seed)
    source = random.Random(seed)
    return lambda: source.random() < 0.5


class LogMachine(RuleBasedStateMachine):
    """Commits with faults, clean and unclean ends, and the model: which numbers must, may or must not be there."""

    def __init__(self):
        super().__init__()
        self.files = MemoryFiles()
        self.log = None
        self.number = 0
        self.acknowledged = []
        self.unknown = set()

    def plan(self, chosen):
        self.files.faults = [Fault(f.op, f.name, f.code, f.taken) for f in chosen]

    @initialize()
    def start(self):
        self.reopen([])

    @rule(sizes=sizes, chosen=faults)
    @precondition(lambda self: self.log.read_only is None)
    def commit(self, sizes, chosen):
        batch = list(range(self.number, self.number + len(sizes)))
        self.number += len(sizes)
        self.plan(chosen)
        try:
            self.log.commit([encoded(n, size=size) for n, size in zip(batch, sizes, strict=True)])
        except LogRefused:
            assert self.log.read_only is None
        except LogUnknown:
            assert self.log.read_only is not None
            self.unknown.update(batch)
        else:
            self.acknowledged += batch
        self.files.faults = []

    @rule()
    @precondition(lambda self: self.log.read_only is not None)
    def a_frozen_log_takes_nothing(self):
        writes = [call for call in self.files.calls if call[0] in {"pwrite", "ftruncate"}]
        with pytest.raises(LogReadOnly):
            self.log.commit([encoded(self.number)])
        assert [call for call in self.files.calls if call[0] in {"pwrite", "ftruncate"}] == writes

    @rule(chosen=faults)
    def sync_the_mark(self, chosen):
        self.plan(chosen)
        self.log.sync_mark_if_due(1e12)
        self.files.faults = []

    @rule(seed=st.integers(0, 2**32))
    def write_back(self, seed):
        self.files.write_back(coin(seed))

    @rule(sizes=sizes, point=crash_points, power=crashes)
    @precondition(lambda self: self.log.read_only is None)
    def crash_in_commit(self, sizes, point, power):
        self.files.crash_in = point
        try:
            self.commit(sizes, [])
        except Crash:
            self.unknown.update(range(self.number - len(sizes), self.number))
        self.crash(power)
        self.reopen([])

    @rule(point=st.integers(0, 12), power=crashes, unsynced=st.booleans())
    def crash_in_restart(self, point, power, unsynced):
        if self.log.read_only is None and unsynced:
            self.commit([12_000], [Fault("fsync", "wal.log")])
        self.files.kill()
        self.files.crash_in = point
        with suppress(Crash):
            begun(DIRECTORY, files=self.files)
        self.crash(power)
        self.reopen([])

    @rule(point=crash_points, power=crashes)
    def crash_in_close(self, point, power):
        self.files.crash_in = point
        with suppress(Crash):
            self.log.close()
        self.crash(power)
        self.reopen([])

    @rule(power=crashes)
    def lose_an_unsynced_frame(self, power):
        """What a failed fsync left in the page cache is proven anew by the next start, or it is gone."""
        if self.log.read_only is None:
            self.commit([12_000], [Fault("fsync", "wal.log")])
        self.crash(None)
        self.reopen([])
        self.crash(power)
        self.reopen([])

    def crash(self, power):
        """A kill, or a power loss that takes what this seed decides."""
        if power is None:
            self.files.kill()
        else:
            self.files.power_loss(coin(power))

    @rule(chosen=faults, at_open=faults)
    def close_and_reopen(self, chosen, at_open):
        self.plan(chosen)
        self.log.close()
        self.files.faults = []
        self.reopen(at_open)

    @rule(at_open=faults, power=crashes)
    def crash_and_reopen(self, at_open, power):
        self.crash(power)
        self.reopen(at_open)

    def reopen(self, at_open):
        """What is found is what was acknowledged, in order, and perhaps what was of unknown outcome."""
        self.plan(at_open if self.number else [])
        self.log, found = begun(DIRECTORY, files=self.files)
        self.files.faults = []
        assert found == sorted(found)
        assert [n for n in found if n not in self.unknown] == self.acknowledged
        if self.log.read_only is None:
            # What a start has proven and served is there for good; what it has not found is not.
            self.acknowledged = found
            self.unknown = set()

    @invariant()
    def the_size_is_the_end(self):
        if self.log is not None and self.log.read_only is None:
            assert len(self.files.content(DIRECTORY / "wal.log")) == self.log.end


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_log_agrees_with_the_model():
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
