"""The book of pins: which prefixes evictions have to leave alone as long as they can, and until when.

A pin keeps the tokens that its session had when it was pinned. All pins together may hold so many *distinct* tokens as
the budget says: forks share what they share. A new one takes the place of the oldest ones when it needs it, which then
yield: their KV stays where it is, and goes as anything else does when room is needed.

A pin does not make KV. What of a pinned prefix is held, and where, the cache knows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from superfluid.core.errors import PinBudget
from superfluid.core.ids import TokenIds
from superfluid.core.limits import MAX_PINS
from superfluid.core.prefix import PrefixIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One session's pin.

    Attributes:
        stream: The session's tokens when it was pinned; a copy.
        deadline_ms: Until when it holds, in Unix milliseconds.
        order: Rises from pin to pin; the lowest is the oldest, and yields first.
    """

    session: int
    stream: TokenIds
    deadline_ms: int
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What a new pin did to the others, oldest first.

    Attributes:
        yielded: Sessions whose pins gave way to it.
        expired: Sessions whose pins were over.
    """

    yielded: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """All of a pin but its tokens, which the index holds."""

    deadline_ms: int
    order: int


class Pins:
    """The pins of one model's sessions.

    Args:
        budget_tokens: Distinct tokens that all pins together may hold.

    Attributes:
        yielded: Pins that gave way to newer ones, since the start.
        expired: Pins that ended by their deadline, since the start.
    """

    def __init__(self, budget_tokens: int) -> None:
        self.budget_tokens = budget_tokens
        self.yielded = 0
        self.expired = 0
        self._order = 0
        # Oldest first: whoever pins again goes to the end.
        self._terms: dict[int, _Term] = {}
        self._streams = PrefixIndex()

    def __len__(self) -> int:
        return len(self._terms)

    def __contains__(self, session: int) -> bool:
        return session in self._terms

    @property
    def tokens(self) -> int:
        """Distinct tokens that the pins hold now; never more than the budget."""
        return self._streams.tokens

    def check(self, tokens: int) -> None:
        """Whether a pin of so many tokens can be granted at all: to be asked before a pin is made durable.

        Raises:
            PinBudget: It is larger than the whole budget.
        """
        if tokens > self.budget_tokens:
            raise PinBudget(tokens, self.budget_tokens)

    def put(self, session: int, stream: TokenIds, deadline_ms: int, now_ms: int) -> Granted:
        """Pin a session's tokens. A pin that it has already is replaced and counts as new; a deadline that is not ahead
        takes it away.

        Raises:
            PinBudget: It is larger than the whole budget. Nothing was changed: a pin that the session has stays.
        """
        if deadline_ms <= now_ms:
            self.drop(session)
            return Granted(expired=self.expire(now_ms))
        self.check(len(stream))
        self.drop(session)
        over = self.expire(now_ms)
        self._order += 1
        self._terms[session] = _Term(deadline_ms=deadline_ms, order=self._order)
        self._streams.put(session, stream)
        gone: list[int] = []
        # It ends before the new one's turn comes, which fits alone.
        while self.tokens > self.budget_tokens or len(self) > MAX_PINS:
            oldest = next(iter(self._terms))
            self.drop(oldest)
            gone.append(oldest)
        self.yielded += len(gone)
        return Granted(yielded=tuple(gone), expired=over)

    def expire(self, now_ms: int) -> tuple[int, ...]:
        """Take away the pins whose deadline is not ahead any more; their sessions, oldest pin first."""
        over = tuple(session for session, term in self._terms.items() if term.deadline_ms <= now_ms)
        for session in over:
            self.drop(session)
        self.expired += len(over)
        return over

    def drop(self, session: int) -> bool:
        """Take a session's pin away, if it has one: it was unpinned, or purged. Whether there was one."""
        if self._terms.pop(session, None) is None:
            return False
        self._streams.remove(session)
        return True

    def protects(self) -> Iterator[Pin]:
        """The pins, oldest first. No pin may be put or taken away before the iterator is done with."""
        for session, term in self._terms.items():
            yield Pin(
                session=session,
                stream=self._streams.stream(session),
                deadline_ms=term.deadline_ms,
                order=term.order,
            )
