"""What the exported state of a sequence is like: measured, because every architecture lays it out differently."""

from dataclasses import dataclass

import numpy as np

from superfluid.worker.llama.context import Context, Outcome
from superfluid.worker.llama.library import build
from superfluid.worker.messages import Load
from superfluid.worker.quantize import lossy_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKind:
    """What the states of a context have in common.

    Attributes:
        per_sequence: Bytes of a state of any length.
        per_token: Bytes that each position adds to it: exact for full attention, an upper bound beyond a sliding window,
            nothing in recurrent layers.
        lossy_refusal: Why states cannot be stored lossily; empty when they can.
    """

    per_sequence: int
    per_token: int
    lossy_refusal: str


def measure_state(context: Context) -> StateKind:
    """Compute two rows on a context that nobody uses yet, look at its state, and leave it empty."""
    sizes, state = [], None
    for position in range(2):
        outcome = context.decode_chunk(0, position, np.zeros(1, np.int32), logits=False)
        state = context.export(0) if outcome is Outcome.OK else None
        if state is None:
            break
        sizes.append(len(state))
    context.clear(0)
    if state is None:
        # A context that cannot decode says so with its first job.
        guess = context.bytes_per_token
        return StateKind(per_sequence=0, per_token=guess, lossy_refusal="the state could not be exported")
    each = sizes[1] - sizes[0]
    return StateKind(per_sequence=sizes[0] - each, per_token=each, lossy_refusal=lossy_refusal(state) or "")


def read_by(context: Context, load: Load) -> str:
    """What else than the model decides which states a context can read, and what their values are: names and values.

    How many positions a sequence can have does not: a state is the same to the byte whatever the context's size, and
    goes into any where its positions fit. Only of models whose rotary embedding has other factors for long contexts
    (LongRoPE) the size picks the factors. Nor does the padding of exact rows: it changes what rows are computed with,
    not what they are taken for.
    """
    return (
        f"n_seq={context.n_seq} kv={load.kv_type} flash={load.flash_attn} kernels={load.kernels} "
        f"rope={_rope(context)} library={build()}"
    )


def _rope(context: Context) -> str:
    """Which factors the engine takes: those for contexts that are longer than what the model was trained with first."""
    model = context.model
    architecture = model.metadata.get("general.architecture", "")
    short = int(model.metadata.get(f"{architecture}.rope.scaling.original_context_length", model.n_ctx_train))
    return "long" if context.n_ctx > short else "short"
