"""One vocabulary under several threads at once, as requests tokenise beside each other."""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from superfluid.worker.llama.models import find_model
from superfluid.worker.llama.vocab import Vocabulary

THREADS = 6

WORDS = [
    *("the", "quick", "brown", "fox,", "naïve", "café", "—", "数学", "🙂", "x=3.14"),
    *("<|im_start|>", "didn't\n\tif", "(a", "!=", "b)", "{", "return;", "}"),
]


def texts(seed):
    """Texts of both sides of each bound: remembered ones, brief ones, and long ones that let the other threads run."""
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.choice([1, 2, 20, 400, 3000]))) for _ in range(30)]


@pytest.fixture(params=["tiny", "smollm2"])
def path(request, tiny_model):
    return tiny_model if request.param == "tiny" else find_model("smollm2")


def test_threads_that_tokenise_beside_each_other_get_what_one_alone_gets(path):
    alone, shared = Vocabulary.load(path), Vocabulary.load(path)
    work = [[*texts("the same for all"), *texts(thread)] for thread in range(THREADS)]
    together = Barrier(THREADS)

    def answers(vocabulary, mine):
        ids = [vocabulary.tokenize(text, parse_special=bool(n % 2)) for n, text in enumerate(mine)]
        return ids, [b"".join(map(vocabulary.piece, some)) for some in ids]

    def beside(mine):
        together.wait()
        return answers(shared, mine)

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            got = list(pool.map(beside, work))
        expected = [answers(alone, mine) for mine in work]
    finally:
        alone.close()
        shared.close()

    assert got == expected
