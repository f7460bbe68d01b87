"""The variants of ``Request``, in wire order. Each docstring names the reply of a request that is granted."""

from typing import Annotated

from superfluid_protocol.schema import (
    EXTENSION_BASE,
    U8,
    U32,
    U64,
    Bool,
    Bytes,
    Sealed,
    Span,
    Str,
    Without,
    variant,
)
from superfluid_protocol.types import GenParams, PurgeMode, RebaseEdit


class Request(Sealed):
    """What a client asks."""

    __slots__ = ()


@variant(0)
class Create(Request):
    """A new session: ``Created``."""

    parent: U64 | None
    params: GenParams


@variant(1)
class Append(Request):
    """Raw input, as text, as ids, or both: ``Committed``."""

    session: U64
    text: Str | None
    span: Span


@variant(2)
class AppendMessage(Request):
    """A chat message, rendered by the model's template: ``Committed``."""

    session: U64
    role: U32
    text: Str


@variant(3)
class Generate(Request):
    """Let the model speak: ``Delta`` ..., then ``Generated``."""

    session: U64
    max_tokens: U32


@variant(4)
class Read(Request):
    """Events from the id ``cursor`` on: ``Events``."""

    session: U64
    cursor: U64


@variant(5)
class AppendToolResult(Request):
    """The answer to a tool call: ``Committed``."""

    session: U64
    call_id: U64
    content: Str


@variant(6)
class OpenToolCalls(Request):
    """Calls without an outcome: ``ToolCalls``."""

    session: U64


@variant(7)
class List(Request):
    """Ids of all sessions: ``Sessions``."""


@variant(8)
class Cancel(Request):
    """End the generation in flight: ``Cancelling``, or ``Err`` when there is none."""

    session: U64


@variant(9)
class Subscribe(Request):
    """Events from ``cursor`` on, then live ones.

    Replies: ``Subscribed``, then ``SubEvent`` and ``SubProvisional``, last ``SubEnded``.
    """

    session: U64
    cursor: U64
    provisional: Bool


@variant(10)
class Unsubscribe(Request):
    """End a subscription: ``Unsubscribed``."""

    sub: U64


@variant(11)
class Fork(Request):
    """A session that shares events 0 .. ``at_event`` - 1: ``Created``."""

    session: U64
    at_event: U64
    params: GenParams | None


@variant(12)
class Tree(Request):
    """All sessions with their parents: ``Tree``."""


@variant(13)
class Sessions(Request):
    """Summaries: ``SessionList``."""

    include_archived: Bool


@variant(14)
class SetMeta(Request):
    """Title or archived flag, guarded by ``expected_version``: ``Meta``."""

    session: U64
    expected_version: U64
    title: Str | None
    archived: Bool | None


@variant(15)
class Rebase(Request):
    """A branch with events dropped or replaced: ``Created``."""

    session: U64
    edits: tuple[RebaseEdit, ...]
    params: GenParams | None


@variant(16)
class Purge(Request):
    """Remove logically, guarded by ``expected_generation``: ``Purged``."""

    session: U64
    expected_generation: U64
    mode: PurgeMode


@variant(17)
class SetQos(Request):
    """Scheduling class, a ``numbers.Qos``: ``Committed``."""

    session: U64
    class_: U8
    batch_invariant: Bool


@variant(18)
class SetBackgroundRate(Request):
    """Background sessions run every ``divisor``-th tick: ``Ack``."""

    divisor: U32


@variant(19)
class Inspect(Request):
    """Everything about a session: ``Inspection``."""

    session: U64


@variant(20)
class SetLogLevel(Request):
    """Log filter of the daemon: ``Ack``."""

    directive: Str


@variant(21)
class Metrics(Request):
    """Prometheus text: ``Text``."""


@variant(22)
class AppendBlock(Request):
    """A typed attachment, ``kind`` a ``numbers.BlockKind``: ``Committed``."""

    session: U64
    role: U32
    kind: U32
    payload: Str


@variant(23)
class RequestPermission(Request):
    """Ask a person about a call: ``Committed``."""

    session: U64
    call_id: U64
    text: Str


@variant(24)
class RespondPermission(Request):
    """The person's answer: ``Committed``."""

    session: U64
    request_id: U64
    granted: Bool


@variant(25)
class RequestToolCancel(Request):
    """Ask that a call be cancelled: ``Committed``."""

    session: U64
    call_id: U64


@variant(26)
class AppendToolOutcome(Request):
    """End a call without a result, ``outcome`` a ``numbers.Outcome``: ``Committed``."""

    session: U64
    call_id: U64
    outcome: U8
    note: Str


@variant(27)
class Ledger(Request):
    """All tool calls of a session: ``Ledger``."""

    session: U64


@variant(28)
class PutMedia(Request):
    """Store bytes: ``Media`` with their hash."""

    bytes: Bytes
    mime: Str


@variant(29)
class AppendImage(Request):
    """A message with a stored image (``blob`` is its hash) between two texts: ``Committed``."""

    session: U64
    role: U32
    blob: Str
    pre_text: Str
    post_text: Str


@variant(30)
class GcMedia(Request):
    """Drop media no session refers to: ``Gc``."""


@variant(31)
class Complete(Request):
    """Fill in the middle, ``mode`` a ``numbers.CompleteMode``: ``Completion`` or ``Throttled``."""

    prefix: Str
    suffix: Str
    mode: U8
    max_tokens: U32


@variant(32)
class Trim(Request):
    """A session that keeps events 0 .. ``to_event`` - 1: ``Created``."""

    session: U64
    to_event: U64


@variant(33)
class Pin(Request):
    """Keep the session's KV state for a time: ``Pinned``."""

    session: U64
    ttl_ms: U64


@variant(34)
class AppendSystem(Request):
    """A system turn that declares tools, each a JSON string: ``Committed``."""

    session: U64
    text: Str | None
    tools: tuple[Str, ...]


@variant(EXTENSION_BASE)
class With(Request):
    """The request inside, under an operation id: a retry gets the first result."""

    op_id: Str
    request: Annotated[Request, Without(frozenset({EXTENSION_BASE}))]


@variant(EXTENSION_BASE + 1)
class Models(Request):
    """What is served, and what each model can do: ``ModelList``."""
