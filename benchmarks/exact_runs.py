"""Sessions whose replies are to be the same whatever happens around them, and the things that happen.

Every function here makes the replies of all sessions once, under one disturbance, and returns what the log then says each
reply is. A reply that was disturbed is continued until it has all its tokens.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.daemon import Running
from benchmarks.load import Caller
from benchmarks.prompts import Prompts
from benchmarks.streams import Crowd, Stream, counters, raw_session, stream_of
from superfluid_protocol import GenParams, numbers, request, response

T = TypeVar("T")

LANES = 8
NOISE = 2
"""Of the eight, sessions beside those that are compared: other prompts, other lengths, other parameters."""

CONTINUATIONS = 3
"""Times that a reply is asked to go on before it is given up."""

WAIT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One session: what it is asked, and with what."""

    params: GenParams
    prompt: list[int]
    reply: int


@dataclass(kw_only=True)
class Replies:
    """What one run gave.

    Attributes:
        ids: Of each case's reply.
        warm: Of each case, the prompt tokens that came from a cache when it was asked last.
        disturbed: In how many cases the disturbance fell into the middle of the reply.
    """

    ids: list[list[int]] = field(default_factory=list)
    warm: list[int] = field(default_factory=list)
    disturbed: int = 0


def alone(daemon: Running, cases: Sequence[Case]) -> Replies:
    """One after the other, with nothing beside them and nothing kept of their prompts."""
    found = Replies()
    with closing(Caller(daemon.socket)) as caller:
        for case in cases:
            session = raw_session(caller, case.prompt, case.params)
            _finish(daemon, [(session, case)], found)
            _record(caller, [(session, case)], found)
    return found


def beside(daemon: Running, cases: Sequence[Case], prompts: Prompts) -> Replies:
    """Eight at a time, some of them others."""
    found = Replies()
    with closing(Caller(daemon.socket)) as caller:
        for group in _groups(cases, LANES - NOISE):
            asked = _open(caller, group)
            _finish(daemon, asked, found, noise=_noise(caller, prompts, group))
            _record(caller, asked, found)
    return found


def cached_and_cut(daemon: Running, cases: Sequence[Case], dice: random.Random) -> tuple[Replies, Replies]:
    """From the cache, and cut by a limit and continued: at the same time, so that each is beside the other.

    Each prompt is computed just before, by a session that says one token.
    """
    cached, cut = Replies(), Replies()
    with closing(Caller(daemon.socket)) as caller:
        for group in _groups(cases, LANES // 2):
            with Crowd(daemon.socket) as crowd:
                for session, _case in _open(caller, group):
                    crowd.ask(session, 1)
                crowd.watch(seconds=WAIT_SECONDS)
            first, second = _open(caller, group), _open(caller, group)
            with Crowd(daemon.socket) as crowd:
                for session, case in second:
                    crowd.ask(session, dice.randrange(1, case.reply))
                whole = [crowd.ask(session, case.reply) for session, case in first]
                crowd.watch(seconds=WAIT_SECONDS)
            cached.warm += [stream.closed().warm_prefix for stream in whole]
            _record(caller, first, cached)
            cut.disturbed += len(second)
            _finish(daemon, second, cut)
            _record(caller, second, cut)
    return cached, cut


def killed(daemon: Running, cases: Sequence[Case], dice: random.Random, kill: Callable[[], None]) -> Replies:
    """Eight at a time; all that computes them is killed in the middle, once."""
    found = Replies()
    for group in _groups(cases, LANES):
        with closing(Caller(daemon.socket)) as caller:
            asked = _open(caller, group)
        with Crowd(daemon.socket) as crowd:
            streams = [crowd.ask(session, case.reply) for session, case in asked]
            # In the prefill of the later ones as well as in the replies of the first.
            threshold = dice.randrange(
                len(group), max(len(group) + 1, sum(case.reply for case in group) // 2)
            )
            crowd.watch(until=_reached(streams, threshold), seconds=WAIT_SECONDS)
            kill()
            crowd.watch(seconds=WAIT_SECONDS)
        found.disturbed += sum(stream.end is None and stream.count > 0 for stream in streams)
        _finish(daemon, asked, found)
        with closing(Caller(daemon.socket)) as caller:
            _record(caller, asked, found)
    return found


def parked(daemon: Running, cases: Sequence[Case], dice: random.Random) -> Replies:
    """Cut and sealed to files; the daemon ends in order, and the next one continues."""
    found = Replies(disturbed=len(cases))
    asked: list[tuple[int, Case]] = []
    for group in _groups(cases, LANES):
        with closing(Caller(daemon.socket)) as caller, Crowd(daemon.socket) as crowd:
            opened = _open(caller, group)
            for session, case in opened:
                crowd.ask(session, dice.randrange(1, case.reply))
            crowd.watch(seconds=WAIT_SECONDS)
            asked += opened
    daemon.stop()  # what is being sealed is sealed before it ends
    daemon.start()
    for some in _groups(asked, LANES):
        _finish(daemon, some, found)
    with closing(Caller(daemon.socket)) as caller:
        _record(caller, asked, found)
        resumed = sum(n for name, n in counters(caller).items() if name.startswith("resumes_total"))
    print(f"  resumed from files or after them: {resumed:.0f} of {len(cases)}", flush=True)
    return found


def _reached(streams: Sequence[Stream], tokens: int) -> Callable[[], bool]:
    return lambda: sum(stream.count for stream in streams) >= tokens


def _groups(cases: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(cases), size):
        print(f"  {start} of {len(cases)}", flush=True)
        yield cases[start : start + size]


def _open(caller: Caller, cases: Sequence[Case]) -> list[tuple[int, Case]]:
    return [(raw_session(caller, case.prompt, case.params), case) for case in cases]


def _noise(caller: Caller, prompts: Prompts, like: Sequence[Case]) -> list[tuple[int, int]]:
    """Sessions of other lengths than those beside them, each with the number of tokens that it is asked for."""
    dice = prompts.dice
    found = []
    for _ in range(NOISE):
        case = dice.choice(like)
        params = GenParams(temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, seed=dice.getrandbits(32))
        ids = prompts.prose(dice.randrange(8, len(case.prompt) + 8))
        found.append((raw_session(caller, ids, params), dice.randrange(1, case.reply + 1)))
    return found


def _finish(
    daemon: Running,
    asked: Sequence[tuple[int, Case]],
    found: Replies,
    *,
    noise: Sequence[tuple[int, int]] = (),
) -> None:
    """Continue each session, all at once, until its reply has all its tokens or the model ended it."""
    warm: dict[int, int] = {}
    for _ in range(CONTINUATIONS):
        with closing(Caller(daemon.socket)) as caller:
            left = {
                session: case.reply - len(stream_of(caller, session)) + len(case.prompt)
                for session, case in asked
                if not _ended(caller, session)
            }
        if not any(left.values()):
            break
        with Crowd(daemon.socket) as crowd:
            streams = [crowd.ask(session, tokens) for session, tokens in left.items() if tokens]
            for session, tokens in noise:
                crowd.ask(session, tokens)
            crowd.watch(seconds=WAIT_SECONDS)
        noise = ()
        for stream in streams:
            if stream.end is not None:
                warm.setdefault(stream.session, stream.end.warm_prefix)
    found.warm += [warm.get(session, 0) for session, _case in asked]


def _record(caller: Caller, asked: Sequence[tuple[int, Case]], found: Replies) -> None:
    for session, case in asked:
        stream = stream_of(caller, session)
        assert stream[: len(case.prompt)] == case.prompt
        found.ids.append(stream[len(case.prompt) :])


def _ended(caller: Caller, session: int) -> bool:
    """Whether the model ended the reply itself."""
    reply = caller.call(request.Inspect(session=session))
    assert isinstance(reply, response.Inspection)
    return reply.inspection.last_finish == numbers.Finish.END_OF_TURN
