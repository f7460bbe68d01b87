"""Whether a recorded reply is what the sampler draws at its stream positions, by a computation of our own.

Bits of a logits row may depend on the shape of the batch that computed it, so a reply after a kill need not equal an
undisturbed one's. What must hold whatever the bits are: the token at position p is the one that draw(seed, p) picks
from the distribution at p. It is computed here once more, with the engine's own parts, and compared with room for
those bits only.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from superfluid.core.sampling import SamplingParams, draw
from superfluid.worker.llama.context import Context, Outcome
from superfluid.worker.llama.model import Model
from superfluid.worker.messages import Load
from superfluid_protocol import GenParams

LOGIT_ROOM = 0.05
"""What another batch shape may change in a logit. The rows of the test's model spread over several units."""

SHARE_ROOM = 0.02
"""What that may change in a cumulated probability."""


def rows(model_path: Path, stream: list[int]) -> Iterator[np.ndarray]:
    """The logits behind each prefix of the stream: the first is that after one token."""
    load = Load(
        model_path=str(model_path), n_ctx=len(stream) + 64, n_seq=1, n_batch=64, n_ubatch=64, threads=1
    )
    with closing(Model(model_path, vocab_only=False)) as model, closing(Context(model, load)) as context:
        for position, token in enumerate(stream):
            assert context.decode_rows([0], [position], [token]) is Outcome.OK
            yield context.logits(0)


def consistent(logits: np.ndarray, token: int, params: GenParams, position: int) -> bool:
    """Whether *token* can be the choice at *position*."""
    sampling = SamplingParams(
        temperature=params.temperature, top_p=1.0, min_p=0.0, top_k=params.top_k, seed=params.seed
    )
    if sampling.greedy:
        return bool(logits[token] >= logits.max() - LOGIT_ROOM)
    floor = np.sort(logits)[-params.top_k]
    if logits[token] < floor - LOGIT_ROOM:
        return False
    weights = np.where(
        logits >= floor, np.exp((logits.astype(np.float64) - logits.max()) / params.temperature), 0
    )
    shares = weights.cumsum() / weights.sum()
    below = shares[token - 1] if token else 0.0
    return bool(below - SHARE_ROOM <= draw(params.seed, position) <= shares[token] + SHARE_ROOM)
