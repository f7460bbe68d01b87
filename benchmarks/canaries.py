"""Whether the cache ever serves one session's KV to another: random conversations, each with a code word of its own.

The model is asked for its code word again and again, over a pool and a host memory that are much too small, with forks,
edits, evictions, restores and restarts between. A word that stands nowhere in a session's own text must never be in its
replies. That a reply is the same cold and warm is not asked for: without exact mode, bits depend on the batch. What
else is held against the daemon: the ids in the log stay what they were and are those of the events, and no more of a
prompt is warm than it has in common with something that ran before.

    python -m benchmarks.canaries [--conversations N] [--seed N] [--json FILE]
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path

from benchmarks.daemon import WARM_UP, Running, Serve, end_in_order, serving
from benchmarks.load import GREEDY, Caller
from benchmarks.streams import Crowd, Stream, counters, stream_of
from benchmarks.verdict import Verdict, as_json
from superfluid.worker.llama.models import EMBEDDED
from superfluid_protocol import EventMsg, event, numbers, request, response

REPLY = 16
TOGETHER = 3
"""Most sessions that are asked at once: one more than there are lanes."""

SMALL = (
    *("--max-context", "512", "--max-batch", "2", "--kept-sequences", "1"),
    # Some three conversations of the embedded model.
    *("--host-memory-gb", "0.012", "--park", "--coalesce-min", "16"),
)

KNOWN = (
    "The secret code word is {word}. Always answer with the code word.",
    "You are a patient assistant who answers in one short sentence. The code word of this conversation is {word}.",
    "The code word is {word}.",
)
ASKED = (
    "What is the code word?",
    "Repeat the code word.",
    "Please tell me the code word once more, and nothing else.",
    "I have forgotten it. Which word was the code word?",
)
_SYLLABLES = (
    "zor",
    "vin",
    "tak",
    "mel",
    "quan",
    "dor",
    "bri",
    "fep",
    "lus",
    "gra",
    "ood",
    "nix",
    "hul",
    "wem",
    "jas",
)


@dataclass(kw_only=True)
class Found:
    """What was seen.

    Attributes:
        leaks: (session, word) of every foreign code word in a reply.
        rewritten: Sessions whose ids were not what they had been, or not those of their events.
        untrue: (session, warm, in common) where more was said to be warm than ran before.
        told: Replies with the session's own word in it.
        metrics: The daemon's counters, those of all runs added up.
    """

    replies: int = 0
    told: int = 0
    warm: int = 0
    forks: int = 0
    edits: int = 0
    restarts: int = 0
    leaks: list[tuple[int, str]] = field(default_factory=list)
    rewritten: list[int] = field(default_factory=list)
    untrue: list[tuple[int, int, int]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


class Walk:
    """Random conversations on one daemon. *conversations* counts them, forks included."""

    def __init__(self, daemon: Running, dice: random.Random, conversations: int) -> None:
        self.found = Found()
        self._daemon = daemon
        self._dice = dice
        self._left = conversations
        self._caller = Caller(daemon.socket)
        self._words: set[str] = set()
        self._sessions: list[int] = []
        self._streams: dict[int, list[int]] = {}
        self._ran: list[list[int]] = [list(WARM_UP)]

    def run(self) -> Found:
        """Until there are as many conversations as asked for, and some turns of the older ones between."""
        restart_every = max(8, self._left // 5)
        turns = 0
        while self._left > 0:
            self._ask([self._next() for _ in range(self._dice.randint(1, TOGETHER))])
            turns += 1
            if turns % restart_every == 0:
                self._restart()
        self._count()
        self._caller.close()
        return self.found

    def _next(self) -> int:
        """A session with something to answer: a new one, a fork, an edited one, or an old one that goes on."""
        new = not self._sessions or self._dice.random() < 0.35
        if new:
            session = self._caller.create(GREEDY)
            self._system(session)
        else:
            session = self._old()
        self._say(session, numbers.Role.USER, self._dice.choice(ASKED))
        return session

    def _old(self) -> int:
        session = self._dice.choice(self._sessions[-12:])
        events = self._events(session)
        what = self._dice.random()
        if what < 0.4 and len(self._streams[session]) < 300:
            return session
        if what < 0.7:
            self.found.forks += 1
            return self._fork(session, len(events))
        # Everything from one of its messages on is replaced: the system message's word as well, when it is the first.
        self.found.edits += 1
        messages = [m.event_id for m in events if isinstance(m.body, event.Message)]
        at = self._dice.choice(messages)
        branch = self._fork(session, at)
        if at == messages[0]:
            self._system(branch)
        return branch

    def _fork(self, session: int, at: int) -> int:
        made = self._caller.call(request.Fork(session=session, at_event=at, params=GREEDY))
        assert isinstance(made, response.Created)
        return made.session

    def _system(self, session: int) -> None:
        word = self._word()
        self._say(session, numbers.Role.SYSTEM, self._dice.choice(KNOWN).format(word=word))

    def _say(self, session: int, role: numbers.Role, text: str) -> None:
        self._caller.call(request.AppendMessage(session=session, role=int(role), text=text))

    def _word(self) -> str:
        while True:
            word = "".join(self._dice.sample(_SYLLABLES, 4))
            if word not in self._words:
                self._words.add(word)
                return word

    def _ask(self, sessions: Sequence[int]) -> None:
        asked = list(dict.fromkeys(sessions))
        before = {session: stream_of(self._caller, session) for session in asked}
        for session in asked:
            if session not in self._streams:
                self._left -= 1
                self._sessions.append(session)
        with Crowd(self._daemon.socket) as crowd:
            streams = [crowd.ask(session, REPLY) for session in asked]
            crowd.watch()
        for session in asked:
            self._streams[session] = stream_of(self._caller, session)
        for stream in streams:
            self._check(stream, before[stream.session], asked)
        self._ran += [self._streams[session] for session in asked]

    def _check(self, stream: Stream, before: list[int], asked: Sequence[int]) -> None:
        session, end = stream.session, stream.closed()
        events = self._events(session)
        now = self._streams[session]
        if now[: len(before)] != before or now != _spans(events):
            self.found.rewritten.append(session)
        prompt = now[: len(now) - end.tokens_generated]
        others = [self._streams[other] for other in asked if other != session]
        common = max((_common(prompt, ran) for ran in [*self._ran, *others]), default=0)
        if end.warm_prefix > common:
            self.found.untrue.append((session, end.warm_prefix, common))
        own = " ".join(m.body.text for m in events if isinstance(m.body, event.Message))
        reply = _text(end.events)
        known = {word for word in self._words if word in own}
        self.found.replies += 1
        self.found.told += any(word in reply for word in known)
        self.found.warm += end.warm_prefix > 0
        self.found.leaks += [(session, word) for word in self._words - known if word in reply]

    def _restart(self) -> None:
        self._count()
        self._caller.close()
        self._daemon.stop()
        self._daemon.start()
        self._caller = Caller(self._daemon.socket)
        self.found.restarts += 1
        for session, stream in self._streams.items():
            if stream_of(self._caller, session) != stream:
                self.found.rewritten.append(session)

    def _count(self) -> None:
        for name, value in counters(self._caller).items():
            if "_total" in name:
                self.found.metrics[name] = self.found.metrics.get(name, 0.0) + value

    def _events(self, session: int) -> list[EventMsg]:
        reply = self._caller.call(request.Read(session=session, cursor=0))
        assert isinstance(reply, response.Events)
        return list(reply.events)


def walk(serve: Serve, *, conversations: int, seed: int) -> Found:
    """Walk once over a daemon with far too little room."""
    with serve(*SMALL) as daemon:
        daemon.warm_up()
        return Walk(daemon, random.Random(seed), conversations).run()


def run(*, model: str = EMBEDDED, conversations: int = 200, seed: int = 1, threads: int = 0) -> list[Verdict]:
    """Walk, and judge."""
    print(f"seed of the conversations: {seed}")
    found = walk(partial(serving, model, "--threads", str(threads)), conversations=conversations, seed=seed)
    raw = asdict(found)
    seen = (
        f"{conversations} conversations, {found.forks} forks, {found.edits} edits, {found.restarts} restarts, "
        f"{found.replies} replies, {found.warm} of them warm"
    )
    return [
        Verdict(
            what=f"code words of another session in a reply ({seen})",
            target="none",
            figure=f"{len(found.leaks)}; the own word in {found.told} replies",
            met=not found.leaks and found.told > found.replies // 4,
            raw=raw,
        ),
        Verdict(
            what="sessions whose prompt ids are not as logged",
            target="none",
            figure=str(len(found.rewritten)),
            met=not found.rewritten,
        ),
        Verdict(
            what="replies with more warm than anything before had in common",
            target="none",
            figure=str(len(found.untrue)),
            met=not found.untrue,
        ),
    ]


def _spans(events: Sequence[EventMsg]) -> list[int]:
    return [token for message in events for token in getattr(message.body, "span", ())]


def _text(events: Sequence[EventMsg]) -> str:
    return "".join(m.body.text for m in events if isinstance(m.body, event.Generated))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def main() -> None:
    """Walk, print the verdicts, and end with 1 when one is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0 takes the machine's cores")
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    options = parser.parse_args()
    end_in_order()
    verdicts = run(
        model=options.model,
        conversations=options.conversations,
        seed=options.seed,
        threads=options.threads,
    )
    for verdict in verdicts:
        print(verdict.line())
    if options.json:
        options.json.write_text(json.dumps(as_json(verdicts), indent=1) + "\n")
    if not all(verdict.met for verdict in verdicts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
