"""Decode speed through the daemon, against the same loop around `llama_decode` alone."""

import os
import statistics
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks import bare_loop
from benchmarks.daemon import Running
from benchmarks.load import GREEDY, Caller
from benchmarks.streams import Crowd, EndedEarly, raw_session, shared_rate, sizes

TOKENS = 128
CONTEXT = 2048
THREADS = os.cpu_count() or 1
"""Of the engine, on both sides: what the daemon takes by itself."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of lanes: tokens a second of both, round by round."""

    lanes: int
    daemon: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios: each round runs both right after the other."""
        return statistics.median(d / b for d, b in zip(self.daemon, self.bare, strict=True))


def compare(daemon: Running, model: Path, *, rounds: int) -> list[Row]:
    """Both sides, interleaved round by round, in turns of who begins."""
    rows = [Row(lanes=lanes, daemon=[], bare=[]) for lanes in bare_loop.LANES]
    salts = count(1)
    for number in range(rounds):
        for row in rows:
            _round(row, daemon, model, salts, daemon_first=bool(number % 2))
    return rows


def _round(row: Row, daemon: Running, model: Path, salts: Iterator[int], *, daemon_first: bool) -> None:
    for salt in salts:
        prompts = [_prompt(lane, salt) for lane in range(row.lanes)]
        bare = 0.0 if daemon_first else _bare(model, row.lanes, prompts)
        try:
            speed = through_daemon(daemon.socket, prompts)
        except EndedEarly:
            continue
        row.daemon.append(speed)
        row.bare.append(bare or _bare(model, row.lanes, prompts))
        return


def through_daemon(socket: Path, prompts: list[list[int]]) -> float:
    """Tokens a second of all lanes together, while all of them decode.

    Raises:
        EndedEarly: Less than half of what was asked for fell into that time.
    """
    with closing(Caller(socket)) as caller:
        sessions = [raw_session(caller, prompt, GREEDY) for prompt in prompts]
    with Crowd(socket) as crowd:
        streams = [crowd.ask(session, TOKENS) for session in sessions]
        crowd.watch()
    for stream in streams:
        stream.closed()
    return shared_rate([sizes(stream) for stream in streams], least=len(prompts) * TOKENS // 2)


def _bare(model: Path, lanes: int, prompts: list[list[int]]) -> float:
    return bare_loop.run(model, lanes, TOKENS, prompts, n_ctx=CONTEXT, threads=THREADS).tokens_per_second


def _prompt(lane: int, salt: int) -> list[int]:
    """Ids that no earlier round used, so that nothing is found in the cache."""
    return [100 + (salt * 7919 + 17 * lane + 3 * i) % 40000 for i in range(bare_loop.PROMPT_TOKENS)]
