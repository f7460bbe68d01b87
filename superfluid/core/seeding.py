"""Where the beginning of a job's prompt comes from: what is held of it, what is worth waiting for, and promises.

A job that could have a lane may still wait: for a lane that is prefilling the same beginning, or for a park file to be
read. What was read for it is promised to it until it has its lane.
"""

from dataclasses import dataclass

from superfluid.core import checkpoints, places
from superfluid.core.cache import Cache
from superfluid.core.entry import Entry, Found, Place
from superfluid.core.job import Counts, Job
from superfluid.core.parking import LEAST_FETCHED, Parking
from superfluid.core.plan import Move


@dataclass(slots=True, kw_only=True)
class Seeding:
    """Finds KV for jobs.

    Args:
        running: The jobs on lanes, by their ids; kept up to date by the scheduler.
        coalesce_min: As in `Options`.
    """

    cache: Cache
    parking: Parking
    running: dict[int, Job]
    counts: Counts
    coalesce_min: int

    def find(self, job: Job, *, near: bool = False) -> Found:
        """What is held of a job's stream; with *near* no park file."""
        if job.cold:
            return Found()
        return self.cache.find(job.stream, job.namespace, exact=job.exact, near=near)

    def ready(self, job: Job, tick: int) -> tuple[Found | None, list[Move]]:
        """What is held near of the prompt of a job that does not wait, or None when it is worth waiting for more; and the
        moves that make room for what is read."""
        found = self.find(job)
        if found.leader is not None and self._is_worth_waiting(job, found, self.running[found.leader]):
            self._follow(job, found.leader, found.pending)
            self.waits(job)
            return None, []
        if found.entry is None or found.entry.place is not Place.PARK:
            return found, []
        near = self.find(job, near=True)
        if found.length - near.length < LEAST_FETCHED:
            return near, []
        found.entry.used = tick
        job.fetching, moves = self.parking.fetch(found.entry)
        return None if job.fetching else near, moves

    def waits(self, job: Job) -> bool:
        """Whether a job still waits for what another lane computes, which is then as urgent as the job. Costs no search:
        hundreds may wait for one."""
        leading = self.running.get(job.behind)
        if leading is None or leading.stored >= job.awaited:
            job.behind = 0
            return False
        leading.urgency = min(leading.urgency, job.qos)
        if not self.cache.pool.cuts_freely and job.awaited not in leading.stops:
            leading.stops = sorted([*leading.stops, job.awaited])
        return True

    def seat(self, job: Job, found: Found, tick: int) -> tuple[int, list[Move]]:
        """Give a job a sequence.

        Returns:
            The positions of its stream that lie there already, and the moves that bring them there.
        """
        placement = places.place(self.cache, found)
        start, stream = placement.start, job.stream
        self._count(job, found.entry if start else None)
        self.let_go(job)
        self.cache.occupy(
            placement.seq,
            job.id,
            stream,
            namespace=job.namespace,
            held=start,
            exact=placement.exact,
            used=tick,
        )
        if placement.source:
            self.cache.entries[placement.source].used = tick
        job.seq, job.source, job.behind, job.awaited = placement.seq, placement.source, 0, 0
        job.to_prefill = len(stream) - start
        if job.warm < 0:
            job.warm = start
        if not self.cache.pool.cuts_freely:
            job.stops = checkpoints.stops(start, len(stream), job.boundaries)
        return start, list(placement.moves)

    def promise(self, job: Job, entry: Entry) -> None:
        """What was read for a job stays for it, in the place of a shorter one that was read before."""
        self.let_go(job)
        entry.promises += 1
        job.promised = entry.key

    def let_go(self, job: Job) -> None:
        """A job needs no more what is promised to it."""
        entry = self.cache.entries.get(job.promised) if job.promised else None
        if entry is not None:
            entry.promises -= 1
        job.promised = 0

    def _count(self, job: Job, source: Entry | None) -> None:
        if source is None:
            self.counts.cold_admissions += 1
        elif job.promised and source.key == job.promised:
            self.counts.resumes["park"] += 1
        else:
            self.counts.resumes[source.place.name.lower()] += 1

    def _is_worth_waiting(self, job: Job, found: Found, leading: Job) -> bool:
        """Whether a job waits for what a lane is computing. Where that one is furthest itself, to the last row: else all
        that wait would compute the end of it, each for itself."""
        least, gain = self.coalesce_min, found.pending - found.length
        if not least or found.pending < least or gain <= 0:
            return False
        pool = self.cache.pool
        if job.exact and not (leading.exact or pool.exact):
            return False
        if not pool.cuts_freely and not self.cache.has_room(found.pending):
            return False  # no checkpoint would be kept of it
        return gain >= least or self.cache.slots[leading.seq].held >= found.length

    def _follow(self, job: Job, leader: int, pending: int) -> None:
        """Wait until another lane has computed what this job begins with, too."""
        self.counts.coalesced += not job.awaited
        job.behind, job.awaited = leader, pending
