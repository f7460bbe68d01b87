"""What need not be computed again: forks, conversations that return from host memory, and sessions parked in files.

How much was computed is counted by the engine; how long it took is what a client sees.
"""

import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.daemon import Running, Serve
from benchmarks.load import GREEDY, Caller
from benchmarks.prompts import Prompts
from benchmarks.streams import Crowd, Stream, append, counters, fork, raw_session, stream_of
from benchmarks.verdict import Verdict

QUESTION = 20
"""Own tokens of what is asked anew."""

REPLY = 16
TICK_MS = 50
ROOM = 256
"""Positions of a session beyond its prompt."""

PREFILL = "prefill_tokens_total"
SEAL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work the cases are.

    Attributes:
        long: Tokens of the session that is forked and parked.
        turn: Tokens of each conversation that returns.
        rounds: Times that a quick thing is repeated.
        lane_reply: Tokens of the replies that run beside a seal.
    """

    long: int = 4096
    turn: int = 2048
    conversations: int = 6
    rounds: int = 5
    lanes: int = 3
    lane_reply: int = 400


QUICK = Sizes(long=300, turn=200, conversations=4, rounds=2, lane_reply=60)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One reply alone, and what the engine computed for it."""

    stream: Stream
    prefilled: int

    @property
    def warm(self) -> int:
        """Prompt tokens that were not computed, as the client is told."""
        return self.stream.closed().warm_prefix


def answer(daemon: Running, caller: Caller, session: int, tokens: int = REPLY) -> Answer:
    """Ask one session, with nothing beside it."""
    before = counters(caller)[PREFILL]
    with Crowd(daemon.socket) as crowd:
        stream = crowd.ask(session, tokens)
        crowd.watch()
    stream.closed()
    return Answer(stream=stream, prefilled=int(counters(caller)[PREFILL] - before))


def forks(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """Forks of a long session, each with a question of its own."""
    with (
        serve("--max-context", str(size.long + ROOM)) as daemon,
        closing(Caller(daemon.socket)) as caller,
    ):
        daemon.warm_up()
        session = raw_session(caller, prompts.prose(size.long), GREEDY)
        cold = answer(daemon, caller, session)
        warm = []
        for _ in range(size.rounds):
            branch = fork(caller, session)
            append(caller, branch, prompts.prose(QUESTION))
            warm.append(answer(daemon, caller, branch))
    most = max(one.prefilled for one in warm)
    return [
        Verdict(
            what=f"fork of a session of {size.long} tokens, {QUESTION} new ones: prefilled",
            target="at most 40 tokens",
            figure=f"{most} tokens",
            met=most <= 40,
            raw={"prefilled": [one.prefilled for one in warm], "cold_prefilled": cold.prefilled},
        ),
        _share("fork: first token against cold", [one.stream.ttft for one in warm], [cold.stream.ttft], 0.05),
    ]


def returning(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """More conversations than the pool has room for, each of which comes back once."""
    # The default of host memory is as much as the pool has: two sequences, of a context that holds several of these.
    context = max(8192, 4 * size.turn) if size.turn > 1024 else (size.turn + ROOM) * size.conversations
    options = ("--max-context", str(context), "--max-batch", "1", "--kept-sequences", "1")
    with serve(*options) as daemon, closing(Caller(daemon.socket)) as caller:
        daemon.warm_up()
        sessions = [raw_session(caller, prompts.prose(size.turn), GREEDY) for _ in range(size.conversations)]
        cold = [answer(daemon, caller, session) for session in sessions]
        for session in sessions:
            append(caller, session, prompts.prose(QUESTION))
        warm = [answer(daemon, caller, session) for session in sessions]
        resumed = {name: n for name, n in counters(caller).items() if name.startswith("resumes_total")}
    whole = sum(one.warm >= size.turn for one in warm)
    return [
        Verdict(
            what=f"{size.conversations} conversations of {size.turn} tokens returning, room for two in the pool",
            target="all warm",
            figure=f"{whole} of {len(warm)} warm",
            met=whole == len(warm),
            raw={"warm": [one.warm for one in warm], "resumes": resumed},
        ),
        _share(
            "returning: first token of the second turn against cold",
            [one.stream.ttft for one in warm],
            [one.stream.ttft for one in cold],
            0.10,
        ),
    ]


def parking(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """A long session is sealed, the daemon ends, the next one goes on; and what other lanes feel of a seal."""
    # Tokens are seen at a tick's end: with the default length of one, every gap would be longer than the bound.
    options = (
        *("--max-context", str(size.long + size.lane_reply + ROOM)),
        *("--tick-target-ms", str(TICK_MS)),
    )
    with serve(*options, "--park") as daemon:
        daemon.warm_up()
        with closing(Caller(daemon.socket)) as caller:
            session = raw_session(caller, prompts.prose(size.long), GREEDY)
            cold = answer(daemon, caller, session)
            before = len(stream_of(caller, session))
            _wait_parked(daemon, session)
            felt = _longest_gaps(daemon, caller, prompts, session, size)
        daemon.stop()
        daemon.start()
        daemon.warm_up()
        with closing(Caller(daemon.socket)) as caller:
            append(caller, session, prompts.prose(QUESTION))
            now = len(stream_of(caller, session))
            warm = answer(daemon, caller, session)
            resumed = {name: n for name, n in counters(caller).items() if name.startswith("resumes_total")}
    with serve(*options) as daemon, closing(Caller(daemon.socket)) as caller:
        daemon.warm_up()
        session = raw_session(caller, prompts.prose(size.long), GREEDY)
        answer(daemon, caller, session)
        unsealed = _longest_gaps(daemon, caller, prompts, session, size)
    new = now - before
    gap, without = max(felt, default=0.0) * 1000, max(unsealed, default=0.0) * 1000
    return [
        Verdict(
            what=f"park a session of {size.long} tokens, restart the daemon, continue: prefilled",
            target="the new tokens only",
            figure=f"{warm.prefilled} tokens, {new} of them new",
            met=warm.prefilled <= new,
            raw={"prefilled": warm.prefilled, "new": new, "warm": warm.warm, "resumes": resumed},
        ),
        # A bound from above: the new tokens and the first one of the reply are computed within this time, too.
        _share(
            "parked: first token after the restart against cold", [warm.stream.ttft], [cold.stream.ttft], 0.05
        ),
        Verdict(
            what=f"longest gap in {size.lanes} other lanes while a session of {size.long} tokens is sealed",
            target="at most 100 ms",
            figure=f"{gap:.0f} ms ({without:.0f} ms where nothing is sealed)",
            met=gap <= 100,
            raw={"gaps_ms": _sorted_ms(felt), "gaps_without_sealing_ms": _sorted_ms(unsealed)},
        ),
    ]


def _longest_gaps(
    daemon: Running, caller: Caller, prompts: Prompts, session: int, size: Sizes
) -> list[float]:
    """Gaps of running lanes after the end of a short turn, at which its session is sealed where parking is on."""
    found: list[float] = []
    for _ in range(size.rounds):
        found += _gaps_after(daemon, caller, prompts, fork(caller, session), size)
    return found


def _gaps_after(daemon: Running, caller: Caller, prompts: Prompts, branch: int, size: Sizes) -> list[float]:
    lanes = [raw_session(caller, prompts.prose(20), GREEDY) for _ in range(size.lanes)]
    with Crowd(daemon.socket) as crowd:
        streams = [crowd.ask(lane, size.lane_reply) for lane in lanes]
        crowd.watch(until=lambda: all(stream.count > size.lane_reply // 8 for stream in streams))
        ending = crowd.ask(branch, 2)
        crowd.watch(until=lambda: bool(ending.ended))
        crowd.watch(until=lambda: any(stream.ended for stream in streams))
        ended = min(stream.ended for stream in streams if stream.ended)
        gaps = []
        for stream in streams:
            times = [when for when, _ids in stream.arrivals]
            gaps += [b - a for a, b in pairwise(times) if ending.ended < b <= ended]
        crowd.watch()
    return gaps


def _wait_parked(daemon: Running, session: int) -> None:
    """Return once the session's file is there. It gets its name when it is complete."""
    file = daemon.home / "sessions" / "park" / f"{session}.park"
    deadline = time.monotonic() + SEAL_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"session {session} was not parked")
        time.sleep(0.02)


def _sorted_ms(gaps: list[float]) -> list[float]:
    return [round(gap * 1000, 1) for gap in sorted(gaps, reverse=True)]


def _share(what: str, warm: list[float], cold: list[float], most: float) -> Verdict:
    share = statistics.median(warm) / statistics.median(cold)
    return Verdict(
        what=what,
        target=f"at most {most:.0%}",
        figure=f"{share:.1%} ({statistics.median(warm) * 1000:.0f} of {statistics.median(cold) * 1000:.0f} ms)",
        met=share <= most,
        raw={"warm_seconds": warm, "cold_seconds": cold},
    )
