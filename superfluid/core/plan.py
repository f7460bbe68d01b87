"""The plan of one tick and its result: the plain data that passes between the scheduler and a worker.

A worker executes a plan in this order: retire, moves, admits, prefill rows, then decode rounds. A job whose
prefill completes inside the plan samples its first token and takes part in the remaining rounds.

Token ids travel packed, as little-endian u32 bytes: a plan holds ids and counts, never text.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class MoveKind(IntEnum):
    """Sequence operations, carried out before any row of the plan."""

    COPY = 0
    """Make ``dst`` hold the first ``n`` positions of ``seq``; ``seq`` keeps its own."""
    CLEAR = 1
    """Forget ``seq``."""
    SAVE = 2
    """Export ``seq`` into the host-memory entry ``entry``; ``seq`` keeps its own. It has to hold exactly ``n`` positions:
    otherwise there is no entry afterwards, as `Result.saved` says."""
    LOAD = 3
    """Make ``seq`` hold the first ``n`` positions of ``entry``, which stays. Fails like a COPY: ``seq`` is cleared."""
    DROP = 4
    """Forget ``entry``. One that is not there is ignored."""


class JobState(IntEnum):
    """How a job stands after a plan."""

    RUNNING = 0
    END = 1
    """The model ended the generation itself; the last token is an end-of-generation id."""
    LIMIT = 2
    """The job's own limit of tokens is reached."""
    CANCELLED = 3
    CONTEXT_FULL = 4
    """The sequence has no cell left."""
    ERROR = 5
    """The engine failed on this job; ``detail`` says how. Its sequence is cleared."""
    COLD = 6
    """The sequence did not hold, or could not be cut to, the ``start`` positions it was admitted with. Nothing was
    computed and the sequence is cleared: admit the job again from position 0."""


FINISHED: Final = frozenset(JobState) - {JobState.RUNNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One sequence operation. ``dst`` matters to COPY only, ``entry`` to SAVE, LOAD and DROP.

    Entries are numbered by the scheduler; a number is used once in a worker's life.
    """

    kind: MoveKind
    seq: int = 0
    dst: int = 0
    n: int = 0
    entry: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """A job takes a sequence.

    Attributes:
        start: Positions ``0 .. start - 1`` are in the sequence already and are not computed again.
        tokens: Packed ids of the rows to prefill, at positions ``start`` and on; at least one row.
        limit: Most tokens to generate.
        temperature, top_p, min_p, top_k, seed: As in ``GenParams``. The draw for the token at stream position ``p`` is
            a function of (seed, p), where ``p`` counts the tokens before it.
        exact: Every row of the job is computed with the model's exactness tactic: what comes of it does not depend on
            what else runs.
        draft: Tokens may be guessed from the job's own text and verified several at a time.
        history: Packed ids of positions ``0 .. start - 1``, for `draft` to look in; empty without it.
    """

    job: int
    seq: int
    start: int
    tokens: bytes
    limit: int
    temperature: float
    top_p: float
    min_p: float
    top_k: int
    seed: int
    exact: bool = False
    draft: bool = False
    history: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One tick's work.

    Attributes:
        prefill: (job, most rows this tick), in the order in which rows are to be computed.
        decode_rounds: Rounds in which every decoding job advances by one token.
        retire: Jobs whose sequences the scheduler takes back (cancelled ones among them).
        hold: Running jobs that decode nothing in this plan.
    """

    id: int
    moves: tuple[Move, ...] = ()
    admit: tuple[Admit, ...] = ()
    prefill: tuple[tuple[int, int], ...] = ()
    decode_rounds: int = 0
    retire: tuple[int, ...] = ()
    hold: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a plan did for one job.

    Attributes:
        prefilled: Prompt rows computed in this plan.
        tokens: Packed ids generated in this plan, the end-of-generation id included.
    """

    job: int
    prefilled: int
    tokens: bytes
    state: JobState
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a plan did.

    Attributes:
        positions: (sequence, positions it really holds now) of every sequence that the plan touched.
        decode_steps: Calls of the engine that decoded; ``decode_rows`` tokens in them.
        interrupted: The plan ended early because of a cancel or an interrupt.
        saved: (entry, positions, bytes) of every SAVE; no positions when it could not be made.
        drafted, accepted: Tokens guessed, and those among them that were right.
    """

    plan_id: int
    jobs: tuple[JobResult, ...]
    positions: tuple[tuple[int, int], ...]
    prefill_rows: int = 0
    prefill_us: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    decode_us: int = 0
    interrupted: bool = False
    saved: tuple[tuple[int, int, int], ...] = ()
    drafted: int = 0
    accepted: int = 0
