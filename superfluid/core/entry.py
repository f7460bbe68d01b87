"""What holds KV: an entry, the place where it lies, and what a search finds among them."""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from superfluid.core.ids import TokenIds


class Place(IntEnum):
    """Where KV lies: the nearer, the less."""

    POOL = 0
    HOST = 1
    PARK = 2


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """KV of one token stream.

    Attributes:
        key: The sequence (POOL), or a number used once.
        stream: Token ids; the first ``held`` of them have their KV here.
        exact: Leading positions whose rows were computed exactly.
        used: When it was last used, in ticks.
        size: Bytes, outside of the pool.
        session: Whose file it is (PARK); `name` is what that says of itself, and *lossy* that it gives KV back roughly.
        job: The job whose lane this is (POOL).
        target: Positions that the job's prefill will have computed when it is done.
        promises: Jobs that wait for it, or an operation under way: it may not go.
    """

    key: int
    place: Place = Place.POOL
    namespace: int = 0
    stream: TokenIds = field(default_factory=lambda: array("I"))
    held: int = 0
    exact: int = 0
    used: int = 0
    size: int = 0
    session: int = 0
    name: str = ""
    lossy: bool = False
    job: int | None = None
    target: int = 0
    promises: int = 0

    @property
    def idle(self) -> bool:
        """Whether no lane runs on it."""
        return self.job is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the places hold of a prompt.

    Attributes:
        length: Positions that `entry` spares.
        pending: Positions that the lane of job `leader` will hold of it once its prefill is done.
    """

    entry: Entry | None = None
    length: int = 0
    leader: int | None = None
    pending: int = 0
