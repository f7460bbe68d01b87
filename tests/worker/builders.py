"""Builders for plans, and readers of results, in the terms that tests think in."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from superfluid.core.plan import Admit, JobResult, Move, MoveKind, Plan, Result
from superfluid.worker.engine import Engine
from superfluid.worker.messages import Load, Ready

READY = Ready(
    n_vocab=260,
    n_ctx=512,
    n_ctx_train=4096,
    n_seq=6,
    bytes_per_token=1,
    description="",
    library="",
    threads=1,
    cuts="free",
    settings="none",
)
"""What a worker says of itself that was loaded as `load` asks."""

PROMPT_A = [(7 * i + 3) % 250 for i in range(60)]
PROMPT_B = [(11 * i + 5) % 250 for i in range(45)]


def load(path, **changes):
    """A small context: 512 positions for each of six sequences."""
    fields = {"n_ctx": 512, "n_seq": 6, "n_batch": 64, "n_ubatch": 32, "threads": 1} | changes
    return Load(model_path=str(path), **fields)


def pack(ids: Sequence[int]) -> bytes:
    return np.array(ids, "<u4").tobytes()


def unpack(data: bytes) -> list[int]:
    return np.frombuffer(data, "<u4").tolist()


def admit(job, seq, ids, *, start=0, limit=1000, temperature=0.0, seed=1, **changes):
    fields = {"top_p": 1.0, "min_p": 0.0, "top_k": 0} | changes
    return Admit(
        job=job,
        seq=seq,
        start=start,
        tokens=pack(ids),
        limit=limit,
        temperature=temperature,
        seed=seed,
        **fields,
    )


def copy(seq, dst, n):
    return Move(kind=MoveKind.COPY, seq=seq, dst=dst, n=n)


def clear(seq):
    return Move(kind=MoveKind.CLEAR, seq=seq)


def save(seq, entry, n):
    return Move(kind=MoveKind.SAVE, seq=seq, entry=entry, n=n)


def restore(entry, seq, n):
    return Move(kind=MoveKind.LOAD, seq=seq, entry=entry, n=n)


def drop(entry):
    return Move(kind=MoveKind.DROP, entry=entry)


def line(result: Result, job: int) -> JobResult:
    """The result's line of *job*; there must be exactly one."""
    (found,) = [entry for entry in result.jobs if entry.job == job]
    return found


def ids(result: Result, job: int) -> list[int]:
    return unpack(line(result, job).tokens)


def reply(engine, job, seq, prompt, *, plan_id=9000, **changes):
    """Admit one job, run it to its end in one plan; returns its ids."""
    changes = {"limit": 20} | changes
    plan = Plan(
        id=plan_id,
        admit=(admit(job, seq, prompt, **changes),),
        prefill=((job, len(prompt)),),
        decode_rounds=changes["limit"],
        retire=(),
    )
    result = engine.run(plan)
    retired = engine.run(Plan(id=plan_id + 1, retire=(job,)))
    assert retired.jobs == ()
    return ids(result, job)


def fresh(model, prompt, **changes):
    """What a context that never held anything answers."""
    with closing(Engine.open(load(model))) as engine:
        return reply(engine, 1, 0, prompt, **changes)
