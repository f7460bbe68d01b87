"""Many at once: a burst with one shared prefix, a chat that arrives behind agents, more work than lanes, and what the
daemon itself takes of a core."""

import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

from benchmarks.daemon import Running, Serve
from benchmarks.load import GREEDY, Caller
from benchmarks.prompts import Prompts
from benchmarks.reuse import PREFILL, ROOM, answer
from benchmarks.streams import Crowd, Stream, counters, raw_session, stream_of
from benchmarks.verdict import Verdict
from superfluid_protocol import numbers, request

REPLY = 16
PREEMPTIONS = "preemptions_total"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work the cases are.

    Attributes:
        shared, own: Tokens of the burst's prompts, in common and each its own.
        solo_cold: So many of the burst are repeated alone without any cache; the others alone, but from it.
        agent: Tokens of an agent's prompt.
        flood, flood_context: Tokens of each prompt of the flood, and positions of a lane.
        share_tokens: Tokens of the eight replies during which the daemon's share of a core is taken.
    """

    burst: int = 32
    shared: int = 2048
    own: int = 20
    solo_cold: int = 8
    agents: int = 8
    agent: int = 6144
    chat: int = 30
    chat_reply: int = 64
    head_start: float = 2.0
    flood: int = 32
    flood_prompt: int = 3900
    flood_context: int = 4096
    flood_reply: int = 64
    share_tokens: int = 256


QUICK = Sizes(
    burst=10,
    shared=320,
    solo_cold=2,
    agent=400,
    chat_reply=16,
    head_start=0.5,
    flood=12,
    flood_prompt=200,
    flood_context=256,
    flood_reply=16,
    share_tokens=64,
)


def burst(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """Requests that come together and share a long prefix, not exact."""
    asked = _burst_prompts(prompts, size)
    with _one(serve, size) as daemon, closing(Caller(daemon.socket)) as caller:
        daemon.warm_up()
        before = counters(caller)[PREFILL]
        sessions, streams = _together(daemon, caller, asked)
        prefilled = int(counters(caller)[PREFILL] - before)
        logged = sum(
            stream_of(caller, session)[: len(ids)] == ids
            for session, ids in zip(sessions, asked, strict=True)
        )
    own = size.burst * size.own
    times = (prefilled - own) / size.shared
    return [
        Verdict(
            what=f"{size.burst} requests at once, {size.shared} tokens in common, {size.own} own ones each: "
            "the common part prefilled",
            target="at most 1.02 times",
            figure=f"{times:.3f} times",
            met=times <= 1.02,
            raw={"prefilled": prefilled, "own": own, "ttft": [stream.ttft for stream in streams]},
        ),
        Verdict(
            what="burst: prompt ids in the log as sent",
            target="all",
            figure=f"{logged} of {size.burst}",
            met=logged == size.burst,
        ),
    ]


def exact_burst(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """The same under ``--exact``: every reply as if it had been asked for alone."""
    asked = _burst_prompts(prompts, size)
    with _one(serve, size, "--exact") as daemon, closing(Caller(daemon.socket)) as caller:
        daemon.warm_up()
        together = [stream.ids for stream in _together(daemon, caller, asked)[1]]
        warm = [_alone(daemon, caller, ids) for ids in asked[size.solo_cold :]]
    with (
        _one(serve, size, "--exact", "--kept-sequences", "0", "--host-memory-gb", "0") as daemon,
        closing(Caller(daemon.socket)) as caller,
    ):
        daemon.warm_up()
        cold = [_alone(daemon, caller, ids) for ids in asked[: size.solo_cold]]
    same = sum(a == b for a, b in zip(together, cold + warm, strict=True))
    return [
        Verdict(
            what=f"burst under --exact: replies as each gives alone ({len(cold)} cold, {len(warm)} from the cache)",
            target="all the same",
            figure=f"{same} of {size.burst}",
            met=same == size.burst,
            raw={"together": together, "alone": cold + warm},
        )
    ]


def chat_behind_agents(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """Somebody asks a short question just after all lanes were given long prompts."""
    context = max(8192, size.agent + ROOM) if size.agent > 1024 else size.agent + ROOM
    with serve("--max-context", str(context)) as daemon, closing(Caller(daemon.socket)) as caller:
        daemon.warm_up()
        agents = [raw_session(caller, prompts.prose(size.agent), GREEDY) for _ in range(size.agents)]
        chat = raw_session(caller, prompts.prose(size.chat), GREEDY)
        caller.call(request.SetQos(session=chat, class_=numbers.Qos.INTERACTIVE, batch_invariant=False))
        with Crowd(daemon.socket) as crowd:
            streams = [crowd.ask(agent, REPLY) for agent in agents]
            crowd.watch(seconds=size.head_start)
            asked = crowd.ask(chat, size.chat_reply)
            crowd.watch()
        preempted = int(counters(caller)[PREEMPTIONS])
    finished = sum(stream.end is not None for stream in streams)
    by_stream = sorted((max(stream.gaps(), default=0.0) for stream in [*streams, asked]), reverse=True)
    longest = by_stream[preempted:][0] if len(by_stream) > preempted else 0.0
    gaps = sorted((gap for stream in [*streams, asked] for gap in stream.gaps()), reverse=True)
    return [
        Verdict(
            what=f"a chat {size.head_start:.0f} s behind {size.agents} agents with prompts of {size.agent} tokens: "
            "first token",
            target="at most 0.5 s",
            figure=f"{asked.ttft:.2f} s",
            met=asked.ttft <= 0.5,
            raw={"agents_ttft": [stream.ttft for stream in streams if stream.arrivals]},
        ),
        Verdict(
            what="chat behind agents: agents that finish",
            target="all",
            figure=f"{finished} of {size.agents}",
            met=finished == size.agents,
            raw={"errors": [stream.error for stream in streams if stream.error]},
        ),
        Verdict(
            what="chat behind agents: longest pause of a running stream, those preempted left out",
            target="at most 1 s",
            figure=f"{longest:.2f} s (half of all pauses below {statistics.median(gaps) * 1000:.0f} ms)",
            met=longest <= 1.0,
            raw={"preempted": preempted, "longest_by_stream": by_stream, "gaps": gaps},
        ),
    ]


def flood(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """Far more requests than lanes, each of which fills its lane almost."""
    with (
        serve("--max-context", str(size.flood_context)) as daemon,
        closing(Caller(daemon.socket)) as caller,
    ):
        daemon.warm_up()
        sessions = [raw_session(caller, prompts.prose(size.flood_prompt), GREEDY) for _ in range(size.flood)]
        with Crowd(daemon.socket) as crowd:
            streams = [crowd.ask(session, size.flood_reply) for session in sessions]
            crowd.watch()
        fresh = answer(daemon, caller, raw_session(caller, prompts.prose(20), GREEDY)).stream
        seen = counters(caller)
    completed = sum(stream.end is not None for stream in streams)
    return [
        Verdict(
            what=f"{size.flood} requests of {size.flood_prompt} tokens against eight lanes of {size.flood_context}",
            target="all complete, and a fresh one is admitted afterwards",
            figure=f"{completed} of {size.flood} complete; the fresh one's first token after {fresh.ttft:.2f} s",
            met=completed == size.flood and fresh.count > 0,
            raw={
                "errors": [stream.error for stream in streams if stream.error],
                "seconds": [stream.ended - stream.asked for stream in streams],
                "metrics": {name: n for name, n in seen.items() if "bucket" not in name},
            },
        )
    ]


def daemon_share(serve: Serve, prompts: Prompts, size: Sizes) -> list[Verdict]:
    """CPU time of the daemon's process while eight lanes decode."""
    with serve("--max-context", "2048") as daemon, closing(Caller(daemon.socket)) as caller:
        daemon.warm_up()
        sessions = [raw_session(caller, prompts.prose(64), GREEDY) for _ in range(8)]
        with Crowd(daemon.socket) as crowd:
            streams = [crowd.ask(session, size.share_tokens) for session in sessions]
            crowd.watch(until=lambda: all(stream.arrivals for stream in streams))
            began, used = max(stream.arrivals[-1][0] for stream in streams), daemon.cpu_seconds()
            tokens = sum(stream.count for stream in streams)
            crowd.watch(until=lambda: any(stream.ended for stream in streams))
            used = daemon.cpu_seconds() - used
            seconds = max(stream.arrivals[-1][0] for stream in streams) - began
            tokens = sum(stream.count for stream in streams) - tokens
            crowd.watch()
    share = used / seconds
    return [
        Verdict(
            what="the daemon's own process while eight lanes decode",
            target="at most 10 % of one core",
            figure=f"{share:.1%}, {used / tokens * 1e6:.0f} µs a token",
            met=share <= 0.10,
            raw={"cpu_seconds": used, "seconds": seconds, "tokens": tokens},
        )
    ]


def _one(serve: Serve, size: Sizes, *options: str) -> AbstractContextManager[Running]:
    return serve("--max-context", str(size.shared + size.own + ROOM), *options)


def _burst_prompts(prompts: Prompts, size: Sizes) -> list[list[int]]:
    shared = prompts.prose(size.shared)
    return [shared + prompts.prose(size.own) for _ in range(size.burst)]


def _together(daemon: Running, caller: Caller, asked: Sequence[list[int]]) -> tuple[list[int], list[Stream]]:
    sessions = [raw_session(caller, ids, GREEDY) for ids in asked]
    with Crowd(daemon.socket) as crowd:
        streams = [crowd.ask(session, REPLY) for session in sessions]
        crowd.watch()
    for stream in streams:
        stream.closed()
    return sessions, streams


def _alone(daemon: Running, caller: Caller, ids: Sequence[int]) -> list[int]:
    return answer(daemon, caller, raw_session(caller, ids, GREEDY), REPLY).stream.ids
