"""Whose work the KV of a park file is, and what of that its name tells.

    MODEL SETTINGS exact=POSITIONS rows=ROWS/OUTPUTS

Model and settings decide whether a worker can read the file at all. How many rows were computed together does not: it
decides whether the leading *exact* positions are still taken for exact.
"""

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"(?P<identity>.*) exact=([0-9]{1,10}) rows=([0-9]{1,4})/([0-9]{1,4})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A worker, as far as it matters to those who find its files.

    Attributes:
        identity: Of model and settings.
        rows, outputs: What the rows of exact jobs are padded to (``Load.exact_rows`` and ``exact_outputs``). Nobody is
            served exactly before that padding was measured to make rows exact.
    """

    identity: str = ""
    rows: int = 1
    outputs: int = 1

    def name(self, exact: int) -> str:
        """The name of a file that this worker writes, of whose positions the first *exact* were computed exactly."""
        return f"{self.identity} exact={exact} rows={self.rows}/{self.outputs}"

    def trusted(self, name: str) -> int | None:
        """How many leading positions of a file are as exact as this worker would compute them; None if it cannot read
        it.

        Rows that were padded to whole groups of this worker's are. Those of a smaller padding were taken for exact once;
        what was measured since needs a larger one, so they were not.
        """
        found = _NAME.fullmatch(name)
        if found is None or found["identity"] != self.identity:
            return None
        exact, rows, outputs = (int(number) for number in found.groups()[1:])
        whole = rows > 0 and outputs > 0 and rows % self.rows == outputs % self.outputs == 0
        return exact if whole else 0
