"""How large the exported state of a sequence is: measured, because every architecture lays it out differently."""

import numpy as np

from superfluid.worker.llama.context import Context, Outcome


def measure_state(context: Context) -> tuple[int, int]:
    """Bytes that a sequence's state holds at any length, and bytes that each position adds to it.

    Exact for full attention; for a sliding window the latter is an upper bound beyond the window, and recurrent layers
    add to the former alone. Two rows are computed for it, on a context that nobody uses yet.
    """
    sizes = []
    for position in range(2):
        outcome = context.decode_chunk(0, position, np.zeros(1, np.int32), logits=False)
        if outcome is not Outcome.OK:
            break  # an honest guess follows; a context that cannot decode says so with its first job
        sizes.append(context.export_size(0))
    context.clear(0)
    if len(sizes) < 2:
        return 0, context.bytes_per_token
    each = sizes[1] - sizes[0]
    return sizes[0] - each, each
