"""When a commit is done inline, and when in a thread."""

from superfluid.core.pace import FAST_RUN, FAST_SECONDS, SMALL_BYTES, Pace


def paced(*seconds: float) -> Pace:
    pace = Pace()
    for duration in seconds:
        pace.note(duration)
    return pace


def test_a_disk_is_believed_to_be_fast_only_after_a_run_of_fast_commits():
    assert not paced().inline(commands=1, size=1)
    assert not paced(*[FAST_SECONDS] * (FAST_RUN - 1)).inline(commands=1, size=1)
    assert paced(*[FAST_SECONDS] * FAST_RUN).inline(commands=1, size=1)


def test_one_slow_commit_ends_it_until_there_was_another_run():
    slow = [0.0] * FAST_RUN + [FAST_SECONDS * 1.01]

    assert not paced(*slow).inline(commands=1, size=1)
    assert not paced(*slow, *[0.0] * (FAST_RUN - 1)).inline(commands=1, size=1)
    assert paced(*slow, *[0.0] * FAST_RUN).inline(commands=1, size=1)


def test_only_a_lone_small_command_is_done_inline():
    pace = paced(*[0.0] * FAST_RUN)

    assert pace.inline(commands=1, size=SMALL_BYTES)
    assert not pace.inline(commands=1, size=SMALL_BYTES + 1)
    assert not pace.inline(commands=2, size=2)
