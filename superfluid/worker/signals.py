"""Signals from the thread that reads the link to the thread that computes: cancel, interrupt, stop."""

from collections.abc import Iterable
from threading import Lock
from typing import Protocol


class Abortable(Protocol):
    """What runs the engine's calls. Both methods may be called from any thread."""

    def abort_nowait(self) -> None:
        """End the call that runs now, or the next one."""

    def clear_abort(self) -> None:
        """Let calls run again."""


class Signals:
    """What the thread that reads the link tells the thread that computes. Every method may be called from any.

    A signal that concerns the call of llama.cpp that runs now also aborts that call. Only prefill chunks are aborted:
    they may take seconds, a decode round ends within one step anyway and serves other jobs too.
    """

    def __init__(self, calls: Abortable) -> None:
        self._calls = calls
        self._lock = Lock()
        self._cancelled: set[int] = set()
        self._interrupted: int | None = None
        self._stopping = False
        self._prefilling: tuple[int, int] | None = None

    def cancel(self, job: int) -> None:
        """End *job* at the next step. Job ids are never used again, so one that is not there does no harm."""
        with self._lock:
            self._cancelled.add(job)
            if self._prefilling is not None and self._prefilling[1] == job:
                self._calls.abort_nowait()

    def interrupt(self, plan_id: int) -> None:
        """End the plan of this id at its next step; one that has ended does not notice."""
        with self._lock:
            self._interrupted = plan_id
            if self._prefilling is not None and self._prefilling[0] == plan_id:
                self._calls.abort_nowait()

    def stop(self) -> None:
        """End whatever runs at once, and everything after it: the process is about to end."""
        with self._lock:
            self._stopping = True
            self._calls.abort_nowait()

    def cancelled(self, job: int) -> bool:
        """Whether *job* is to end."""
        with self._lock:
            return job in self._cancelled

    def interrupted(self, plan_id: int) -> bool:
        """Whether the plan of this id is to end."""
        with self._lock:
            return self._stopping or self._interrupted == plan_id

    def forget(self, jobs: Iterable[int]) -> None:
        """Keep only the cancellations of *jobs*, those that still run: the set stays as small as they are few."""
        with self._lock:
            self._cancelled.intersection_update(jobs)

    def enter_prefill(self, plan_id: int, job: int, *, abortable: bool) -> bool:
        """Let signals abort the call that follows, if it is *abortable*. False: one came already, and it must not be
        made."""
        with self._lock:
            if self._stopping or self._interrupted == plan_id or job in self._cancelled:
                return False
            self._calls.clear_abort()
            self._prefilling = (plan_id, job) if abortable else None
            return True

    def leave_prefill(self) -> None:
        """The call is over; what comes next is not to be aborted (unless the process ends)."""
        with self._lock:
            self._prefilling = None
            if not self._stopping:
                self._calls.clear_abort()
