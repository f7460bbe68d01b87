"""`make bench`: runs every benchmark, prints what it found and writes it to docs/benchmarks.md and docs/benchmarks.json.

All figures are ratios of two things measured side by side in one run, or stand beside what they are compared with: the
machine may be shared, and an absolute number from it says little.

    python -m benchmarks.run [--rounds N] [--quick]
"""

import argparse
import json
import os
import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import append, decode
from benchmarks.daemon import serving
from superfluid.worker.llama.models import EMBEDDED, find_model

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
RAW = ROOT / "docs" / "benchmarks.json"


def main() -> None:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, and nothing is written")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    found = {"machine": _machine()} | _appends(rounds, quick=options.quick) | _decodes(rounds)
    text = _document(found)
    print(text)
    if not options.quick:
        DOCUMENT.write_text(text)
        RAW.write_text(json.dumps(found, indent=1) + "\n")


def _appends(rounds: int, *, quick: bool) -> dict[str, Any]:
    with serving(EMBEDDED, "--max-context", "512") as daemon:
        each = 200 if quick else append.EACH
        messages = append.throughput(daemon, append.message, rounds=rounds, each=each)
        ids = append.throughput(daemon, append.ids, rounds=rounds, each=each)
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


def _decodes(rounds: int) -> dict[str, Any]:
    with serving(EMBEDDED, "--max-context", str(decode.CONTEXT), "--threads", str(decode.THREADS)) as daemon:
        rows = decode.compare(daemon, find_model(EMBEDDED), rounds=rounds)
    return {
        "decode": [
            {"lanes": row.lanes, "daemon": row.daemon, "bare": row.bare, "ratio": row.ratio} for row in rows
        ]
    }


def _latency(what: str, found: dict[str, float]) -> str:
    return (
        f"| {what} | {found['append_us']:.0f} µs | {found['bare_us']:.0f} µs | {found['allowed_us']:.0f} µs |"
    )


def _rates(what: str, found: dict[str, Any]) -> str:
    rates = found["per_second"]
    return (
        f"| {what} | {statistics.median(rates):,.0f} | {max(rates):,.0f} | {found['daemon_cpu_us']:.0f} µs |"
    )


def _machine() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "load": os.getloadavg()[0],
    }


def _document(found: dict[str, Any]) -> str:
    machine, alone = found["machine"], found["latency"]
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; the raw figures of the same run are in `benchmarks.json`. Read ratios, not absolute",
        "numbers: the machine may be shared.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {machine['date']}.",
        f"Load at the start: {machine['load']:.1f}. Model: SmolLM2-135M-Instruct Q4_1.",
        "",
        "## Appends",
        "",
        f"{found['clients']} clients at once, each with a session of its own. Every append is encoded, written, fsynced",
        "and applied before its reply is sent; to reach: 8,000 a second. A chat message is tokenised besides:",
        "llama.cpp takes 30 to 60 µs for one, most of it for building its regular expressions.",
        "",
        "| durable appends a second | median round | best round | the daemon's CPU time for one |",
        "|---|---|---|---|",
        _rates("token ids with their text (`Append`)", found["ids"]),
        _rates("chat messages, tokenised by the daemon (`AppendMessage`)", found["messages"]),
        "",
        "One client alone, median, beside a bare write and fsync of the same size; to reach: 1.5 times that and 300 µs.",
        "",
        "| one append | found | bare | to reach |",
        "|---|---|---|---|",
        _latency("token ids with their text", alone["ids"]),
        _latency("a chat message, tokenised by the daemon", alone["message"]),
        "",
        "## Decode through the daemon",
        "",
        "Tokens a second of all sessions together while all of them decode, against the same loop around `llama_decode`",
        f"without daemon, log or link, {decode.THREADS} threads each. The ratio is the median of the rounds' ratios;",
        "each round runs both right after each other.",
        "",
        "| sessions | daemon | bare loop | ratio | to reach |",
        "|---|---|---|---|---|",
        *(
            f"| {row['lanes']} | {statistics.median(row['daemon']):.1f} | {statistics.median(row['bare']):.1f} "
            f"| {row['ratio']:.2f} | 0.95 |"
            for row in found["decode"]
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
