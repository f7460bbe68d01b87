"""Every bound of the daemon: its value, its unit and its reason.

A buffer, queue or map that a client can grow has its limit here. Bounds that belong to the wire format
itself (frame size, nesting) live in ``superfluid_protocol``, which cannot import this package.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- log --------------------------------------------------------------------------------------------

MAX_COMMAND_BYTES: Final = 128 * MIB
"""Encoded bytes of one command: two maximal wire frames, so that a rebase of large events still fits."""

MAX_BATCH_BYTES: Final = 8 * MIB
"""Group commit closes a batch here (bytes of encoded commands), so that one giant append cannot delay the small
ones behind it by more than one fsync of this size. A single larger command makes a batch of its own."""

# -- connections ------------------------------------------------------------------------------------

MAX_CONNECTIONS: Final = 4096
"""Native connections at once; each costs a task and a small buffer (see docs/limits.md)."""

FRAME_READ_SECONDS: Final = 30.0
"""A frame that has begun must be complete within this time per MiB (at least once): a client that sends one byte a
second is cut off, an idle one between frames is not."""

SEND_SECONDS: Final = 30.0
"""A client that takes no byte of a reply for this long is dropped; its committed events stay readable."""

# -- sessions ---------------------------------------------------------------------------------------

MAX_TITLE_BYTES: Final = 4 * KIB
"""UTF-8 bytes of a session's title: a title is shown in lists, and every list carries all of them."""

MAX_TOKENS_PER_GENERATE: Final = 1 << 20
"""Upper bound of ``Generate.max_tokens``; the context's free room is the bound that matters."""

MAX_QUEUED_GENERATIONS: Final = 4096
"""Generations that wait for a lane, over all sessions."""

# -- worker -----------------------------------------------------------------------------------------

WORKER_READY_SECONDS: Final = 600.0
"""A worker that reports no progress of loading for this long is given up; large models on slow disks need minutes."""

WORKER_STOPPED_SAMPLES: Final = 2
"""Consecutive samples in the stopped state, half a second apart, that count as a hang: a client has its error
within two seconds, and a debugger that stops the worker for a blink does not lose it."""

WORKER_SILENT_SECONDS: Final = 30.0
"""Seconds without any CPU time used, while a plan is in flight, that count as a hang. Not a time a step: beside
another busy program a step can take fifty times longer."""
