"""Prompt-lookup drafting: guess the next tokens from the job's own text, and know when a guess pays.

A reply that repeats its prompt (a file rewritten, a quotation, a list carried on) repeats it token for token. The tokens
after the latest earlier occurrence of the last few are a good guess there, and cost a look into an index (Saxena 2023,
"Prompt Lookup Decoding"). Several guesses are verified by one call of the engine and accepted while they equal what is
sampled (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"): only the time differs.

Whether that pays depends on the machine: on a CPU a call of 8 rows takes 3 to 5 times as long as a call of one. So
``Costs`` learns what the calls of this worker take, ``Pace`` how often the guesses of this job are right, and a guess is
made only where the two say that it gains. A guess that is not made is watched all the same: whether it would have been
right is seen for nothing.

Pure: durations are arguments, and the unit of time does not matter.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from superfluid.core.limits import MAX_DRAFT, MAX_LOOKUP_TOKENS

SIZES: Final = (1, 3, 7, MAX_DRAFT)
"""Numbers of guesses that are told apart in costs: with the sampled token before them 2, 4, 8 and 16 rows, which are
multiples of the rows that exact jobs are padded to. A number between two of them counts as the larger."""

MARGIN: Final = 1.05
"""A guess has to promise this many times the speed of plain steps: what is learned is never quite true."""

ROW_PRIOR: Final = 0.4
"""What each row adds to a call is believed to be this share of a call of one row, until it has been measured. A little
too low for a CPU: a cost that is thought too high would never be measured."""

PLAIN_STEPS: Final = 4
"""Plain steps to see before the first guess: costs are told in them."""

FIRST_PAUSE: Final = 256
"""Plain steps until guesses that did not pay when they were measured are tried again; twice as many after each trial in
vain. A trial loses some steps, so that it costs far less than a hundredth."""

LAST_PAUSE: Final = 64 * FIRST_PAUSE
"""No pause is longer: a machine that was busy for an hour is not given up for ever."""

STREAKS: Final = (0, 1, 4, 16)
"""Text comes in runs: after so many right guesses in a row the next one is likelier right. Each class of streaks, named
by its least, has a share of its own."""

STREAK_PRIORS: Final = (0.1, 0.5, 0.7, 0.85)
"""Shares believed before anything was seen, with the weight of ``PRIOR_WEIGHT`` guesses."""

PRIOR_WEIGHT: Final = 4.0
MEMORY: Final = 0.95
"""Weight that a seen guess keeps at each later one of its class: about the last twenty count."""


class Lookup:
    """Finds where the last tokens of a text occurred before.

    Args:
        history: The text so far. Its last ``MAX_LOOKUP_TOKENS`` are looked in, and all that comes later.
    """

    def __init__(self, history: Iterable[int] = ()) -> None:
        self._ids = array("I", history)[-MAX_LOOKUP_TOKENS:]
        self._after: tuple[dict[int, int], ...] = ({}, {})
        self._indexed = 0
        self._next: int | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, token: int) -> None:
        """The text goes on with *token*. It is indexed when a guess is asked for, if ever."""
        if self._next is not None:
            self._next = self._next + 1 if self._ids[self._next] == token else None
        self._ids.append(token)

    def guess(self, most: int) -> list[int]:
        """Up to *most* tokens: what followed the latest earlier occurrence of the last three, or else two, tokens.

        An occurrence that the text has followed since it was found is followed further: there may be later ones of so few
        tokens, but none of them has so much before it in common. In code, where a few tokens occur again and again, that
        makes two thirds of the wrong guesses right.
        """
        self._index()
        if self._next is None:
            self._next = self._found()
        return [] if self._next is None else self._ids[self._next : self._next + most].tolist()

    def _found(self) -> int | None:
        ids, end = self._ids, len(self._ids)
        for n, after in zip((3, 2), self._after, strict=True):
            if end >= n and (start := after.get(_key(ids, end, n))) is not None:
                return start
        return None

    def _index(self) -> None:
        """Note each position under the tokens before it. The end of the text has no token after it yet."""
        ids, (threes, twos) = self._ids, self._after
        for position in range(max(self._indexed, 2), len(ids)):
            twos[_key(ids, position, 2)] = position
            if position > 2:
                threes[_key(ids, position, 3)] = position
        self._indexed = len(ids)


def _key(ids: Sequence[int], end: int, n: int) -> int:
    """The *n* tokens before *end* as one number: half the memory of a tuple."""
    key = ids[end - 2] << 32 | ids[end - 1]
    return key if n == 2 else ids[end - 3] << 64 | key


class Costs:
    """What calls take on this machine, in plain steps: one for all jobs that are computed alike.

    A plain step is known from the last few of them; a verification is measured against it, so that a machine that
    becomes slower makes both slower. While only guesses are made it is not seen: they then seem to cost more, plain steps
    come again, and set it right.

    Args:
        rows: What the rows of these jobs are filled up to a multiple of. Guesses in place of a plain step's dummies cost
            next to nothing.
    """

    def __init__(self, rows: int = 1) -> None:
        self._rows = rows
        self._plain = 0.0
        self._seen = 0
        self._steps: dict[int, float] = {}
        self._pause = FIRST_PAUSE
        self._probe_at = 0

    @property
    def known(self) -> bool:
        """Whether enough plain steps were seen."""
        return self._seen >= PLAIN_STEPS

    def note_plain(self, duration: float) -> None:
        """A plain step took *duration*. One that took far longer than those before it met other work: it counts as twice
        as long."""
        self._seen += 1
        self._plain = _smooth(self._plain, min(duration, 2 * self._plain) if self._plain else duration, 0.25)

    def note_guesses(self, guesses: int, duration: float) -> None:
        """A call that verified so many *guesses* took *duration*."""
        size = _size(guesses)
        before = self.steps(guesses)
        found = min(duration / self._plain, 2 * before) if self._plain else before
        # Other work on the machine can only add to a duration: a shorter one is nearer to the truth.
        self._steps[size] = _smooth(before, found, 0.5 if found < before else 0.25)

    def steps(self, guesses: int) -> float:
        """Plain steps that a verification of *guesses* takes, as it was measured or else is believed."""
        size = _size(guesses)
        return self._steps.get(size, self.believed(size))

    def believed(self, guesses: int) -> float:
        """Plain steps that it is thought to take before it was measured."""
        size = _size(guesses)
        filled = size + 1 + -(size + 1) % self._rows
        # A plain step of several rows takes longer than one of one row, by about half as many times.
        return 1 + ROW_PRIOR * (filled - self._rows) / max(1.0, self._rows / 2)

    def may_probe(self) -> bool:
        """Whether it is time to try what did not pay when it was measured."""
        return self._seen >= self._probe_at

    def note_paid(self, *, paid: bool) -> None:
        """Whether the guesses just measured paid. If not, such are left alone for a while, each time for longer."""
        if paid:
            self._pause = FIRST_PAUSE
        else:
            self._probe_at = self._seen + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)


class Pace:
    """How many guesses to make, by what they cost and how often this job's guesses are right."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._streak = 0
        self._right = [share * PRIOR_WEIGHT for share in STREAK_PRIORS]
        self._total = [PRIOR_WEIGHT] * len(STREAKS)

    def expected(self, guesses: int) -> float:
        """How many of the next *guesses* will be accepted."""
        chance, accepted = 1.0, 0.0
        for ahead in range(guesses):
            chance *= self.share(self._streak + ahead)
            accepted += chance
        return accepted

    def share(self, streak: int) -> float:
        """How often a guess is right after *streak* right ones."""
        kind = _kind(streak)
        return self._right[kind] / self._total[kind]

    def choose(self, available: int) -> int:
        """How many of *available* guesses to make now; 0 for a plain step."""
        if not self._costs.known or available < 1:
            return 0
        numbers = {min(size, available) for size in SIZES}
        speed = {number: 1 + self.expected(number) for number in numbers}
        best = max(numbers, key=lambda number: speed[number] / self._costs.steps(number))
        if speed[best] >= MARGIN * self._costs.steps(best):
            return best
        if self._costs.may_probe():
            hoped = max(numbers, key=lambda number: speed[number] / self._costs.believed(number))
            if speed[hoped] >= MARGIN * self._costs.believed(hoped):
                return hoped
        return 0

    def note_plain(self, *, right: bool | None, duration: float) -> None:
        """A plain step was made; whether the guess that was not made was *right*, or None if there was none."""
        self._costs.note_plain(duration)
        if right is None:
            self._streak = 0
        else:
            self._note(right=right)

    def note_guesses(self, guesses: int, accepted: int, duration: float) -> None:
        """A call verified so many *guesses*, of which the first *accepted* were right."""
        self._costs.note_guesses(guesses, duration)
        self._costs.note_paid(paid=1 + self.expected(guesses) >= MARGIN * self._costs.steps(guesses))
        for _ in range(accepted):
            self._note(right=True)
        if accepted < guesses:
            self._note(right=False)

    def _note(self, *, right: bool) -> None:
        kind = _kind(self._streak)
        self._right[kind] = MEMORY * self._right[kind] + right
        self._total[kind] = MEMORY * self._total[kind] + 1
        self._streak = self._streak + 1 if right else 0


class Drafter:
    """Guesses for one job: what to guess, and whether to.

    The order of calls is ``propose``, ``extend`` for each token that came of it, ``settle``.
    """

    def __init__(self, history: Iterable[int], costs: Costs) -> None:
        self._lookup = Lookup(history)
        self._pace = Pace(costs)
        self._watched: list[int] = []

    def extend(self, token: int) -> None:
        """The job generated *token*."""
        self._lookup.extend(token)

    def propose(self, most: int) -> list[int]:
        """The tokens to verify now, at most *most*; none for a plain step."""
        self._watched = self._lookup.guess(min(most, MAX_DRAFT))
        return self._watched[: self._pace.choose(len(self._watched))]

    def settle(self, made: Sequence[int], tokens: Sequence[int], duration: float) -> int:
        """The call with the guesses *made* gave *tokens* and took *duration*; returns how many guesses were right."""
        if made:
            accepted = next(
                (at for at, pair in enumerate(zip(made, tokens, strict=False)) if pair[0] != pair[1]),
                min(len(made), len(tokens)),
            )
            self._pace.note_guesses(len(made), accepted, duration)
            return accepted
        right = self._watched[0] == tokens[0] if self._watched and tokens else None
        self._pace.note_plain(right=right, duration=duration)
        return 0


def _size(guesses: int) -> int:
    """The class of *guesses* in costs."""
    return next((size for size in SIZES if size >= guesses), SIZES[-1])


def _kind(streak: int) -> int:
    """The class of *streak*."""
    return sum(least <= streak for least in STREAKS) - 1


def _smooth(before: float, found: float, weight: float) -> float:
    return before + weight * (found - before) if before else found
