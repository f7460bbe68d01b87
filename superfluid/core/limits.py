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

MAX_PAYLOAD_BYTES: Final = MAX_COMMAND_BYTES + 64
"""Bytes of one frame's payload before compression: a maximal command and the head of the array around
it."""

COMPRESS_FROM_BYTES: Final = 16 * KIB
"""Payloads of at least this many bytes are tried with zstandard. Measured on text with its token ids: at 16
KiB level 1 costs 56 us where write and fsync cost 260 us, and halves the bytes; below, it costs more than
it saves, and a hex dump of the log stays readable."""

MAX_ZSTD_WINDOW_BYTES: Final = 8 * MIB
"""Window a zstandard frame in the log may ask of its reader, which allocates it before any data is
proven."""

LOG_RESERVE_BYTES: Final = 1 * MIB
"""Disk space allocated beyond the log's end, so that a full disk is found out before a write and not inside
it."""

LOG_CONTROL_BYTES: Final = 4 * KIB
"""Part of the reserve that commits leave alone: room for the closing frame and the next start frame on a
full disk."""

LOG_BLOCK_BYTES: Final = 4 * KIB
"""Unit in which the page cache loses writes: what was last proven is rewritten from the start of such a
block."""

LOG_READ_BYTES: Final = 1 * MIB
"""Bytes the log's readers ask for at a time; a larger frame is read whole."""

SLOW_FSYNC_SECONDS: Final = 1.0
"""An fsync of this many seconds or more is counted and reported (etcd reports slow ones from the same
bound)."""

MARK_SYNC_SECONDS: Final = 1.0
"""The mark is synced at most this often: a power loss takes the witness of the last second's commits, not
the commits."""

# -- connections ------------------------------------------------------------------------------------

MAX_CONNECTIONS: Final = 4096
"""Native connections at once; each costs a task and a small buffer (see docs/limits.md)."""

RESERVED_DESCRIPTORS: Final = 32
"""Descriptors that connections leave alone: log, mark, locks, a worker's link and its successor's. At rest the daemon
holds 16. Without them a worker could not be replaced while clients take all there are."""

FRAME_READ_SECONDS: Final = 30.0
"""A frame that has begun must be complete within this time per MiB (at least once): a client that sends one byte a
second is cut off, an idle one between frames is not."""

MAX_BUFFERED_BYTES: Final = 512 * MIB
"""Bytes of requests over all connections, from their first byte until they are answered: eight maximal frames at once.
Beyond it, connections that hold more than ``SMALL_REQUEST_BYTES`` of an unfinished frame are cut off, and whole
requests that take more are refused."""

SMALL_REQUEST_BYTES: Final = 1 * MIB
"""A request that takes no more passes however much the others hold: somebody's crowd of large ones must not keep
everybody from working."""

TOKEN_BYTES: Final = 36
"""What a token id takes in a decoded request: an integer object of 28 bytes and the pointer to it."""

LISTED_SESSION_BYTES: Final = 512
"""What a session takes in a list of them before that is encoded: an object with its numbers."""

MAX_REPLY_BYTES: Final = 256 * MIB
"""Bytes of replies over all connections that wait for their clients to take them. A `Read` is cut to a quarter of what
is left of it, so one client alone gets whole frames and forty that read nothing share it; other replies wait for room."""

SMALL_REPLY_BYTES: Final = 256 * KIB
"""A reply of so many bytes is sent however much waits already, and a `Read` is not cut below it."""

REPLY_ROOM_SECONDS: Final = 15.0
"""A large reply that finds no room for so long is not sent: its client is told to ask again."""

SEND_SECONDS: Final = 30.0
"""A client that takes nothing of a reply for this long is dropped, and one that has not taken all of it within this time
per MiB (at least once): its committed events stay readable."""

MAX_PAGE_EVENTS: Final = 1 << 16
"""Events of one reply to `Read` or `Inspect`: choosing more of them would hold up everybody for longer than a tenth of a
second."""

LINGER_SECONDS: Final = 1.0
"""A connection that was refused or has to end stays open this long for its client to read why, if that still sends."""

MAX_LINGERING: Final = 8
"""Refused connections that linger at once, since each costs one of ``RESERVED_DESCRIPTORS``; more are closed at once."""

# -- work beside the event loop ----------------------------------------------------------------------

INLINE_BYTES: Final = 256 * KIB
"""Requests, commands and replies beyond this are decoded and encoded in a thread: 64 MiB of token ids take seconds, in
which nobody else would be served; this much takes some milliseconds."""

INLINE_TEXT_CHARACTERS: Final = 4096
"""Longer texts are tokenised in a thread: 1 MB takes up to 2 s, this much less than a millisecond."""

MAX_TOKENISING: Final = 2
"""Texts tokenised at once, and at most one less than there are cores, so that the event loop keeps one. The others
wait; they may not take the threads that everything else shares."""

# -- sessions ---------------------------------------------------------------------------------------

MAX_TITLE_BYTES: Final = 1 * KIB
"""UTF-8 bytes of a session's title: a title is shown in lists, and one frame carries all of them: 60,000 sessions with
the longest titles."""

MAX_SPAN_TOKENS: Final = 1 << 20
"""Token ids of one event that a client appends: more than any model's context. What can never be run is refused before
it costs seconds of checking, encoding and copying."""

MAX_INPUT_CHARACTERS: Final = 8 * MAX_SPAN_TOKENS
"""Characters of one text that is tokenised: twice the usual four a token, so what is longer would not fit
``MAX_SPAN_TOKENS`` either. It is refused before it is tokenised, which would take a core for half a minute."""

MAX_TOKENS_PER_GENERATE: Final = 1 << 20
"""Upper bound of ``Generate.max_tokens``; the context's free room is the bound that matters."""

MAX_QUEUED_GENERATIONS: Final = 4096
"""Generations that wait for a lane, over all sessions."""

MAX_PIN_MS: Final = 7 * 24 * 3600 * 1000
"""Milliseconds that one `Pin` may hold: a week, the longest that an agent runs by itself. Who needs it longer renews it;
who forgot it gives the memory back."""

MAX_PINS: Final = 1024
"""Pins at once, over all sessions; beyond them the oldest yields. More than a pool has sequences and host memory has room
for conversations: their budget in tokens is the bound that matters, and this one holds where they share all of theirs."""

MAX_BACKGROUND_DIVISOR: Final = 1_000_000
"""Ticks between two of a background job beside other work: more is a job that does not move, which is what 0 says."""

# -- worker -----------------------------------------------------------------------------------------

WORKER_READY_SECONDS: Final = 600.0
"""A worker that reports no progress of loading for this long is given up; large models on slow disks need minutes."""

PROBE_EXACT_SECONDS: Final = 300.0
"""Most time that looking for what makes one context exact may take: a small model needs half a minute, and one that
cannot be measured within this is too slow on the machine for anybody to wait for it."""

MAX_CAPABILITY_BYTES: Final = 64 * KIB
"""Read of a kept measurement: many times what one takes."""

WORKER_STOPPED_SAMPLES: Final = 2
"""Consecutive samples in the stopped state, half a second apart, that count as a hang: a client has its error
within two seconds, and a debugger that stops the worker for a blink does not lose it."""

WORKER_SILENT_SECONDS: Final = 30.0
"""Seconds without any CPU time used, while a plan is in flight, that count as a hang. Not a time a step: beside
another busy program a step can take fifty times longer."""

WORKER_SAMPLE_SECONDS: Final = 0.5
"""Seconds between two looks at a worker that owes an answer. An idle worker is not looked at."""

WORKER_CLOSE_SECONDS: Final = 2.0
"""Seconds a worker has to end by itself after the request to shut down. Then it is killed. A step of the engine is
aborted by the request, so a healthy worker needs milliseconds."""

MAX_LINK_MESSAGE_BYTES: Final = 64 * MIB
"""One message between daemon and worker. The largest honest one is a plan that admits `MAX_ADMITTED_BYTES` of prompts:
the rest of it is far smaller."""

MAX_ADMITTED_BYTES: Final = 48 * MIB
"""Token ids, four bytes each, of the prompts that one tick admits: twelve million. Jobs beyond it wait for the next tick;
a single prompt beyond it is refused, and no context holds one."""

MAX_DRAFT: Final = 15
"""Tokens guessed at once: with the token before them 16 rows, a multiple of every padding of exact rows. Measured on two
cores, 16 rows take 6 to 9 steps; more rows gain little and are lost more often."""

MAX_LOOKUP_TOKENS: Final = 32 * KIB
"""Last tokens of a job's text in which guesses are looked for. Their index takes some 10 MB and 30 ms, once, and only
while the job is alone."""

MAX_LINK_TEXT_BYTES: Final = 4 * KIB
"""One text in a worker's message (a reason, a description): longer ones are cut by the worker, refused by the daemon."""

MAX_WORKER_STDERR_BYTES: Final = 64 * KIB
"""What a worker may write to its standard error before it is read, which happens when it is lost. The kernel's
default size of a pipe; a C abort's message is far smaller."""

ENGINE_LOG_LINES: Final = 16
"""Last warnings and errors of the engine that are kept, to give the reason of a failure."""

# -- kept KV ----------------------------------------------------------------------------------------

MAX_HOST_BYTES: Final = 8192 * MIB
"""Exported KV in host memory of one worker: beyond it a prefix is cheaper kept in a file, which the page cache serves."""

MAX_HOST_ENTRIES: Final = 4096
"""Of them at once: each costs the daemon its tokens in an index, and whatever has to go is chosen among all. For what is
longer than some hundred tokens the bytes are the bound that matters."""

HOST_MEMORY_PERCENT: Final = 60
"""Share of the free memory that exported KV may take: the rest is for prompts, replies and everybody else."""

STATE_SLACK_BYTES: Final = 1 * MIB
"""What an exported state may be larger than foretold (twice that), before its worker counts as dishonest."""

MAX_PARK_NAME_BYTES: Final = 4 * KIB
"""Identity and digest in the head of a park file, each: no longer than a text of the link. A scan at start reads no more
of a file than its head."""

PARK_SYNC_BYTES: Final = 16 * MIB
"""A park file is synced after every so many bytes: one sync of all of it would hold up the log's behind it, and with
that every reply."""

MEMORY_PRESSURE_PERCENT: Final = 10.0
"""Percent of the last ten seconds in which some task waited for memory, from which KV in host memory is dropped: below,
the machine only tidies up."""

MEMORY_PRESSURE_SAMPLE_SECONDS: Final = 5.0
"""Seconds between two looks at it, while there is anything to drop. The kernel's figure is of ten seconds."""

EXACT_DUMMIES: Final = 7
"""Positions of a sequence that exact jobs leave alone: the rows that fill up what kernels take need them. As many as the
largest padding takes, whatever this model needs: where a reply ends in a full context must not depend on what has been
measured by then."""

# -- output -----------------------------------------------------------------------------------------

MAX_OUTPUT_BACKLOG_BYTES: Final = 1 * MIB
"""Log lines that wait for a standard stream that takes no bytes: some five thousand. Later ones are dropped and
counted."""

OUTPUT_FLUSH_SECONDS: Final = 1.0
"""At its end the daemon waits this long for a standard stream to take its last lines."""
