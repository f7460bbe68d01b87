"""The structs of the wire, and the sealed bases they refer to.

``event`` holds the variants of ``EventBody``. Field order and variant indices are the format: they are never
changed, only appended to.
"""

import enum
from typing import Annotated

from superfluid_protocol.schema import (
    F32,
    U8,
    U32,
    U64,
    AbsentAtEnd,
    Bool,
    Bytes16,
    Sealed,
    Span,
    Str,
    struct,
    variant,
)


class EventBody(Sealed):
    """What one committed event says; its variants are in ``superfluid_protocol.event``."""

    __slots__ = ()


@struct
class GenParams:
    """Sampling parameters of a session. All five are always given; nothing is filled in.

    ``temperature`` 0 is greedy, ``top_k`` 0 turns top-k off. The three floats are f32 on the wire.
    """

    temperature: F32
    top_p: F32
    min_p: F32
    top_k: U32
    seed: U64


@struct
class EventMsg:
    """One committed event: ids count up from 0 within a session; a fork keeps its parent's ids."""

    event_id: U64
    epoch: U64
    ts_unix_ms: U64
    body: EventBody


@struct
class SessionSummary:
    """One line of a session list. The last three fields are counts."""

    id: U64
    parent: U64 | None
    fork_at: U64
    title: Str | None
    archived: Bool
    meta_version: U64
    generation: U64
    events: U64
    tokens: U64
    open_tool_calls: U64


@struct
class LedgerEntry:
    """One tool call in the durable ledger; ``state`` is a ``numbers.LedgerState``."""

    name: Str
    arguments: Str
    state: U8
    cancel_requested: Bool
    lease_deadline_unix_ms: U64 | None
    late_effects: U32


class RebaseEdit(Sealed):
    """One edit of a rebase over the half-open event range ``from`` .. ``to``."""

    __slots__ = ()


@variant(0)
class Drop(RebaseEdit):
    """Leave the events out."""

    from_: U64
    to: U64


@variant(1)
class Replace(RebaseEdit):
    """Put one message in their place."""

    from_: U64
    to: U64
    role: U32
    text: Str


class PurgeMode(enum.Enum):
    """What a purge does to the descendants of the session. The value is the wire index."""

    CASCADE = 0
    """They are purged too."""
    REROOT = 1
    """Each child gets its own copy of the shared prefix."""


class Tier(Sealed):
    """Where a session's KV state is."""

    __slots__ = ()


@variant(0)
class Resident(Tier):
    """In the worker's KV pool, or in the host memory beside it: nothing of it is prefilled again."""


@variant(1)
class Parked(Tier):
    """In a file; ``covered`` is the number of stream positions it holds."""

    covered: U64
    encoding: U8


@variant(2)
class Cold(Tier):
    """Nowhere: the next generate prefills from the log."""


@struct
class Inspection:
    """Everything a session is, for tools. Older servers send no ``store_id``; it reads as None."""

    summary: SessionSummary
    params: GenParams
    epoch: U64
    last_finish: U32
    qos_class: U8
    batch_invariant: Bool
    pin_deadline_unix_ms: U64
    behavior_fingerprint: U64 | None
    open_tool_calls: tuple[tuple[U64, Str, Str], ...]
    tier: Tier
    tokens: Span
    events: tuple[EventMsg, ...]
    wal_version: U8
    store_id: Annotated[Bytes16 | None, AbsentAtEnd]


@struct
class ModelInfo:
    """One served model.

    ``path`` is the file's name alone. ``loaded``: a worker has it now. ``context`` (positions of one session) is 0
    until a worker had it for the first time. ``capability`` is a JSON object of what was measured of it, once it was.
    """

    name: Str
    path: Str
    loaded: Bool
    context: U32
    lanes: U32
    description: Str
    capability: Str | None
