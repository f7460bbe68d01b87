"""The decode loop around ``llama_decode`` and nothing else: no daemon, no log, no link, no scheduler.

What the daemon is measured against, side by side in one run. It uses the engine's own context and greedy
choice, so that only what stands around the loop differs.

    python -m benchmarks.bare_loop [MODEL] [--tokens N] [--threads N]
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superfluid.worker.llama.context import Context, Outcome
from superfluid.worker.llama.model import Model
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid.worker.messages import Load

LANES = (1, 2, 4, 8)
PROMPT_TOKENS = 64


class BenchmarkError(Exception):
    """The engine did not do what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run took. *seconds* are of the decode steps alone; the prompts are prefilled before."""

    lanes: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of all lanes together."""
        return self.tokens / self.seconds


def run(
    model_path: Path,
    lanes: int,
    tokens: int,
    prompts: Sequence[Sequence[int]],
    *,
    n_ctx: int = 2048,
    threads: int = 2,
) -> Measured:
    """Decode *tokens* tokens on each of *lanes* sequences, greedily; end-of-generation ids do not end a lane.

    Args:
        prompts: the ids that each lane begins with; lane ``i`` takes ``prompts[i % len(prompts)]``.
        n_ctx: positions of a sequence.
    """
    load = Load(model_path=str(model_path), n_ctx=n_ctx, n_seq=lanes, threads=threads)
    with closing(Model(model_path, vocab_only=False)) as model, closing(Context(model, load)) as context:
        seqs = list(range(lanes))
        lengths = [len(prompts[lane % len(prompts)]) for lane in seqs]
        last = [_prefill(context, lane, prompts[lane % len(prompts)]) for lane in seqs]
        began = time.perf_counter()
        for _ in range(tokens):
            if context.decode_rows(seqs, lengths, last) is not Outcome.OK:
                raise BenchmarkError("a decode step failed")
            last = [int(context.logits(row).argmax()) for row in seqs]
            lengths = [length + 1 for length in lengths]
        return Measured(lanes=lanes, tokens=lanes * tokens, seconds=time.perf_counter() - began)


def _prefill(context: Context, seq: int, prompt: Sequence[int]) -> int:
    """Compute a prompt; returns the first token of the reply."""
    ids = np.array(prompt, np.int32)
    row = 0
    for start in range(0, len(ids), context.n_batch):
        chunk = ids[start : start + context.n_batch]
        row = len(chunk) - 1
        last = start + len(chunk) == len(ids)
        if context.decode_chunk(seq, start, chunk, logits=last) is not Outcome.OK:
            raise BenchmarkError("a prompt could not be computed")
    return int(context.logits(row).argmax())


def main() -> None:
    """Print aggregate tokens a second for each number of lanes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--tokens", type=int, default=64, help="tokens a lane")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    path = find_model(arguments.model)
    prompts = [[100 + (17 * lane + 3 * i) % 1000 for i in range(PROMPT_TOKENS)] for lane in range(max(LANES))]
    for lanes in LANES:
        measured = run(path, lanes, arguments.tokens, prompts, threads=arguments.threads)
        print(f"{lanes} lanes: {measured.tokens_per_second:7.1f} tok/s")


if __name__ == "__main__":
    main()
