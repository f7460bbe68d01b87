"""Where the beginning of a job's prompt comes from: what is held of it, what is worth waiting for, and promises.

A job that could have a lane may still wait: for a lane that is prefilling the same beginning, or for a park file to be
read. What was read for it is promised to it until it has its lane.
"""

from dataclasses import dataclass

from superfluid.core.cache import Cache, Entry, Found, Place
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
        """What is held near of a job's prompt, or None when it is worth waiting for more; and the moves that make room
        for what is read."""
        found = self.find(job)
        if found.leader is not None and self._is_worth_waiting(found, found.leader):
            self._follow(job, found.leader, found.pending)
            return None, []
        if found.entry is None or found.entry.place is not Place.PARK:
            return found, []
        near = self.find(job, near=True)
        if found.length - near.length < LEAST_FETCHED:
            return near, []
        found.entry.used = tick
        job.fetching, moves = self.parking.fetch(found.entry)
        return None if job.fetching else near, moves

    def admitted(self, job: Job, source: Entry | None) -> None:
        """A job has its lane, seeded from *source*."""
        if source is None:
            self.counts.cold_admissions += 1
        elif job.promised and source.key == job.promised:
            self.counts.resumes["park"] += 1
        else:
            self.counts.resumes[source.place.name.lower()] += 1
        self.let_go(job)

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

    def _is_worth_waiting(self, found: Found, leader: int) -> bool:
        """Whether a job waits for what a lane is computing. Where that one is furthest itself, to the last row: else all
        that wait would compute the end of it, each for itself."""
        least, gain = self.coalesce_min, found.pending - found.length
        if not least or found.pending < least or gain <= 0:
            return False
        return gain >= least or self.cache.slots[self.running[leader].seq].held >= found.length

    def _follow(self, job: Job, leader: int, pending: int) -> None:
        """Wait until another lane has computed what this job begins with, too."""
        leading = self.running[leader]
        leading.urgency = min(leading.urgency, job.qos)
        if not job.behind:
            self.counts.coalesced += 1
        job.behind = leader
        if not self.cache.pool.cuts_freely and pending not in leading.stops and pending > leading.stored:
            leading.stops = sorted([*leading.stops, pending])
