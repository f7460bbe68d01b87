"""`make bench`: runs every benchmark, prints what it found and writes it to docs/benchmarks.md and docs/benchmarks.json.

All figures are ratios of two things measured side by side in one run, or stand beside what they are compared with: the
machine may be shared, and an absolute number from it says little. Each part is written as soon as it is done.

    python -m benchmarks.run [--only PART,...] [--rounds N] [--quick] [--peer DIR]

Minutes on two quiet cores: appends 2, decode 4, peer 20, scenarios 45, draft 5, exactness 60, exactness-gemma 90,
canaries 15.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import append, canaries, decode, draft, exactness, peer, report, scenarios
from benchmarks.daemon import end_in_order, serving
from benchmarks.report import Found
from benchmarks.verdict import as_json
from superfluid.worker.llama.models import EMBEDDED, find_model

QUICK_CONVERSATIONS = 10


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for. *peer* is the directory of llama-server, if there is one."""

    rounds: int
    quick: bool
    peer: Path | None


def appends(options: Options) -> Found:
    """Durable appends a second, and the latency of one."""
    with serving(EMBEDDED, "--max-context", "512") as daemon:
        each = 200 if options.quick else append.EACH
        messages = append.throughput(daemon, append.message, rounds=options.rounds, each=each)
        ids = append.throughput(daemon, append.ids, rounds=options.rounds, each=each)
        alone = {make.__name__: append.latency(daemon, make) for make in (append.ids, append.message)}
    return {
        "clients": append.CLIENTS,
        "messages": {"per_second": messages.rates, "daemon_cpu_us": messages.cpu_us},
        "ids": {"per_second": ids.rates, "daemon_cpu_us": ids.cpu_us},
        "latency": {
            name: {"append_us": one.append, "bare_us": one.bare, "allowed_us": one.allowed}
            for name, one in alone.items()
        },
    }


def decodes(options: Options) -> Found:
    """Decode through the daemon, against a bare loop."""
    # The bare loop guesses nothing.
    with serving(
        EMBEDDED,
        *("--max-context", str(decode.CONTEXT), "--threads", str(decode.THREADS), "--speculate", "off"),
    ) as daemon:
        rows = decode.compare(daemon, find_model(EMBEDDED), rounds=options.rounds)
    return {"rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}


def peers(options: Options) -> Found:
    """Side by side with llama-server."""
    assert options.peer is not None
    verdicts = peer.run(options.peer, rounds=options.rounds, quick=options.quick)
    return {"version": peer.version(options.peer), "verdicts": as_json(verdicts)}


def all_scenarios(options: Options) -> Found:
    """Scheduling, the prefix cache and parking."""
    found = scenarios.run(quick=options.quick)
    return {"cases": {name: as_json(verdicts) for name, verdicts in found.items()}}


def drafts(options: Options) -> Found:
    """Guessing, and exact rows, in the worker."""
    rows = draft.compare(find_model(EMBEDDED), rounds=options.rounds)
    return {
        "rows": [
            {
                "name": row.case.name,
                "ratio": row.ratio,
                "plain_us": row.plain,
                "other_us": row.other,
                "same": row.same,
                "drafted": row.drafted,
                "accepted": row.accepted,
            }
            for row in rows
        ]
    }


def exact(options: Options, model: str = EMBEDDED) -> Found:
    """Exact mode against everything."""
    size = exactness.QUICK if options.quick else exactness.Options()
    chosen = replace(size, model=exactness.find(model))
    verdicts = as_json(exactness.run(chosen))
    for verdict in verdicts:
        verdict["raw"].pop(
            "ids", None
        )  # tens of thousands; `python -m benchmarks.exactness --json FILE` keeps them
    return {"options": asdict(replace(chosen, model=model)), "verdicts": verdicts}


def exact_gemma(options: Options) -> Found:
    """The same with a model that slides its window."""
    return exact(options, "gemma3-270m")


def code_words(options: Options) -> Found:
    """Whether the cache mixes sessions up."""
    conversations = QUICK_CONVERSATIONS if options.quick else 200
    return {"verdicts": as_json(canaries.run(conversations=conversations))}


PARTS: dict[str, Callable[[Options], Found]] = {
    "appends": appends,
    "decode": decodes,
    "peer": peers,
    "scenarios": all_scenarios,
    "draft": drafts,
    "exactness": exact,
    "exactness-gemma": exact_gemma,
    "canaries": code_words,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", metavar="PART,...", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison")
    parser.add_argument("--quick", action="store_true", help="small sizes, and nothing is written")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="where llama-server lies")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(PARTS)
    if unknown := set(names) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options = Options(
        rounds=1 if given.quick else given.rounds, quick=given.quick, peer=peer.installed(given.peer)
    )
    if "peer" in names and options.peer is None:
        if given.only:
            parser.error("there is no llama-server: run `make bench-peer`, or name its directory with --peer")
        print("peer: left out, there is no llama-server here (make bench-peer)")
        names.remove("peer")
    end_in_order()
    for name in names:
        _run(name, options)


def _run(name: str, options: Options) -> None:
    print(f"== {name}", flush=True)
    where = report.machine()
    found = PARTS[name](options)
    if options.quick:
        parts: dict[str, Any] = {name: {"machine": where, "found": found}}
        print(report.document(parts))
    else:
        report.merge(name, where, found)
        print(f"{name}: written to {report.DOCUMENT.relative_to(report.ROOT)}", flush=True)


if __name__ == "__main__":
    main()
