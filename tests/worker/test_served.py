"""What the scheduler's decisions come to on tiny random models through the real llama.cpp: what is warm, and that the
reply is the one of a fresh context whatever it was built on."""

import pytest

from tests.worker.builders import fresh
from tests.worker.served import serving


def text(length, seed):
    return [(seed * i + 3 * seed) % 250 for i in range(length)]


def test_an_edit_far_back_goes_on_from_the_nearest_checkpoint_before_it(tiny_window_model):
    """Field case F10: models with a sliding window were prefilled from the start after any cut, since all checkpoints
    were thrown away first."""
    turns = [text(100, 7), text(110, 11), text(120, 13)]
    stream, ends = [], []
    with serving(tiny_window_model, lanes=1, kept=1) as served:
        for number, turn in enumerate(turns, 1):
            stream += turn
            ends.append(len(stream))
            reply, _ = served.ask(number, stream, boundaries=tuple(ends))
            stream += reply
            ends.append(len(stream))
        cut = len(stream) * 2 // 5
        rows = served.rows
        edited = [*stream[:cut], *text(60, 17)]
        reply, warm = served.ask(4, edited, limit=10)
        earlier, warm_earlier = served.ask(5, [*stream[:102], *text(60, 19)], limit=10)

    assert served.engine.ready.cuts == "window"
    assert ends[0] - 1 <= warm <= cut
    assert warm in (ends[1], ends[1] - 1), "where the turn before the edited one ended"
    assert served.rows - rows <= (len(edited) - warm) + (162 - warm_earlier)
    assert reply == fresh(tiny_window_model, edited, limit=10)
    assert warm_earlier == 99, "checkpoints before the cut are kept"
    assert earlier == fresh(tiny_window_model, [*stream[:102], *text(60, 19)], limit=10)


@pytest.mark.parametrize("kept", [0, 1], ids=["from host memory", "from the pool"])
def test_a_long_chat_beside_a_short_call_of_somebody_else_stays_warm(any_model, kept):
    """Field case F17: another client's options, or its request alone, made the long chat cold."""
    chat = text(400, 7)
    with serving(any_model, kept=kept) as served:
        first, _ = served.ask(1, chat, session=1)
        stranger, _ = served.ask(
            2, text(20, 13), limit=8, qos=0, session=2, params={"temperature": 1.5, "top_k": 3, "seed": 9}
        )
        more = [*chat, *first, *text(10, 11)]
        rows = served.rows
        reply, warm = served.ask(3, more, session=1, limit=10)

    assert len(stranger) == 8
    assert warm == len(chat) + len(first) - 1
    assert served.rows - rows == len(more) - warm
    assert reply == fresh(any_model, more, limit=10)


def test_ten_forks_at_once_compute_only_what_is_their_own(tiny_model):
    """Field case F91: a fork paid for the whole prefill."""
    parent = text(400, 7)
    with serving(tiny_model, lanes=4, kept=2) as served:
        reply, _ = served.ask(1, parent, session=1)
        parent += reply
        rows = served.rows
        forks = {number: [*parent, number] for number in range(10, 20)}
        for number, prompt in forks.items():
            served.submit(number, prompt, session=number)
        served.drain()
        rows = served.rows - rows
        again, warm = served.ask(2, [*parent, 9], session=1)

    assert rows < 100
    assert min(served.ends[number].warm for number in forks) == len(parent) - 1
    for number in (10, 19):
        assert served.replies[number] == fresh(tiny_model, forks[number], limit=5)
    assert warm >= len(parent) - 1, "the parent still hits"
    assert again == fresh(tiny_model, [*parent, 9], limit=5)
