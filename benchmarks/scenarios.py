"""What the scheduler, the prefix cache and parking were built to reach: one real daemon each, watched from outside.

python -m benchmarks.scenarios [--only NAME,...] [--quick] [--json FILE] [--model MODEL] [--seed N] [--threads N]
"""

import argparse
import json
import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks import crowds, reuse
from benchmarks.daemon import Serve, end_in_order, serving
from benchmarks.prompts import Prompts
from benchmarks.verdict import Verdict, as_json
from superfluid.worker.llama.models import EMBEDDED

Case = Callable[[Serve, Prompts], list[Verdict]]


def cases(*, quick: bool) -> dict[str, Case]:
    """All of them by name, in the order in which they run."""
    many, again = (crowds.QUICK, reuse.QUICK) if quick else (crowds.Sizes(), reuse.Sizes())
    return {
        "burst": lambda serve, prompts: crowds.burst(serve, prompts, many),
        "exact-burst": lambda serve, prompts: crowds.exact_burst(serve, prompts, many),
        "chat": lambda serve, prompts: crowds.chat_behind_agents(serve, prompts, many),
        "fork": lambda serve, prompts: reuse.forks(serve, prompts, again),
        "returning": lambda serve, prompts: reuse.returning(serve, prompts, again),
        "park": lambda serve, prompts: reuse.parking(serve, prompts, again),
        "flood": lambda serve, prompts: crowds.flood(serve, prompts, many),
        "share": lambda serve, prompts: crowds.daemon_share(serve, prompts, many),
    }


def run(
    *,
    model: str = EMBEDDED,
    quick: bool = False,
    seed: int = 1,
    threads: int = 0,
    only: list[str] | None = None,
) -> dict[str, list[Verdict]]:
    """Run the cases, and print each verdict as it is found."""
    serve = partial(serving, model, "--threads", str(threads))
    found: dict[str, list[Verdict]] = {}
    print(f"seed of the prompts: {seed}")
    with closing(Prompts(model, random.Random(seed))) as prompts:
        for name, case in cases(quick=quick).items():
            if only is None or name in only:
                found[name] = _judged(name, case, serve, prompts)
                for verdict in found[name]:
                    print(f"{name:12} {verdict.line()}", flush=True)
    return found


def _judged(name: str, case: Case, serve: Serve, prompts: Prompts) -> list[Verdict]:
    """A case that fails is one that is not met: the others still run."""
    try:
        return case(serve, prompts)
    except (RuntimeError, OSError) as failure:
        return [Verdict(what=name, target="an answer", figure=f"failed: {failure}", met=False)]


def main() -> None:
    """Run what was asked for."""
    names = list(cases(quick=True))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, and no more")
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0 takes the machine's cores")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else None
    if only and not set(only) <= set(names):
        parser.error(f"--only takes some of {','.join(names)}")
    end_in_order()
    found = run(
        model=options.model, quick=options.quick, seed=options.seed, threads=options.threads, only=only
    )
    if options.json:
        raw = {name: as_json(verdicts) for name, verdicts in found.items()}
        options.json.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
