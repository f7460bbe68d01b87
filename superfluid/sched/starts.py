"""What comes of starting workers: how long to wait before the next start, and what jobs are told while none works."""

from typing import Final

import structlog
import trio

from superfluid.core.errors import ShuttingDown, StartError, WorkerStartFailed
from superfluid.sched.status import Status

RESPAWN_FIRST_SECONDS: Final = 0.1
RESPAWN_MOST_SECONDS: Final = 10.0
"""Back-off between respawns: the first is at once for a client, and a worker that dies at every start does not keep
two cores busy with loading. One that carried out a plan starts the back-off anew: what killed it was no fault of
the start, and a job that kills its worker costs one respawn each time somebody asks for it."""

UNSTARTABLE_MOST_SECONDS: Final = 60.0
"""Back-off between starts that fail for a reason of their own, which costs the loading of a model each time. Somebody who
asks meanwhile shortens it to ``RESPAWN_MOST_SECONDS``."""

HEALTHY_SECONDS: Final = 30.0
"""A worker that lived this long, without anything to do, starts the back-off anew too."""

_log = structlog.get_logger(target=__name__)


class Starts:
    """The starts of one engine's workers."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._refusal: StartError | None = None
        """Why the last start failed; None once one worked, or was lost on the way."""
        self._wanted = trio.Event()
        """Somebody asked for what was refused."""
        self._closed = trio.Event()
        self._delay = RESPAWN_FIRST_SECONDS

    def closed(self) -> bool:
        """Whether no worker is to be started any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """Start no worker any more, and refuse new jobs."""
        self._closed.set()
        self._wanted.set()

    def begin(self) -> None:
        """A worker is being started."""
        self._wanted = trio.Event()

    def worked(self, worker: int) -> None:
        """It is ready."""
        if self._refusal is not None:
            _log.info("a worker could be started again", worker=worker)
            self._refusal = None

    def failed(self, failure: StartError) -> str:
        """It cannot be started. Returns what to tell those who wait."""
        if self._refusal is None or str(self._refusal) != str(failure):
            _log.error("no worker can be started", reason=str(failure))
        self._refusal = failure
        return self._why_refused(failure)

    def lost(self, *, healthy: bool) -> None:
        """It is gone. What the start fails for, if it still does, is for the next one to say; until then jobs wait.

        Args:
            healthy: It did what it was started for, or could have.
        """
        self._refusal = None
        if healthy:
            self._delay = RESPAWN_FIRST_SECONDS

    def check_open(self) -> None:
        """Return if a worker works or is expected.

        Raises:
            WorkerStartFailed: The last one could not be started.
            ShuttingDown: There will be none any more.
        """
        if self._refusal is not None:
            self._wanted.set()
            kind = self._refusal.kind if isinstance(self._refusal, WorkerStartFailed) else "engine"
            raise WorkerStartFailed(kind, self._why_refused(self._refusal)) from self._refusal
        if self.closed():
            raise ShuttingDown("the daemon is ending; try again after its restart")

    async def pause(self) -> None:
        """Wait before the next start, each time twice as long."""
        # Jobs wait for the successor of a lost worker, so what failing starts made of the pause is not for them.
        most = RESPAWN_MOST_SECONDS if self._refusal is None else UNSTARTABLE_MOST_SECONDS
        delay = min(self._delay, most)
        self._delay = 2 * delay
        with trio.move_on_after(min(delay, RESPAWN_MOST_SECONDS)):
            await self._closed.wait()
        if delay > RESPAWN_MOST_SECONDS:
            with trio.move_on_after(delay - RESPAWN_MOST_SECONDS):
                await self._wanted.wait()

    def _why_refused(self, failure: StartError) -> str:
        if self._status.n_ctx is None:
            return str(failure)
        return f"no worker can be started now: {failure}; it is tried again by itself"
