"""Whether replies can be exact: the same bits whatever else the daemon computes.

What a model can do in the context that it is served in is measured, perhaps only now: `Exactness` may take long the first
time, and is quick afterwards.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from superfluid.core.errors import NotSupported


class Measured(Protocol):
    """What was measured of a model, as far as this layer asks."""

    @property
    def batch_invariant(self) -> bool | str:
        """True, or why not."""


Exactness = Callable[[], Awaitable[Measured]]


async def require_exact(exactness: Exactness) -> None:
    """Return where the model, as it is served, can be exact.

    Raises:
        NotSupported: It cannot; the text says why, and what would help.
    """
    found = (await exactness()).batch_invariant
    if found is not True:
        raise NotSupported(
            f"exact replies are not supported here: {found or 'nothing was measured'}; start with --exact, which tries "
            "other contexts too"
        )
