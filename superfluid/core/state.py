"""What the daemon knows about its sessions: plain data, a fold of the log's records.

A session owns the events it committed itself. What it shares with its parent stays with the parent and
is reached *by reference*: session ``s`` holds its parent's events ``0 .. s.fork_at - 1`` and then its own, so
that a fork costs one record however long the history is. ``core.tree`` walks that chain, ``core.replay`` is the
only writer.
"""

from array import array
from dataclasses import dataclass, field

from superfluid.core.ids import TokenIds
from superfluid_protocol import EventMsg, GenParams

QOS_AGENT = 2
"""The class of a session that never asked for one (the specification's default)."""

FIRST_SESSION = 1


@dataclass(slots=True, kw_only=True)
class Session:
    """One session's own part of the tree.

    Attributes:
        fork_at: How many of the parent's events this session shares; 0 for a root.
        own: The events it committed itself; ``own[i].event_id == fork_at + i``.
        own_tokens: The token ids of all ``own`` events, end to end.
        token_ends: ``token_ends[i]`` is the length of ``own_tokens`` after ``own[i]``.
        base_tokens: Tokens inherited through the parent.
        meta_version: Counts title and archive changes; the guard of ``SetMeta``.
        generation: Counts purges; the guard of ``Purge``.
    """

    id: int
    parent: int | None
    fork_at: int
    params: GenParams
    base_tokens: int = 0
    own: list[EventMsg] = field(default_factory=list)
    own_tokens: TokenIds = field(default_factory=lambda: array("I"))
    token_ends: list[int] = field(default_factory=list)
    title: str | None = None
    archived: bool = False
    meta_version: int = 0
    generation: int = 0
    last_finish: int = 0
    qos_class: int = QOS_AGENT
    batch_invariant: bool = False
    pin_deadline_unix_ms: int = 0
    fingerprint: int | None = None

    @property
    def length(self) -> int:
        """Number of events, shared ones included: also the id the next event takes."""
        return self.fork_at + len(self.own)

    @property
    def tokens(self) -> int:
        """Number of token ids on the model's input, shared ones included."""
        return self.base_tokens + len(self.own_tokens)

    @property
    def epoch(self) -> int:
        """The epoch of the latest own event."""
        return self.own[-1].epoch if self.own else 0


@dataclass(slots=True, kw_only=True)
class State:
    """All sessions of one log.

    Attributes:
        sessions: By id.
        next_session: The id the next session takes; ids are never reused.
        frozen: Sessions whose log holds a command that does not apply, with the reason. They are readable up to
            the command before it and take no writes; the others are served.
    """

    sessions: dict[int, Session] = field(default_factory=dict)
    next_session: int = FIRST_SESSION
    frozen: dict[int, str] = field(default_factory=dict)
