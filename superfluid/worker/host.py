"""KV in host memory: exported states of sequences, each by the number that the scheduler gave it.

An entry is never changed: whoever holds one may read it for as long as it likes, whatever is dropped meanwhile.
"""

from dataclasses import dataclass
from threading import Lock

from superfluid.worker.llama.context import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The state of a sequence of so many positions."""

    positions: int
    state: State


class HostMemory:
    """The entries of one worker. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: dict[int, Entry] = {}

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def get(self, number: int) -> Entry | None:
        """The entry of this number, if there is one."""
        with self._lock:
            return self._entries.get(number)

    def put(self, number: int, entry: Entry) -> bool:
        """Keep *entry*. False: the number is taken, and nothing was changed."""
        with self._lock:
            return self._entries.setdefault(number, entry) is entry

    def drop(self, number: int) -> None:
        """Forget an entry. One that is not there is ignored."""
        with self._lock:
            self._entries.pop(number, None)
