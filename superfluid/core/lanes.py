"""Rules about lanes: who gives one up, who lets the others go first, and what a worker is told of one."""

from collections.abc import Collection, Iterable

from superfluid.core.ids import TokenIds
from superfluid.core.job import Job
from superfluid.core.plan import Admit
from superfluid_protocol import numbers


def may_run(job: Job, running: Iterable[Job], cap: int, divisor: int) -> bool:
    """Whether nothing but its prompt stands between a job and a lane.

    Args:
        cap: Most lanes of its class; 0 is no cap.
        divisor: Of background work.
    """
    if cap and sum(other.qos == job.qos for other in running) >= cap:
        return False
    paused = job.qos == numbers.Qos.BACKGROUND and divisor == 0
    return not job.fetching and not paused


def victim(running: Iterable[Job], qos: int) -> Job | None:
    """Whose lane a job of class *qos* may take: the least urgent one's, one that decodes before one that prefills, the
    last that came. Never that of an exact job, nor of one whose prefill somebody waits for who is as urgent."""
    below = [job for job in running if job.counts_as > qos and not job.exact]
    return max(below, key=lambda job: (job.qos, job.decoding, job.arrival), default=None)


def background_rests(tick: int, divisor: int) -> bool:
    """Whether background jobs let all others go first in this tick: in all but every *divisor*-th one."""
    return divisor > 1 and tick % divisor != 0


def held_back(running: Collection[Job], *, rests: bool) -> frozenset[int]:
    """The background jobs that compute nothing in this tick: those that rest. Alone they run freely, and so does one
    that others wait for."""
    background = [job for job in running if job.qos == numbers.Qos.BACKGROUND]
    if not rests or len(background) == len(running):
        return frozenset()
    return frozenset(job.id for job in background if job.urgency == numbers.Qos.BACKGROUND)


def drafts(speculate: str, *, exact: bool) -> bool:
    """Whether a job's tokens may be guessed: by itself only where a guess cannot change the reply. Where rows are not
    *exact*, one that is verified beside others may differ in its last bits from one that is computed alone."""
    return exact if speculate == "auto" else speculate == "prompt-lookup"


def admission(job: Job, stream: TokenIds, start: int, *, draft: bool) -> Admit:
    """What a worker is told of a job that goes on at position *start* of its stream."""
    return Admit(
        job=job.id,
        seq=job.seq,
        start=start,
        tokens=stream[start:].tobytes(),
        limit=job.left,
        temperature=job.params.temperature,
        top_p=job.params.top_p,
        min_p=job.params.min_p,
        top_k=job.params.top_k,
        seed=job.params.seed,
        exact=job.exact,
        draft=draft,
        history=stream[:start].tobytes() if draft else b"",
    )
