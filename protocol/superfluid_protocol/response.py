"""The variants of ``Response``, in wire order."""

from superfluid_protocol import types
from superfluid_protocol.schema import EXTENSION_BASE, U32, U64, Bool, Sealed, Span, Str, variant


class Response(Sealed):
    """What the server answers."""

    __slots__ = ()


@variant(0)
class Created(Response):
    """Id of the new session."""

    session: U64


@variant(1)
class Delta(Response):
    """A committed event of the running generation."""

    event: types.EventMsg


@variant(2)
class Cancelling(Response):
    """The generation in flight will end."""


@variant(3)
class Committed(Response):
    """The event is on disk."""

    event: types.EventMsg


@variant(4)
class Generated(Response):
    """End of a generation, with everything it committed.

    ``finish`` is a ``numbers.Finish``; ``warm_prefix`` counts prompt tokens that came from a cache.
    """

    events: tuple[types.EventMsg, ...]
    tokens_generated: U32
    finish: U32
    warm_prefix: U64


@variant(5)
class Events(Response):
    """Events in order of their ids. May end early at the frame limit: ask on from the next cursor."""

    events: tuple[types.EventMsg, ...]


@variant(6)
class Sessions(Response):
    """Ids of all sessions."""

    ids: tuple[U64, ...]


@variant(7)
class ToolCalls(Response):
    """Open calls: (call id, name, arguments)."""

    calls: tuple[tuple[U64, Str, Str], ...]


@variant(8)
class Subscribed(Response):
    """The subscription's id; its events follow."""

    sub: U64


@variant(9)
class SubEvent(Response):
    """A committed event of a subscribed session."""

    sub: U64
    event: types.EventMsg


@variant(10)
class SubProvisional(Response):
    """Text that is not committed yet and may never be; ``channel`` is a ``numbers.Channel``."""

    sub: U64
    channel: U32
    text: Str


@variant(11)
class SubEnded(Response):
    """Last frame of a subscription: ``unsubscribed``, ``lagged``, ``publisher closed`` or ``purged``."""

    sub: U64
    reason: Str


@variant(12)
class Unsubscribed(Response):
    """The subscription will end."""


@variant(13)
class Err(Response):
    """The request was not carried out; the text is for people."""

    message: Str


@variant(14)
class Tree(Response):
    """(id, parent, fork_at) of every session."""

    nodes: tuple[tuple[U64, U64 | None, U64], ...]


@variant(15)
class SessionList(Response):
    """Summaries of sessions."""

    sessions: tuple[types.SessionSummary, ...]


@variant(16)
class Meta(Response):
    """The new version of the session's title and archived flag."""

    version: U64


@variant(17)
class Purged(Response):
    """Ids of the sessions that are gone."""

    sessions: tuple[U64, ...]


@variant(18)
class Ack(Response):
    """Done."""


@variant(19)
class Inspection(Response):
    """Everything about a session."""

    inspection: types.Inspection


@variant(20)
class Text(Response):
    """Plain text."""

    text: Str


@variant(21)
class Ledger(Response):
    """(call id, entry) of every tool call."""

    entries: tuple[tuple[U64, types.LedgerEntry], ...]


@variant(22)
class Media(Response):
    """SHA-256 of the stored bytes, in hex."""

    hash: Str


@variant(23)
class Gc(Response):
    """Media files kept and removed."""

    kept: U64
    removed: U64


@variant(24)
class Completion(Response):
    """The text for the middle; ``expired``: the deadline cut it."""

    text: Str
    tokens: Span
    cached: Bool
    expired: Bool


@variant(25)
class Pinned(Response):
    """Until when the session's KV state is kept."""

    deadline_unix_ms: U64


@variant(26)
class Throttled(Response):
    """Too many completions: try again after this time."""

    retry_after_ms: U64


@variant(EXTENSION_BASE)
class ModelList(Response):
    """The models that are served."""

    models: tuple[types.ModelInfo, ...]
