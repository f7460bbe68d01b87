"""What attention kernels, kernels of products and builds of the engine do to speed and to exactness, side by side.

    python -m benchmarks.kernels [MODEL...] [--other PYTHON] [--plain] [--off] [--rounds N] [--threads N] [--exact]

Each build is a process that holds the model; rounds go through all variants in turns, so that whatever else the machine
does meets all of them, and of each number the fastest round counts. PYTHON is an interpreter whose llama-cpp-python was
compiled differently; it needs nothing else.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BOOT = (
    f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'protocol')!r}]; "
    f"sys.path.append({sysconfig.get_path('purelib')!r}); from benchmarks import kernels; kernels.answer()"
)
"""The other interpreter takes its engine from its own packages, and all else from ours."""

KERNELS = (("off", "f16"), ("on", "f16"))
EXACT_KERNELS = (*KERNELS, ("on", "q8_0"), ("on", "bf16"))
LANES = (1, 8)
SHORT = 64
STEPS = 12


@dataclass(kw_only=True)
class Variant:
    """A build, its kernels and an attention kernel; and what was measured of it, in tokens a second, by name."""

    build: str
    flash: str
    kv: str
    child: "subprocess.Popen[str]"
    speeds: dict[str, list[float]] = field(default_factory=dict)
    exact: str = ""

    def ask(self, what: str, **arguments: object) -> Any:  # noqa: ANN401 - a number or a text, by what was asked
        """Have the build's process measure something."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        question = {"what": what, "flash": self.flash, "kv": self.kv, **arguments}
        self.child.stdin.write(json.dumps(question) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with the engine of {self.build} ended")
        return json.loads(line)


# -- in the process that holds a model ----------------------------------------------------------------


def answer() -> None:
    """Load the model that the command line names, and answer questions until there are none."""
    from superfluid.worker.llama.library import build
    from superfluid.worker.llama.model import Model

    path, threads, kernels = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with closing(Model(path, vocab_only=False, plain=kernels == "plain")) as model:
        print(json.dumps(build()), flush=True)
        for line in sys.stdin:
            question = json.loads(line)
            print(json.dumps(_measure(model, threads, **question)), flush=True)


def _measure(model: Any, threads: int, *, what: str, flash: str, kv: str, n: int = 0) -> object:  # noqa: ANN401
    from superfluid.worker.exactness import exactness, random_ids
    from superfluid.worker.llama.context import Context
    from superfluid.worker.messages import Load

    lanes = n if what == "lanes" else 1
    context_size = 512 if what == "lanes" else n + 256
    load = Load(
        model_path=str(model.path),
        n_ctx=context_size,
        n_seq=lanes,
        threads=threads,
        flash_attn=flash,
        kv_type=kv,
    )
    if what == "exact":
        found = exactness(model, load, seconds=600)
        trial = found.found
        return (
            f"{trial.rows} rows, {trial.outputs} with logits, x {found.cost:.2f}"
            if trial
            else found.why_not()
        )
    ids = random_ids(context_size, model.n_vocab, salt=1)
    with closing(Context(model, load)) as context:
        depth = SHORT if what == "lanes" else n
        began = time.perf_counter()
        for seq in range(lanes):
            for start in range(0, depth, 512):
                chunk = ids[start : min(start + 512, depth)]
                context.decode_chunk(seq, start, chunk, logits=start + len(chunk) == depth)
        prefill = depth / (time.perf_counter() - began)
        steps = _steps(context, lanes, depth, ids)
        return [prefill, lanes / min(steps)]


def _steps(context: Any, lanes: int, depth: int, ids: "np.ndarray[Any, Any]") -> list[float]:  # noqa: ANN401
    times = []
    seqs = list(range(lanes))
    for number in range(STEPS):
        began = time.perf_counter()
        context.decode_rows(seqs, [depth + number] * lanes, [int(ids[depth + number])] * lanes)
        times.append(time.perf_counter() - began)
    return times


# -- in the process that compares ---------------------------------------------------------------------


@contextmanager
def holding(
    python: str, kernels: str, model: Path, threads: int
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A process that holds *model* in the engine of *python*; also the name of its build."""
    command = [python, "-c", BOOT, str(model), str(threads), kernels]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        build = "llamafile" if "LLAMAFILE = 1" in child.stdout.readline() else "no llamafile"
        try:
            yield f"{build}, {kernels}", child
        finally:
            child.stdin.close()


def compare(model: Path, pythons: Sequence[str], options: argparse.Namespace) -> list[Variant]:
    """Measure every build with every kernel."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(holding(python, kernels, model, options.threads))
            for python in pythons
            for kernels in (("fast", "plain") if options.plain else ("fast",))
        ]
        variants = [
            Variant(build=build, flash=flash, kv=kv, child=child)
            for build, child in children
            for flash, kv in (EXACT_KERNELS if options.exact else KERNELS)
            if flash == "off" or not options.off
        ]
        for number in range(options.rounds):
            for variant in variants:
                _round(variant, options.depth)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for variant in variants if options.exact else ():
            variant.exact = variant.ask("exact")
    return variants


def _round(variant: Variant, depth: int) -> None:
    prefill, deep = variant.ask("deep", n=depth)
    variant.speeds.setdefault(f"prefill {depth}", []).append(prefill)
    for lanes in LANES:
        variant.speeds.setdefault(f"decode x{lanes}", []).append(variant.ask("lanes", n=lanes)[1])
    variant.speeds.setdefault(f"decode at {depth}", []).append(deep)


def table(variants: Sequence[Variant]) -> str:
    """Best rounds, in tokens a second, and in brackets over the first variant's."""
    names = list(variants[0].speeds)
    lines = [
        f"| build, kernels, attention, KV | {' | '.join(names)} | exact with |",
        "|---" * (len(names) + 2) + "|",
    ]
    for variant in variants:
        cells = [
            f"{max(variant.speeds[name]):.1f} ({max(variant.speeds[name]) / max(variants[0].speeds[name]):.2f})"
            for name in names
        ]
        lines.append(
            f"| {variant.build}, flash {variant.flash}, {variant.kv} | {' | '.join(cells)} | {variant.exact} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print a table for each model."""
    from superfluid.worker.llama.models import EMBEDDED, find_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=[EMBEDDED])
    parser.add_argument("--other", help="an interpreter with another build of the engine")
    parser.add_argument("--plain", action="store_true", help="also with plain kernels of products")
    parser.add_argument("--off", action="store_true", help="only without flash attention")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exact", action="store_true", help="also look for what makes rows exact")
    options = parser.parse_args()
    for name in options.models:
        path = find_model(name)
        pythons = [sys.executable, *([options.other] if options.other else [])]
        print(f"\n{path.name}, {options.threads} threads, best of {options.rounds} rounds\n")
        print(table(compare(path, pythons, options)), flush=True)


if __name__ == "__main__":
    main()
