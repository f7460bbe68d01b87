"""docs/benchmarks.json and docs/benchmarks.md: every part with the day and the machine of its own last run.

A part that runs again replaces what it found before, and leaves the others as they are.
"""

import json
import os
import platform
import re
import statistics
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import decode
from benchmarks.verdict import table

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
RAW = ROOT / "docs" / "benchmarks.json"

Found = dict[str, Any]

DRAFT_TARGETS = {"rewrite this code": "1.3", "free chat": "0.98"}

HEAD = [
    "# Benchmarks",
    "",
    "Written by `make bench` and `make bench-peer`; the raw figures are in `benchmarks.json`. Read ratios, not absolute",
    "numbers: the machine may be shared, and two things that are compared run side by side for that reason. The model is",
    "SmolLM2-135M-Instruct Q4_1 where nothing else is said.",
    "",
]


def machine() -> Found:
    """What stands below each part's heading."""
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


def merge(name: str, where: Found, found: Found) -> str:
    """Keep what a part found, and write both files anew. Returns the document.

    Args:
        where: What `machine` said before it began.
    """
    parts = _read()
    parts[name] = {"machine": where, "found": found}
    text = document(parts)
    RAW.write_text(_json({"parts": parts}))
    DOCUMENT.write_text(text)
    return text


def document(parts: Mapping[str, Found]) -> str:
    """All parts that ever ran, in one order."""
    lines = list(HEAD)
    for name, (title, render) in SECTIONS.items():
        if name in parts:
            lines += [
                f"## {title}",
                "",
                _where(parts[name]["machine"]),
                "",
                *render(parts[name]["found"]),
                "",
            ]
    return "\n".join(lines)


def _json(value: Found) -> str:
    """Indented, but each list of plain values on a line of its own."""
    text = json.dumps(value, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda inner: f"[{' '.join(inner[1].split())}]", text) + "\n"


def _where(machine: Found) -> str:
    return (
        f"{machine['date']}: {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        f"load at the start {machine['load']:.1f}."
    )


def _read() -> dict[str, Found]:
    try:
        return dict(json.loads(RAW.read_text())["parts"])
    except (FileNotFoundError, KeyError):
        return {}


def _appends(found: Found) -> list[str]:
    alone = found["latency"]
    return [
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
    ]


def _latency(what: str, found: dict[str, float]) -> str:
    return (
        f"| {what} | {found['append_us']:.0f} µs | {found['bare_us']:.0f} µs | {found['allowed_us']:.0f} µs |"
    )


def _rates(what: str, found: Found) -> str:
    rates = found["per_second"]
    return (
        f"| {what} | {statistics.median(rates):,.0f} | {max(rates):,.0f} | {found['daemon_cpu_us']:.0f} µs |"
    )


def _decode(found: Found) -> list[str]:
    return [
        "Tokens a second of all sessions together while all of them decode, against the same loop around `llama_decode`",
        f"without daemon, log or link, {decode.THREADS} threads each. The ratio is the median of the rounds' ratios;",
        "each round runs both right after each other.",
        "",
        "| sessions | daemon | bare loop | ratio | to reach |",
        "|---|---|---|---|---|",
        *(
            f"| {row['lanes']} | {statistics.median(row['daemon']):.1f} | {statistics.median(row['bare']):.1f} "
            f"| {row['ratio']:.2f} | 0.95 |"
            for row in found["rows"]
        ),
    ]


def _draft(found: Found) -> list[str]:
    return [
        "In the worker alone: the time of a token against plain decoding of the same prompt, and whether the tokens are",
        "the same. Above 1 the other way is faster.",
        "",
        "| what | ratio | to reach | plain | other | same tokens | guesses right |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['ratio']:.2f} | {DRAFT_TARGETS.get(row['name'], '')} "
            f"| {statistics.median(row['plain_us']) / 1000:.1f} ms "
            f"| {statistics.median(row['other_us']) / 1000:.1f} ms | {row['same']} of {len(row['plain_us'])} "
            f"| {row['accepted']} of {row['drafted']} |"
            for row in found["rows"]
        ),
    ]


def _peer(found: Found) -> list[str]:
    return [
        "Greedy, the same model file, threads, lanes and context, both over a socket of this machine, in rounds that",
        "take turns in who begins; the daemon without guessing. Ratios are medians of the rounds' ratios.",
        f"llama-server: {found['version']}.",
        "",
        *table(found["verdicts"]),
    ]


def _scenarios(found: Found) -> list[str]:
    return [
        "One real daemon each. Tokens are counted by the engine, times are what a client sees.",
        "",
        *table([verdict for verdicts in found["cases"].values() for verdict in verdicts]),
    ]


def _exactness(found: Found) -> list[str]:
    options = found["options"]
    return [
        f"{options['sessions']} sessions of {options['shortest']} to {options['longest']} tokens, half of them greedy",
        f"and half sampled at temperature 0.9, with replies of {options['reply']}. Whatever happens, the finished reply",
        "has to be, token for token, what the session gives alone.",
        "",
        *table(found["verdicts"]),
    ]


def _canaries(found: Found) -> list[str]:
    return [
        "Random conversations, each with a code word of its own that the model is asked for, over far too little memory.",
        "",
        *table(found["verdicts"]),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Found], list[str]]]] = {
    "appends": ("Appends", _appends),
    "decode": ("Decode through the daemon", _decode),
    "peer": ("Beside llama-server", _peer),
    "scenarios": ("Scheduling, prefix cache, parking", _scenarios),
    "draft": ("Guessing tokens, and exact rows", _draft),
    "exactness": ("Exact mode: SmolLM2-135M", _exactness),
    "exactness-gemma": ("Exact mode: Gemma 3 270M Q4_K_M", _exactness),
    "canaries": ("Code words", _canaries),
}
"""Parts by name: what stands over them, and how what they found is told."""
