"""The messages between daemon and worker, and their bytes.

A frame is a little-endian u32 length and that many bytes of CBOR: one array, the message's tag first, its fields after
it in the order of the dataclass. Both ends run the same build of this package, so there is no version to agree on. What
comes in is checked field by field: a worker that answers garbage must end as an ordinary error, never as a strange
value in the scheduler.

    daemon -> worker   Load (first, once), Plan, Cancel, Interrupt, Seal, Fetch, Shutdown
    worker -> daemon   Progress*, then Ready, Probed or Failed; after Ready one Result a Plan, one Filed a Seal or Fetch

KV bytes never cross the link: a worker reads and writes park files itself, and says when it is done.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import cbor2

from superfluid.core.limits import MAX_LINK_MESSAGE_BYTES, MAX_LINK_TEXT_BYTES
from superfluid.core.plan import Admit, JobResult, JobState, Move, MoveKind, Plan, Result

HEADER: Final = struct.Struct("<I")
"""The length in front of each message."""

FLASH_ATTENTION: Final = ("off", "on", "auto")
KV_TYPES: Final = ("f16", "bf16", "f32", "q8_0")
PROBES: Final = ("", "attention", "exact")
CUTS: Final = ("free", "window", "none")


class MessageError(ValueError):
    """Bytes that are no message, or a message that is none of this direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker is to load.

    Args:
        n_ctx: positions of one sequence; 0 leaves it to the worker (``memory.default_context``).
        n_seq: sequences, lanes and kept ones together.
        n_batch: most rows in one call of the engine; n_ubatch: most rows in one of its graphs.
        flash_attn: one of ``FLASH_ATTENTION``. Off is the fastest on a CPU with F16 (measured).
        kv_type: one of ``KV_TYPES``.
        exact_rows: the rows that a sequence of an exact job has in one micro-batch are made a multiple of this.
        probe: one of ``PROBES``: measure the model, answer ``Probed`` and end, instead of serving.
    """

    model_path: str
    n_ctx: int
    n_seq: int
    n_batch: int = 512
    n_ubatch: int = 512
    threads: int = 2
    flash_attn: str = "off"
    kv_type: str = "f16"
    exact_rows: int = 1
    probe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End one job at the next step. A job that is not there is ignored: it may have ended by itself meanwhile."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End this plan at its next step. A plan that has ended meanwhile is ignored, so that none is cut by mistake."""

    plan_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Write a host-memory entry to a park file, beside everything else. Answered by ``Filed``.

    The entry may be dropped at once: its bytes stay until they are written.

    Args:
        ticket: names this request in its answer.
        path: the file; written as a temporary one beside it, synced, renamed, its directory synced.
        identity: of model and settings; goes into the file and is compared when it is read.
        digest: of the token ids of the entry's positions; likewise.
        positions: that the entry holds.
        lossy: store it in the lossy encoding.
    """

    ticket: int
    entry: int
    path: str
    identity: str
    digest: bytes
    positions: int
    lossy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Read a park file into a new host-memory entry, beside everything else. Answered by ``Filed``.

    A file that is not whole, or not of this *identity*, *digest* and number of *positions*, makes no entry.
    """

    ticket: int
    entry: int
    path: str
    identity: str
    digest: bytes
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """What became of a ``Seal`` or ``Fetch``.

    Args:
        ok: it is done. Otherwise *detail* says why not, and nothing was changed.
        size: bytes of the file (Seal) or of the entry (Fetch).
    """

    ticket: int
    ok: bool
    size: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe found, as JSON text (``core.capability``). The process ends after this message."""

    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """End the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Share of the model that is loaded, 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded.

    Args:
        n_ctx: positions of one sequence, as the engine rounded them.
        bytes_per_token: KV bytes of one position of one sequence (an estimate for models with mixed layers).
        description: the engine's words for the model.
        library: the engine's version and the CPU features it uses.
        cuts: one of ``CUTS``: whether a sequence can be cut back to any position, hardly (a sliding window), or not at
            all (recurrent layers).
        settings: what else than the model decides whether KV of another worker can be read: names and values.
    """

    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_seq: int
    bytes_per_token: int
    description: str
    library: str
    threads: int
    cuts: str
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The model cannot be loaded; *kind* is one of ``WorkerStartFailed``'s. The process ends after this message."""

    kind: str
    reason: str


ToWorker: TypeAlias = Load | Plan | Cancel | Interrupt | Seal | Fetch | Shutdown
FromWorker: TypeAlias = Progress | Ready | Probed | Failed | Result | Filed


def encode(message: ToWorker | FromWorker) -> bytes:
    """The frame of *message*, length included.

    Raises:
        MessageError: it is larger than ``MAX_LINK_MESSAGE_BYTES``.
    """
    body = cbor2.dumps([_TAGS[type(message)], *_fields(message)])
    if len(body) > MAX_LINK_MESSAGE_BYTES:
        raise MessageError(
            f"a message of {len(body)} bytes passes the link's limit of {MAX_LINK_MESSAGE_BYTES}"
        )
    return HEADER.pack(len(body)) + body


def decode_length(header: bytes) -> int:
    """The body's length from ``HEADER.size`` bytes.

    Raises:
        MessageError: no message may be as long.
    """
    (length,) = HEADER.unpack(header)
    if not 0 < length <= MAX_LINK_MESSAGE_BYTES:
        raise MessageError(f"a message claims {length} bytes; the link's limit is {MAX_LINK_MESSAGE_BYTES}")
    return int(length)


def decode_to_worker(body: bytes) -> ToWorker:
    """A message of the daemon. Raises ``MessageError`` for anything else."""
    return _decode(body, _TO_WORKER)


def decode_from_worker(body: bytes) -> FromWorker:
    """A message of the worker. Raises ``MessageError`` for anything else."""
    return _decode(body, _FROM_WORKER)


def clip(text: str) -> str:
    """*text* cut to what one text of a message may hold."""
    return text.encode(errors="replace")[:MAX_LINK_TEXT_BYTES].decode(errors="ignore")


# -- to plain arrays --------------------------------------------------------------------------------


def _fields(message: ToWorker | FromWorker) -> list[object]:
    match message:
        case Plan():
            return [
                message.id,
                [[int(m.kind), m.seq, m.dst, m.n, m.entry] for m in message.moves],
                [_admit_fields(a) for a in message.admit],
                [list(pair) for pair in message.prefill],
                message.decode_rounds,
                list(message.retire),
                list(message.hold),
            ]
        case Result():
            return [
                message.plan_id,
                [[j.job, j.prefilled, j.tokens, int(j.state), clip(j.detail)] for j in message.jobs],
                [list(pair) for pair in message.positions],
                message.prefill_rows,
                message.prefill_us,
                message.decode_steps,
                message.decode_rows,
                message.decode_us,
                message.interrupted,
                [list(line) for line in message.saved],
                message.drafted,
                message.accepted,
            ]
        case _:
            return [getattr(message, name) for name in message.__slots__]


def _admit_fields(a: Admit) -> list[object]:
    return [
        a.job, a.seq, a.start, a.tokens, a.limit, a.temperature, a.top_p, a.min_p, a.top_k, a.seed,
        a.exact, a.draft, a.history,
    ]  # fmt: skip


# -- from plain arrays ------------------------------------------------------------------------------


class _Reader:
    """Takes the fields of one array in order, each with its type."""

    def __init__(self, value: object, length: int) -> None:
        if not isinstance(value, list) or len(value) != length:
            raise MessageError(f"not an array of {length} fields")
        self._fields = iter(value)

    def uint(self, bits: int = 64) -> int:
        value = next(self._fields)
        if type(value) is not int or not 0 <= value < 1 << bits:
            raise MessageError(f"not an unsigned number of {bits} bits")
        return value

    def real(self) -> float:
        value = next(self._fields)
        if type(value) is not float:
            raise MessageError("not a floating-point number")
        return value

    def flag(self) -> bool:
        value = next(self._fields)
        if type(value) is not bool:
            raise MessageError("not a truth value")
        return value

    def text(self, limit: int = MAX_LINK_TEXT_BYTES) -> str:
        value = next(self._fields)
        if type(value) is not str or len(value) > limit:
            raise MessageError(f"not a text of at most {limit} characters")
        return value

    def ids(self) -> bytes:
        value = next(self._fields)
        if type(value) is not bytes or len(value) % 4:
            raise MessageError("not packed token ids")
        return value

    def blob(self, limit: int = MAX_LINK_TEXT_BYTES) -> bytes:
        value = next(self._fields)
        if type(value) is not bytes or len(value) > limit:
            raise MessageError(f"not at most {limit} bytes")
        return value

    def array(self) -> list[object]:
        value = next(self._fields)
        if not isinstance(value, list):
            raise MessageError("not an array")
        return value


def _pair(value: object) -> tuple[int, int]:
    r = _Reader(value, 2)
    return r.uint(), r.uint(32)


def _move(value: object) -> Move:
    r = _Reader(value, 5)
    kind = r.uint(8)
    if kind not in MoveKind.__members__.values():
        raise MessageError("no such sequence operation")
    return Move(kind=MoveKind(kind), seq=r.uint(31), dst=r.uint(31), n=r.uint(31), entry=r.uint())


def _admit(value: object) -> Admit:
    r = _Reader(value, 13)
    return Admit(
        job=r.uint(),
        seq=r.uint(31),
        start=r.uint(31),
        tokens=r.ids(),
        limit=r.uint(31),
        temperature=r.real(),
        top_p=r.real(),
        min_p=r.real(),
        top_k=r.uint(32),
        seed=r.uint(),
        exact=r.flag(),
        draft=r.flag(),
        history=r.ids(),
    )


def _plan(r: _Reader) -> Plan:
    return Plan(
        id=r.uint(),
        moves=tuple(map(_move, r.array())),
        admit=tuple(map(_admit, r.array())),
        prefill=tuple(map(_pair, r.array())),
        decode_rounds=r.uint(31),
        retire=tuple(_job(value) for value in r.array()),
        hold=tuple(_job(value) for value in r.array()),
    )


def _job(value: object) -> int:
    return _Reader([value], 1).uint()


def _job_result(value: object) -> JobResult:
    r = _Reader(value, 5)
    job, prefilled, tokens, state = r.uint(), r.uint(31), r.ids(), r.uint(8)
    if state not in JobState.__members__.values():
        raise MessageError("no such state of a job")
    return JobResult(job=job, prefilled=prefilled, tokens=tokens, state=JobState(state), detail=r.text())


def _result(r: _Reader) -> Result:
    return Result(
        plan_id=r.uint(),
        jobs=tuple(map(_job_result, r.array())),
        positions=tuple(map(_pair, r.array())),
        prefill_rows=r.uint(),
        prefill_us=r.uint(),
        decode_steps=r.uint(),
        decode_rows=r.uint(),
        decode_us=r.uint(),
        interrupted=r.flag(),
        saved=tuple(map(_saved, r.array())),
        drafted=r.uint(),
        accepted=r.uint(),
    )


def _saved(value: object) -> tuple[int, int, int]:
    r = _Reader(value, 3)
    return r.uint(), r.uint(31), r.uint()


def _filed(r: _Reader) -> Filed:
    return Filed(ticket=r.uint(), ok=r.flag(), size=r.uint(), detail=r.text())


def _seal(r: _Reader) -> Seal:
    return Seal(
        ticket=r.uint(),
        entry=r.uint(),
        path=r.text(),
        identity=r.text(),
        digest=r.blob(),
        positions=r.uint(31),
        lossy=r.flag(),
    )


def _fetch(r: _Reader) -> Fetch:
    return Fetch(
        ticket=r.uint(),
        entry=r.uint(),
        path=r.text(),
        identity=r.text(),
        digest=r.blob(),
        positions=r.uint(31),
    )


def _load(r: _Reader) -> Load:
    load = Load(
        model_path=r.text(),
        n_ctx=r.uint(31),
        n_seq=r.uint(16),
        n_batch=r.uint(31),
        n_ubatch=r.uint(31),
        threads=r.uint(16),
        flash_attn=r.text(),
        kv_type=r.text(),
        exact_rows=r.uint(16),
        probe=r.text(),
    )
    if load.flash_attn not in FLASH_ATTENTION or load.kv_type not in KV_TYPES or load.probe not in PROBES:
        raise MessageError("no such attention kernel, KV type or probe")
    return load


def _ready(r: _Reader) -> Ready:
    ready = Ready(
        n_vocab=r.uint(31),
        n_ctx=r.uint(31),
        n_ctx_train=r.uint(31),
        n_seq=r.uint(16),
        bytes_per_token=r.uint(),
        description=r.text(),
        library=r.text(),
        threads=r.uint(16),
        cuts=r.text(),
        settings=r.text(),
    )
    if ready.cuts not in CUTS:
        raise MessageError("no such way to cut a sequence")
    return ready


_M = TypeVar("_M")
_Builders: TypeAlias = dict[int, tuple[int, Callable[[_Reader], _M]]]
"""Of each tag: how many fields the message has, and what makes it of them."""

_TO_WORKER: Final[_Builders[ToWorker]] = {
    0: (10, _load),
    1: (7, _plan),
    2: (1, lambda r: Cancel(job=r.uint())),
    3: (1, lambda r: Interrupt(plan_id=r.uint())),
    4: (0, lambda _: Shutdown()),
    5: (7, _seal),
    6: (6, _fetch),
}
_FROM_WORKER: Final[_Builders[FromWorker]] = {
    16: (1, lambda r: Progress(fraction=r.real())),
    17: (10, _ready),
    18: (2, lambda r: Failed(kind=r.text(), reason=r.text())),
    19: (12, _result),
    20: (4, _filed),
    21: (1, lambda r: Probed(record=r.text())),
}
_TAGS: Final[dict[type, int]] = {
    Load: 0, Plan: 1, Cancel: 2, Interrupt: 3, Shutdown: 4, Seal: 5, Fetch: 6,
    Progress: 16, Ready: 17, Failed: 18, Result: 19, Filed: 20, Probed: 21,
}  # fmt: skip


def _decode(body: bytes, builders: _Builders[_M]) -> _M:
    try:
        value = cbor2.loads(body)
    except (
        Exception
    ) as error:  # tags let hostile bytes run any of the decoder's converters, which raise anything
        raise MessageError(f"not CBOR: {type(error).__name__}") from error
    if not isinstance(value, list) or not value or type(value[0]) is not int or value[0] not in builders:
        raise MessageError("not a message of this direction")
    length, build = builders[value[0]]
    return build(_Reader(value[1:], length))
