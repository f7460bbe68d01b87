"""The queues in front of the lanes: one FIFO a class, and a job that waits rises.

A job's rank is its class, less one for every so many ticks it waited. Inside a class the one that came first waited
longest, so each queue is sorted by rank already and choosing is a merge of four.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge

from superfluid.core.job import Job
from superfluid_protocol import numbers


@dataclass(slots=True, kw_only=True)
class Queues:
    """Jobs that wait for a lane.

    Args:
        starvation_ticks: A job that waited so many ticks ranks one class higher.
    """

    starvation_ticks: int
    _classes: dict[int, dict[int, Job]] = field(default_factory=lambda: {qos: {} for qos in numbers.Qos})
    _class_of: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._class_of)

    def depth(self, qos: int) -> int:
        """How many jobs of a class wait."""
        return len(self._classes[qos])

    def push(self, job: Job) -> None:
        """Queue a job by its arrival: a new one comes last in its class, one that lost its lane first."""
        queue = self._classes[job.qos]
        newest = next(reversed(queue.values()), None)
        queue[job.id] = job
        if newest is not None and newest.arrival > job.arrival:
            self._classes[job.qos] = dict(sorted(queue.items(), key=lambda item: item[1].arrival))
        self._class_of[job.id] = job.qos

    def remove(self, job_id: int) -> Job | None:
        """Take a job out; None if it does not wait."""
        qos = self._class_of.pop(job_id, None)
        return None if qos is None else self._classes[qos].pop(job_id)

    def order(self, tick: int) -> Iterator[Job]:
        """All jobs, the next one first: by rank, then by arrival. Lazy; the queues may not change meanwhile."""

        def key(job: Job) -> tuple[int, int]:
            return (self.rank(job, tick), job.arrival)

        return merge(*(queue.values() for queue in self._classes.values()), key=key)

    def rank(self, job: Job, tick: int) -> int:
        """The class that a job counts as."""
        return max(0, job.qos - (tick - job.since) // self.starvation_ticks)

    def urgent(self, least: int) -> Iterator[Job]:
        """The jobs of the classes up to *least*, by class and arrival, whatever others waited."""
        for qos in range(least + 1):
            yield from self._classes[qos].values()

    def clear(self) -> list[Job]:
        """Take all jobs out, in the order of their arrival."""
        jobs = sorted(
            (job for queue in self._classes.values() for job in queue.values()), key=lambda j: j.arrival
        )
        for queue in self._classes.values():
            queue.clear()
        self._class_of.clear()
        return jobs
