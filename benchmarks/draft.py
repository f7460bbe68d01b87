"""Guessing from the job's own text, and exact rows: what they gain and cost in the worker, against plain decoding.

Two runs are compared at a time, round by round and in turns of who begins, on one engine and from the same prefilled
prompt: only the decode calls are timed. The tokens of both are compared, too.

    python -m benchmarks.draft [--rounds N] [--tokens N] [--threads N]
"""

import argparse
import os
import statistics
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np

from superfluid.core.plan import Admit, Move, MoveKind, Plan
from superfluid.worker.engine import Engine
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid.worker.llama.vocab import Vocabulary
from superfluid.worker.messages import Load

TOKENS = 128
CONTEXT = 2048
LANES = (1, 8)
EXACT_ROWS = 2
"""Of a sequence together, that make the embedded model's rows exact."""

CODE = """
class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        if amount > self.balance:
            raise ValueError("the balance is too low")
        self.balance = self.balance - amount
        return self.balance

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)
        return self.balance
"""
REWRITE = f"Rewrite this code. Rename the class to BankAccount, and change nothing else.\n```python{CODE}```"
CHATS = (
    "I have a free day tomorrow and the weather will be bad. What could I do at home?",
    "Tell me a story about a lighthouse keeper and a whale.",
    "Why is the sky blue, and why is it red in the evening?",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two ways to decode the same prompts: each has the fields of an `Admit` that it adds."""

    name: str
    prompts: tuple[str, ...]
    lanes: int = 1
    temperature: float = 0.0
    plain: dict[str, bool]
    other: dict[str, bool]


@dataclass(kw_only=True)
class Row:
    """What a case took: microseconds of decoding a token, round by round; and how often the tokens were the same."""

    case: Case
    plain: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    same: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios of speed: above 1, the other way is faster."""
        return statistics.median(plain / other for plain, other in zip(self.plain, self.other, strict=True))


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """One run."""

    tokens: tuple[bytes, ...]
    microseconds: float
    drafted: int
    accepted: int


DRAFT, EXACT, EXACT_DRAFT = {"draft": True}, {"exact": True}, {"exact": True, "draft": True}

CASES = (
    Case(name="rewrite this code", prompts=(REWRITE,), plain={}, other=DRAFT),
    Case(name="rewrite this code, exact", prompts=(REWRITE,), plain=EXACT, other=EXACT_DRAFT),
    Case(name="free chat", prompts=CHATS, temperature=0.8, plain={}, other=DRAFT),
    Case(name="free chat, exact", prompts=CHATS, temperature=0.8, plain=EXACT, other=EXACT_DRAFT),
    *(
        Case(name=f"exact rows, {lanes} lanes", prompts=CHATS, lanes=lanes, plain={}, other=EXACT)
        for lanes in LANES
    ),
)


class Bench:
    """One engine; the last sequence is where prompts are prefilled, the others decode copies of it."""

    def __init__(self, model: Path, *, threads: int) -> None:
        self._kept = max(LANES)
        self._engine = Engine.open(
            Load(
                model_path=str(model),
                n_ctx=CONTEXT,
                n_seq=max(LANES) + 1,
                threads=threads,
                exact_rows=EXACT_ROWS,
            )
        )
        self._vocabulary = Vocabulary.load(model)
        self._jobs = count(1)

    def close(self) -> None:
        """Free both."""
        self._engine.close()
        self._vocabulary.close()

    def compare(self, case: Case, *, rounds: int, tokens: int) -> Row:
        """Both ways, interleaved."""
        row = Row(case=case)
        for number in range(rounds):
            prompt = self._prefill(case.prompts[number % len(case.prompts)])
            found: dict[bool, Decoded] = {}
            for plain in (True, False) if number % 2 else (False, True):
                found[plain] = self._decode(case, prompt, tokens, plain=plain, seed=number)
            for plain, times in ((True, row.plain), (False, row.other)):
                times.append(found[plain].microseconds / sum(map(len, found[plain].tokens)) * 4)
            row.same += found[True].tokens == found[False].tokens
            row.drafted += found[False].drafted
            row.accepted += found[False].accepted
        return row

    def _prefill(self, text: str) -> list[int]:
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        prompt = self._vocabulary.tokenize(chat, parse_special=True)
        job = next(self._jobs)
        new = _admit(job, self._kept, prompt, start=0, limit=1, exact=True)
        self._engine.run(Plan(id=job, admit=(new,), prefill=((job, len(prompt)),)))
        return prompt

    def _decode(self, case: Case, prompt: list[int], tokens: int, *, plain: bool, seed: int) -> Decoded:
        jobs = [next(self._jobs) for _ in range(case.lanes)]
        warm = len(prompt) - 1
        begun = self._engine.run(
            Plan(
                id=jobs[0],
                moves=tuple(
                    Move(kind=MoveKind.COPY, seq=self._kept, dst=seq, n=warm) for seq in range(case.lanes)
                ),
                admit=tuple(
                    _admit(
                        job,
                        seq,
                        prompt,
                        start=warm,
                        limit=tokens,
                        temperature=case.temperature,
                        seed=100 * seed + seq,
                        **(case.plain if plain else case.other),
                    )
                    for seq, job in enumerate(jobs)
                ),
                prefill=tuple((job, 1) for job in jobs),
            )
        )
        result = self._engine.run(Plan(id=jobs[0] + 1, decode_rounds=tokens))
        self._engine.run(Plan(id=jobs[0] + 2, retire=tuple(jobs)))
        lines = {line.job: line.tokens for line in begun.jobs}
        for line in result.jobs:
            lines[line.job] += line.tokens
        return Decoded(
            tokens=tuple(lines[job] for job in jobs),
            microseconds=result.decode_us,
            drafted=result.drafted,
            accepted=result.accepted,
        )


def _admit(
    job: int,
    seq: int,
    prompt: list[int],
    *,
    start: int,
    limit: int,
    temperature: float = 0.0,
    seed: int = 1,
    exact: bool = False,
    draft: bool = False,
) -> Admit:
    packed = np.array(prompt, "<u4")
    return Admit(
        job=job,
        seq=seq,
        start=start,
        tokens=packed[start:].tobytes(),
        history=packed[:start].tobytes() if draft else b"",
        limit=limit,
        temperature=temperature,
        top_p=1.0,
        min_p=0.0,
        top_k=0,
        seed=seed,
        exact=exact,
        draft=draft,
    )


def compare(model: Path, *, rounds: int, tokens: int = TOKENS, threads: int | None = None) -> list[Row]:
    """All cases on one engine, each warmed up by a round that does not count."""
    with closing(Bench(model, threads=threads or os.cpu_count() or 1)) as bench:
        for case in CASES:
            bench.compare(case, rounds=1, tokens=tokens)
        return [bench.compare(case, rounds=rounds, tokens=tokens) for case in CASES]


def main() -> None:
    """Print the speed of each case against plain decoding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens a lane")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    rows = compare(
        find_model(options.model), rounds=options.rounds, tokens=options.tokens, threads=options.threads
    )
    for row in rows:
        print(
            f"{row.case.name:26} ratio {row.ratio:.2f}   {statistics.median(row.plain) / 1000:.1f} -> "
            f"{statistics.median(row.other) / 1000:.1f} ms a token   same tokens {row.same} of {len(row.plain)}   "
            f"guesses {row.accepted} of {row.drafted} right"
        )


if __name__ == "__main__":
    main()
