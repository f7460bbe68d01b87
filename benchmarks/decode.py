"""Decode speed through the daemon, against the same loop around `llama_decode` alone."""

import selectors
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bare_loop
from benchmarks.daemon import Running
from benchmarks.load import GREEDY, LENGTH, Caller
from superfluid_protocol import Response, decode, event, request, response

TOKENS = 128
CONTEXT = 2048


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
    salt = 0
    for number in range(rounds):
        for row in rows:
            salt += 1
            prompts = [_prompt(lane, salt) for lane in range(row.lanes)]
            sides = [
                lambda row=row, prompts=prompts: row.daemon.append(through_daemon(daemon.socket, prompts)),
                lambda row=row, prompts=prompts: row.bare.append(_bare(model, row.lanes, prompts)),
            ]
            for side in sides if number % 2 else reversed(sides):
                side()
    return rows


def through_daemon(socket: Path, prompts: list[list[int]]) -> float:
    """Tokens a second of all lanes together, while all of them decode."""
    callers = [Caller(socket) for _ in prompts]
    selector = selectors.DefaultSelector()
    for caller, prompt in zip(callers, prompts, strict=True):
        session = caller.create(GREEDY)
        caller.call(request.Append(session=session, text=None, span=tuple(prompt)))
        selector.register(caller.sock, selectors.EVENT_READ, [session, bytearray(), 0])
    for key in list(selector.get_map().values()):
        callers[[c.sock for c in callers].index(key.fileobj)].send(
            request.Generate(session=key.data[0], max_tokens=TOKENS)
        )
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
            number, data = key.fd, key.data
            data[1] += key.fileobj.recv(1 << 16)  # type: ignore[union-attr]  # it is a socket
            now = time.perf_counter()
            for reply in _replies(data[1]):
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
    return bare_loop.run(model, lanes, TOKENS, prompts, n_ctx=CONTEXT).tokens_per_second


def _prompt(lane: int, salt: int) -> list[int]:
    """Ids that no earlier round used, so that nothing is found in the cache."""
    return [100 + (salt * 7919 + 17 * lane + 3 * i) % 40000 for i in range(bare_loop.PROMPT_TOKENS)]
