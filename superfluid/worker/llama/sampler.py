"""The next token of a logits row.

Greedy takes the maximum. Otherwise llama.cpp's own samplers filter the candidates, in llama.cpp's own order (top-k,
top-p, min-p, temperature), and the final choice is ours: the draw that belongs to the token's stream position picks
from the cumulated probabilities. The candidates are cumulated in the order of their ids and not of their probabilities:
two that are almost equally likely may change places between batch shapes, and would then swap their shares of the draw.
"""

import ctypes
from typing import Any

import numpy as np

from superfluid.core.sampling import SamplingParams, draw
from superfluid.worker.llama.context import Row
from superfluid.worker.llama.library import lib


class NotFiniteError(ArithmeticError):
    """The logits hold no finite maximum: the computation is broken, and no token may come of it."""


class Candidates:
    """Scratch room for the whole vocabulary, shared by the samplers of one thread."""

    def __init__(self, n_vocab: int) -> None:
        # The layout of llama_token_data.
        self._data = np.zeros(n_vocab, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._pointer = ctypes.cast(self._data.ctypes.data, lib.llama_token_data_p)

    def filter(self, chain: Any, logits: Row) -> "np.ndarray[Any, Any]":  # noqa: ANN401 - a llama_sampler pointer
        """What *chain* leaves of the row: a view, overwritten by the next call."""
        self._data["id"] = self._ids
        self._data["logit"] = logits
        array = lib.llama_token_data_array(
            data=self._pointer, size=len(self._data), selected=-1, sorted=False
        )
        lib.llama_sampler_apply(chain, ctypes.byref(array))
        return self._data[: array.size]


class Sampler:
    """Chooses tokens by one job's parameters. Closed with the job."""

    def __init__(self, params: SamplingParams, candidates: Candidates) -> None:
        self._params = params
        self._candidates = candidates
        self._chain: Any = None if params.greedy else _chain(params)

    def choose(self, logits: Row, position: int) -> int:
        """The token at stream position *position*, given the logits of the token before it.

        Raises:
            NotFiniteError: the logits are broken.
        """
        best = int(logits.argmax())  # a NaN counts as the maximum: one look finds it
        if not np.isfinite(logits[best]):
            raise NotFiniteError("the engine's logits are not finite")
        if self._chain is None:
            return best
        kept = self._candidates.filter(self._chain, logits)
        kept = kept[kept["id"].argsort()]
        # Doubles: the order of magnitude between 1 and the last of 50,000 candidates is beyond single precision.
        scaled = kept["logit"].astype(np.float64)
        shares = np.exp(scaled - scaled.max()).cumsum()
        index = int(shares.searchsorted(draw(self._params.seed, position) * shares[-1], side="right"))
        return int(kept["id"][min(index, len(kept) - 1)])

    def close(self) -> None:
        """Free the chain. Calling it again does nothing."""
        if self._chain is not None:
            lib.llama_sampler_free(self._chain)
            self._chain = None


def _chain(params: SamplingParams) -> Any:  # noqa: ANN401 - a llama_sampler pointer
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    keep_one = 1
    for sampler in (
        # The bindings take a signed number; more candidates than that is as good as off.
        lib.llama_sampler_init_top_k(min(params.top_k, 2**31 - 1)),
        lib.llama_sampler_init_top_p(params.top_p, keep_one),
        lib.llama_sampler_init_min_p(params.min_p, keep_one),
        lib.llama_sampler_init_temp(params.temperature),
    ):
        lib.llama_sampler_chain_add(chain, sampler)
    return chain
