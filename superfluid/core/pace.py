"""Whether a commit is worth a thread: a pure rule over what the last ones took.

A commit blocks. On a fast disk it takes less than handing it to a thread and back, and a lone small one may as well be
done where it is decided. On a slow disk, or with much to write, nobody else may wait for it. The disk is believed to be
fast only after a run of fast commits, and no longer after the first slow one: that one alone can hold others up.
"""

from dataclasses import dataclass
from typing import Final

FAST_SECONDS: Final = 0.002
"""A commit up to this long holds nobody up noticeably; handing it over takes about 0.1 ms."""

FAST_RUN: Final = 16
"""So many fast commits in a row make a disk a fast one again."""

SMALL_BYTES: Final = 64 * 1024
"""More than this is always written in a thread."""


@dataclass(slots=True)
class Pace:
    """What is remembered of the last commits."""

    fast: int = 0

    def note(self, seconds: float) -> None:
        """Take the duration of a commit into account."""
        self.fast = self.fast + 1 if seconds <= FAST_SECONDS else 0

    def inline(self, *, commands: int, size: int) -> bool:
        """Whether a batch may be written right here.

        Args:
            commands: In the batch. More than one means that several clients wait, and more are coming.
            size: Encoded bytes.
        """
        return commands == 1 and size <= SMALL_BYTES and self.fast >= FAST_RUN
