"""Decode speed through the daemon, against the same loop around `llama_decode` alone."""

import os
import selectors
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks import bare_loop
from benchmarks.daemon import Running
from benchmarks.load import GREEDY, LENGTH, Caller
from superfluid_protocol import Response, decode, event, request, response

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


class EndedEarly(Exception):
    """The model ended a reply by itself, so that too little was measured. Other prompts may do."""


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
    callers = [Caller(socket) for _ in prompts]
    selector = selectors.DefaultSelector()
    sessions: list[int] = []
    for caller, prompt in zip(callers, prompts, strict=True):
        session = caller.create(GREEDY)
        sessions.append(session)
        caller.call(request.Append(session=session, text=None, span=tuple(prompt)))
        selector.register(caller.sock, selectors.EVENT_READ, bytearray())
    for caller, session in zip(callers, sessions, strict=True):
        caller.send(request.Generate(session=session, max_tokens=TOKENS))
    speed = _watch(selector, len(prompts))
    selector.close()
    for caller in callers:
        caller.close()
    return speed


def _watch(selector: selectors.BaseSelector, lanes: int) -> float:
    """Count tokens from when every lane has begun until the first one ends; then wait for all to end."""
    begun: set[int] = set()
    ended: set[int] = set()
    counted, first, last = 0, 0.0, 0.0
    while len(ended) < lanes:
        for key, _mask in selector.select():
            number, received = key.fd, key.data
            received += key.fileobj.recv(1 << 16)  # type: ignore[union-attr]  # it is a socket
            now = time.perf_counter()
            for reply in _replies(received):
                match reply:
                    case response.Delta(event=message) if isinstance(message.body, event.Generated):
                        if len(begun) == lanes and not ended:
                            counted, last = counted + len(message.body.span), now
                        begun.add(number)
                        if len(begun) == lanes and not first:
                            first = now
                    case response.Generated():
                        ended.add(number)
                    case response.Err(message=text):
                        raise RuntimeError(text)
                    case _:
                        pass
    if counted < lanes * TOKENS // 2:
        raise EndedEarly
    return counted / (last - first)


def _replies(received: bytearray) -> list[Response]:
    replies: list[Response] = []
    while len(received) >= LENGTH.size:
        (length,) = LENGTH.unpack_from(received)
        end = LENGTH.size + length
        if len(received) < end:
            break
        replies.append(decode(Response, bytes(received[LENGTH.size : end]))[0])
        del received[:end]
    return replies


def _bare(model: Path, lanes: int, prompts: list[list[int]]) -> float:
    return bare_loop.run(model, lanes, TOKENS, prompts, n_ctx=CONTEXT, threads=THREADS).tokens_per_second


def _prompt(lane: int, salt: int) -> list[int]:
    """Ids that no earlier round used, so that nothing is found in the cache."""
    return [100 + (salt * 7919 + 17 * lane + 3 * i) % 40000 for i in range(bare_loop.PROMPT_TOKENS)]
