"""The numbers that ride in integer fields.

A peer may send others, so the fields stay plain ints; these compare equal to them.
"""

import enum


class Role(enum.IntEnum):
    """Who speaks in a message."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3


class Channel(enum.IntEnum):
    """What part of a reply a text belongs to."""

    TEXT = 0
    REASONING = 1
    TOOL_CALL = 2


class Finish(enum.IntEnum):
    """Why a generation ended."""

    OPEN = 0
    """The turn is still open: more pieces follow."""
    END_OF_TURN = 1
    MAX_TOKENS = 2
    GRAMMAR = 3
    CANCELLED = 4
    ERROR = 5


class Qos(enum.IntEnum):
    """Scheduling class of a session."""

    INTERACTIVE = 0
    COMPLETION = 1
    AGENT = 2
    """The default."""
    BACKGROUND = 3


class Outcome(enum.IntEnum):
    """How a tool call ended without a result."""

    FAILED = 1
    CANCELLED = 2


class LedgerState(enum.IntEnum):
    """State of a tool call in the ledger."""

    OPEN = 0
    CANCEL_REQUESTED = 1
    SUCCEEDED = 2
    FAILED = 3
    CANCELLED = 4
    EXPIRED = 5
    CANCELLED_WITH_LATE_EFFECT = 6


class BlockKind(enum.IntEnum):
    """What a block's payload is."""

    FILE_DIFF = 1
    ARTIFACT = 2
    CITATION = 3
    PROGRESS = 4
    DIAGNOSTIC = 5
    WORKSPACE_REFERENCE = 6
    IMAGE = 7


class CompleteMode(enum.IntEnum):
    """Order of the parts in a fill-in-the-middle prompt."""

    PREFIX_SUFFIX_MIDDLE = 0
    SUFFIX_PREFIX_MIDDLE = 1
