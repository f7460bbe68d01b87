"""A standard stream whose reader may leave, or stay and read nothing: nobody who writes to it ever waits.

A pipe that a collector stopped reading, or a terminal after Ctrl-S, takes no more bytes, and a write to it waits for as
long as that lasts. Inside the daemon's one event loop it would hold up every session, and the end of the daemon too. So
text goes into a queue with a bound, and a thread of its own waits in the writes.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from superfluid.core.limits import MAX_OUTPUT_BACKLOG_BYTES, OUTPUT_FLUSH_SECONDS


class Outlet:
    """Text to a descriptor, from any thread, without waiting.

    A text that finds the queue full is dropped and counted, and so are those after it until half of the queue is written:
    then their number is said, in their place. A stream whose reader has left loses everything, which is no error: a line
    of the log is never worth the end of what it tells of.

    Args:
        fd: Where text goes. It is not closed here.
        tell_dropped: Makes the text that says how many texts were dropped.
    """

    def __init__(self, fd: int, *, tell_dropped: Callable[[int], str] = lambda _count: "") -> None:
        self._fd = fd
        self._tell_dropped = tell_dropped
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        # A daemon: while it waits in a write, it must not hold up the end of the interpreter. It writes to the bare
        # descriptor, so that the interpreter finds no lock of a Python stream taken when it ends.
        self._thread = threading.Thread(target=self._run, name=f"outlet-{fd}", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue *text*, whole, or drop it."""
        data = text.encode(errors="replace")
        with self._changed:
            if self._dropped or self._waiting_bytes + len(data) > MAX_OUTPUT_BACKLOG_BYTES:
                self._dropped += 1
            else:
                self._put(data)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: the thread writes as soon as the stream takes bytes."""

    def drain(self, seconds: float = OUTPUT_FLUSH_SECONDS) -> bool:
        """Wait until everything is written, but not longer than *seconds*; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes, seconds)

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self._waiting_bytes += len(data)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                data = self._queue.popleft()
            with suppress(OSError):
                self._write_all(data)
            with self._changed:
                self._waiting_bytes -= len(data)
                if self._dropped and self._waiting_bytes <= MAX_OUTPUT_BACKLOG_BYTES // 2:
                    dropped, self._dropped = self._dropped, 0
                    self._put(self._tell_dropped(dropped).encode())
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Whoever shares the stream with us made it one that does not wait.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
