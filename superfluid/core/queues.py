"""The queues in front of the lanes: one FIFO a class, and a job that waits rises.

A job's rank is its class, less one for every so many ticks it waited. A class is a FIFO whatever its jobs waited: one
that lost its lane comes first again, though it waits anew, and counts as what stands behind it does, which would have to
wait for it otherwise. So each queue is sorted by rank and choosing is a merge of four.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import accumulate

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

    def order(self, tick: int, *, background_rests: bool = False) -> Iterator[Job]:
        """All jobs, the next one first: by rank, then by arrival. Lazy; the queues may not change meanwhile.

        Args:
            background_rests: Background jobs come last, whatever they waited.
        """
        queues = [
            self._ranked(qos, tick, rises=qos < numbers.Qos.BACKGROUND or not background_rests)
            for qos in self._classes
        ]
        return (job for _rank, _arrival, job in merge(*queues))

    def _ranked(self, qos: int, tick: int, *, rises: bool) -> Iterator[tuple[int, int, Job]]:
        """A class's jobs, each with its rank and its arrival, which no other has."""
        jobs = self._classes[qos].values()
        longest = list(accumulate((job.since for job in reversed(jobs)), min))
        for job, since in zip(jobs, reversed(longest), strict=True):
            rank = max(0, qos - (tick - since) // self.starvation_ticks) if rises else qos
            yield rank, job.arrival, job

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
