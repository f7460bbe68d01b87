"""The variants of ``EventBody``: what a session's log can say.

``span`` is always the exact token ids that the event put on the model's input.
"""

from superfluid_protocol.schema import U8, U32, U64, Bool, Span, Str, variant
from superfluid_protocol.types import EventBody, GenParams, PurgeMode, RebaseEdit


@variant(0)
class Created(EventBody):
    """First event of a session that was not forked.

    ``parent`` names a session it came from, of which it shares nothing (that is ``Forked``).
    """

    parent: U64 | None
    params: GenParams


@variant(1)
class Appended(EventBody):
    """Raw input outside any chat template: given as text, as ids, or both."""

    text: Str | None
    span: Span


@variant(2)
class Message(EventBody):
    """A chat message; ``role`` is a ``numbers.Role``, ``span`` its rendering."""

    role: U32
    text: Str
    span: Span


@variant(3)
class GenerationPrompt(EventBody):
    """The tokens that open an assistant turn."""

    span: Span


@variant(4)
class Generated(EventBody):
    """A piece of the model's reply; ``channel`` is a ``numbers.Channel``, ``finish`` a ``numbers.Finish``."""

    span: Span
    text: Str
    channel: U32
    finish: U32


@variant(5)
class ToolUse(EventBody):
    """The model called a tool. This event's id is the call id."""

    name: Str
    arguments: Str


@variant(6)
class ToolResult(EventBody):
    """The answer to a tool call, and its rendering."""

    call_id: U64
    content: Str
    span: Span


@variant(7)
class EpochBump(EventBody):
    """First event of a session in a new run of the daemon."""


@variant(8)
class GenerationFingerprint(EventBody):
    """Digest of everything that decides what the generation answers."""

    digest: U64


@variant(9)
class ToolParseFailure(EventBody):
    """Text in the tool-call channel that is no tool call."""

    raw: Str


@variant(10)
class Forked(EventBody):
    """First own event of a fork: it shares the parent's events 0 .. ``fork_at`` - 1."""

    parent: U64
    fork_at: U64
    params: GenParams


@variant(11)
class MetaUpdated(EventBody):
    """Title or archived flag changed; None leaves as it was."""

    version: U64
    title: Str | None
    archived: Bool | None


@variant(12)
class Rebased(EventBody):
    """First own event of a branch with events dropped or replaced."""

    parent: U64
    fork_at: U64
    params: GenParams
    edits: tuple[RebaseEdit, ...]


@variant(13)
class ToolExpired(EventBody):
    """A call's lease ran out, or it was given up; terminal."""

    call_id: U64
    reason: Str


@variant(14)
class Purged(EventBody):
    """The session is gone logically; its bytes stay in the log."""

    generation: U64
    descendants: PurgeMode


@variant(15)
class Rerooted(EventBody):
    """A child of a purged session got its own copy of the shared prefix, flattened: (event id, body) each."""

    purged_parent: U64
    prefix: tuple[tuple[U64, EventBody], ...]


@variant(16)
class QosSet(EventBody):
    """Scheduling class changed; ``class_`` is a ``numbers.Qos``."""

    class_: U8
    batch_invariant: Bool


@variant(17)
class Block(EventBody):
    """A typed attachment; ``kind`` is a ``numbers.BlockKind``."""

    role: U32
    kind: U32
    payload: Str
    span: Span
    visibility_version: U32


@variant(18)
class PermissionRequest(EventBody):
    """A tool call waits for a person. This event's id is the request id."""

    call_id: U64
    text: Str


@variant(19)
class PermissionResponse(EventBody):
    """The person's answer."""

    request_id: U64
    granted: Bool


@variant(20)
class ToolCancelRequested(EventBody):
    """Cancelling a call was asked for; the call is still open."""

    call_id: U64


@variant(21)
class ToolOutcome(EventBody):
    """A call ended without a result; ``outcome`` is a ``numbers.Outcome``; terminal."""

    call_id: U64
    outcome: U8
    note: Str


@variant(22)
class ToolReconciliation(EventBody):
    """A result that came after the call had ended: recorded, not applied."""

    call_id: U64
    note: Str


@variant(23)
class ToolLease(EventBody):
    """The call expires at this time unless it ends before."""

    call_id: U64
    deadline_unix_ms: U64


@variant(24)
class Pinned(EventBody):
    """The session's KV state is kept until this time."""

    deadline_unix_ms: U64
