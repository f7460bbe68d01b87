"""A generation as the scheduler sees it: ids, counts and a class."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from superfluid.core.ids import TokenIds
from superfluid.core.plan import JobState
from superfluid_protocol import GenParams, numbers


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One generation, from its prompt to its last token.

    Attributes:
        prompt: The session's whole token stream when the job was made.
        limit: Most tokens to generate.
        qos: Its class, a ``numbers.Qos``.
        exact: Nothing but its own prompt and parameters may decide its tokens, to the last bit of the logits.
        session: For its park file; 0 has none.
        namespace: KV is shared inside one namespace only.
        boundaries: Ascending positions of the prompt at which messages end: where a model that cannot cut is worth a
            checkpoint.
        made: What was generated so far.
        warm: Prompt tokens that came from kept KV; -1 until the job is first admitted.
        cold: Use no kept KV before its stream is computed: it could not be cut where this job needed it.
        seq: Its sequence while it is on a lane.
        to_prefill: Rows of its stream still to compute before it decodes.
        waited: Ticks in a row in which it was to prefill and got no row.
        arrival: Counts jobs as they come; a job that lost its lane keeps its own.
        since: The tick at which it began to wait for a lane: for its first one, or again when an urgent job took it.
        stops: Ascending positions at which its prefill pauses for a checkpoint (`checkpoint.stops`).
        urgency: The highest class among those that wait for what it prefills, and its own.
        fetching: The ticket of the park file that is being read for it.
        promised: The entry that was read for it and may not go before it has its lane.
        source: The host-memory entry from which it was seeded; 0 for none.
        behind: The job on a lane whose prefill it waits for; 0 for none.
        awaited: Positions that it waits for there; those that it waited for last when it waits no more.
    """

    id: int
    prompt: TokenIds
    params: GenParams
    limit: int
    qos: int = numbers.Qos.AGENT
    exact: bool = False
    session: int = 0
    namespace: int = 0
    boundaries: tuple[int, ...] = ()
    made: TokenIds = field(default_factory=lambda: array("I"))
    warm: int = -1
    cold: bool = False
    seq: int = -1
    to_prefill: int = 0
    waited: int = 0
    arrival: int = 0
    since: int = 0
    stops: list[int] = field(default_factory=list)
    urgency: int = numbers.Qos.BACKGROUND
    fetching: int = 0
    promised: int = 0
    source: int = 0
    behind: int = 0
    awaited: int = 0

    @property
    def stream(self) -> TokenIds:
        """Its tokens so far; the prompt itself while it made none."""
        return self.prompt + self.made if self.made else self.prompt

    @property
    def left(self) -> int:
        """Tokens that it may still generate."""
        return self.limit - len(self.made)

    @property
    def decoding(self) -> bool:
        """Whether a running job's stream is computed, all but the last token."""
        return self.to_prefill == 0

    @property
    def counts_as(self) -> int:
        """The class of its prefill: of others that wait for it, if theirs is higher."""
        return min(self.qos, self.urgency)

    @property
    def stored(self) -> int:
        """Positions of a running job that lie in its sequence: the last token generated is not computed yet."""
        return len(self.prompt) + len(self.made) - max(self.to_prefill, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a tick did for one job; the last one of a job has a finished state."""

    job: int
    tokens: TokenIds
    state: JobState
    warm: int
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What happened to jobs since the start.

    Attributes:
        cold_admissions: Jobs that found nothing of their prompt.
        resumes: Jobs that were seeded, by where the KV came from: pool, host or park.
        coalesced: Jobs that waited for another's prefill of the same beginning.
        preemptions: Lanes that were taken from a job for an urgent one.
    """

    cold_admissions: int = 0
    resumes: Counter[str] = field(default_factory=Counter)
    coalesced: int = 0
    preemptions: int = 0
