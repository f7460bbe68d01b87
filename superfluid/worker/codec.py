"""The bytes of the messages between daemon and worker.

A frame is a little-endian u32 length and that many bytes of CBOR: one array, the message's tag first, its fields after
it in the order of the dataclass. Both ends run the same build of this package, so there is no version to agree on. What
comes in is checked field by field: a worker that answers garbage must end as an ordinary error, never as a strange
value in the scheduler.
"""

import struct
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import cbor2

from superfluid.core.limits import MAX_LINK_MESSAGE_BYTES, MAX_LINK_TEXT_BYTES
from superfluid.core.plan import Admit, JobResult, JobState, Move, MoveKind, Plan, Result
from superfluid.worker.messages import (
    CUTS,
    FLASH_ATTENTION,
    KERNELS,
    KV_TYPES,
    PROBES,
    Cancel,
    Failed,
    Fetch,
    Filed,
    FromWorker,
    Interrupt,
    Load,
    MessageError,
    Probed,
    Progress,
    Ready,
    Seal,
    Shutdown,
    ToWorker,
    clip,
)

HEADER: Final = struct.Struct("<I")
"""The length in front of each message."""


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
        kernels=r.text(),
        exact_rows=r.uint(16),
        exact_outputs=r.uint(16),
        probe=r.text(),
    )
    if load.flash_attn not in FLASH_ATTENTION or load.kv_type not in KV_TYPES:
        raise MessageError("no such attention kernel or KV type")
    if load.kernels not in KERNELS or load.probe not in PROBES:
        raise MessageError("no such kernels or probe")
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
        bytes_per_sequence=r.uint(),
        lossy_refusal=r.text(),
    )
    if ready.cuts not in CUTS:
        raise MessageError("no such way to cut a sequence")
    return ready


_M = TypeVar("_M")
_Builders: TypeAlias = dict[int, tuple[int, Callable[[_Reader], _M]]]
"""Of each tag: how many fields the message has, and what makes it of them."""

_TO_WORKER: Final[_Builders[ToWorker]] = {
    0: (12, _load),
    1: (7, _plan),
    2: (1, lambda r: Cancel(job=r.uint())),
    3: (1, lambda r: Interrupt(plan_id=r.uint())),
    4: (0, lambda _: Shutdown()),
    5: (7, _seal),
    6: (6, _fetch),
}
_FROM_WORKER: Final[_Builders[FromWorker]] = {
    16: (1, lambda r: Progress(fraction=r.real())),
    17: (12, _ready),
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
