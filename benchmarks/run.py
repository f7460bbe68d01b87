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
        rates, cpu = append.throughput(daemon, rounds=rounds, each=200 if quick else append.EACH)
        alone = append.latency(daemon)
    return {
        "appends": {"clients": append.CLIENTS, "per_second": rates, "daemon_cpu_us": cpu},
        "latency": {"append_us": alone.append, "bare_us": alone.bare, "allowed_us": alone.allowed},
    }


def _decodes(rounds: int) -> dict[str, Any]:
    with serving(EMBEDDED, "--max-context", str(decode.CONTEXT), "--threads", str(decode.THREADS)) as daemon:
        rows = decode.compare(daemon, find_model(EMBEDDED), rounds=rounds)
    return {
        "decode": [
            {"lanes": row.lanes, "daemon": row.daemon, "bare": row.bare, "ratio": row.ratio} for row in rows
        ]
    }


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
    machine, appends, alone = found["machine"], found["appends"], found["latency"]
    rate = statistics.median(appends["per_second"])
    allowed = f"1.5 times a bare write and fsync of the same size ({alone['bare_us']:.0f} µs) and 300 µs"
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
        "Each append is a chat message: tokenised, encoded, written, fsynced and applied before its reply is sent.",
        "",
        "| what | found | to reach |",
        "|---|---|---|",
        f"| {appends['clients']} clients at once, durable appends a second: median round | {rate:,.0f} | 8,000 |",
        f"| best round | {max(appends['per_second']):,.0f} | |",
        f"| the daemon's CPU time for one of them | {appends['daemon_cpu_us']:.0f} µs | |",
        f"| one client alone, median | {alone['append_us']:.0f} µs | {alone['allowed_us']:.0f} µs: {allowed} |",
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
