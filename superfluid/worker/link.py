"""The daemon's end of a worker: start it, hand it plans, notice at once when it is lost, end it.

Whatever goes wrong with a running worker (it dies, it hangs, it answers garbage) ends as one exception, ``WorkerLost``,
with the process killed and reaped before it is raised. A model that cannot be loaded is ``WorkerStartFailed``: starting
the worker again the same way helps only if something outside has changed.

Answers about park files come at any time. Of the tasks that wait for something, one reads the link and hands on what
comes; the others are woken after each message. So while no plan runs, somebody has to be in ``wait_lost``.

A worker is looked at only while it owes an answer, and then once in half a second (``core.liveness`` judges what is
seen). An idle link costs nothing.
"""

import math
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import trio

from superfluid.core.errors import InternalError, WorkerLost, WorkerStartFailed
from superfluid.core.limits import (
    MAX_LINK_MESSAGE_BYTES,
    WORKER_CLOSE_SECONDS,
    WORKER_READY_SECONDS,
    WORKER_SAMPLE_SECONDS,
)
from superfluid.core.liveness import Watch, judge, parse_stat
from superfluid.core.plan import Plan, Result
from superfluid.worker import codec
from superfluid.worker.check import check_filed, check_result, still_running
from superfluid.worker.child import Child
from superfluid.worker.main import PROCESS_NAME
from superfluid.worker.messages import (
    Cancel,
    Failed,
    Fetch,
    Filed,
    FromWorker,
    Interrupt,
    Load,
    MessageError,
    Probed,
    Progress,
    Ready,
    Seal,
    Shutdown,
    ToWorker,
)

WORKER_COMMAND: Final = (sys.executable, "-P", "-m", "superfluid.worker.main", PROCESS_NAME)
"""``-P`` keeps the working directory off the module path: what lies there is not ours."""

_READ_BYTES: Final = 1 << 16

_End = TypeVar("_End", Ready, Probed)
"""What ends a handshake."""


class WorkerLink:
    """A worker that has loaded its model. Made by ``start``; whoever made it closes it with ``aclose``.

    Attributes:
        ready: what the worker said of itself and its model.
        lost: why the worker is lost, or None while it is not. A closed link counts as lost.
    """

    ready: Ready

    def __init__(self, child: Child, on_filed: Callable[[Filed], None] | None = None) -> None:
        self.lost: str | None = None
        self._child = child
        self._on_filed = on_filed
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._running: frozenset[int] = frozenset()
        self._loading = True
        self._in_flight: int | None = None
        self._answer: FromWorker | None = None
        """To the plan in flight, until its waiter takes it."""
        self._filing: dict[int, Seal | Fetch] = {}
        self._reading = False
        self._patience = trio.CancelScope()
        """Of the task that reads: it looks after the worker at the deadline."""
        self._others = trio.lowlevel.ParkingLot()

    @classmethod
    async def start(
        cls,
        load: Load,
        *,
        ready_timeout: float = WORKER_READY_SECONDS,
        on_progress: Callable[[float], None] | None = None,
        on_filed: Callable[[Filed], None] | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> "WorkerLink":
        """Start a worker and wait until it has loaded its model. Call it from the main thread.

        Args:
            load: what to load.
            ready_timeout: seconds without any progress after which the worker is given up.
            on_progress: called with the share of the model that is loaded.
            on_filed: called with each answer to a seal or fetch, by the task that reads the link.
            command: the program to start.

        Raises:
            WorkerStartFailed: the model cannot be loaded, or not in time.
            WorkerLost: the worker was killed from outside, or answered garbage.
        """
        link = cls(Child(command), on_filed)
        try:
            link._send(load)
            link.ready = await link._handshake(Ready, ready_timeout, on_progress)
        except BaseException:
            await link._child.kill_and_reap()
            link._child.close()
            raise
        link._loading = False
        return link

    @classmethod
    async def probe(
        cls,
        load: Load,
        *,
        ready_timeout: float = WORKER_READY_SECONDS,
        on_progress: Callable[[float], None] | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> str:
        """Start a worker that measures its model (``Load.probe``), and wait for its record; it has ended by then.

        Arguments and errors are those of ``start``.
        """
        link = cls(Child(command))
        try:
            link._send(load)
            probed = await link._handshake(Probed, ready_timeout, on_progress)
        finally:
            await link._child.reap()
            link._child.close()
        return probed.record

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._child.pid

    async def run(self, plan: Plan) -> Result:
        """Have the worker carry out *plan*. One plan at a time.

        Cancelling this call gives the worker up, because its answer could not be told from a later one: use
        ``interrupt_nowait`` to have the result sooner.

        Raises:
            WorkerLost: the worker is lost, now or since earlier.
        """
        if self.lost is not None:
            raise WorkerLost(self.lost)
        if self._in_flight is not None:
            raise InternalError("a worker runs one plan at a time")
        self._send(plan)
        self._in_flight = plan.id
        self._watch()
        try:
            while self._answer is None:
                await self._attend()
            result = check_result(plan, self._answer, self.ready, self._running)
        except MessageError as error:
            raise await self._lose(f"the worker answered garbage: {error}") from error
        except trio.Cancelled:
            await self._lose("the worker was given up in the middle of a plan")
            raise
        finally:
            self._in_flight = self._answer = None
        self._running = still_running(plan, result, self._running)
        return result

    def cancel_nowait(self, job: int) -> None:
        """End *job* at the worker's next step; the plan in flight ends there too. Ignored if it has ended."""
        if self.lost is None:
            self._send(Cancel(job=job))

    def interrupt_nowait(self) -> None:
        """End the plan in flight, if there is one, at the worker's next step."""
        if self.lost is None and self._in_flight is not None:
            self._send(Interrupt(plan_id=self._in_flight))

    def seal_nowait(self, request: Seal) -> None:
        """Have an entry written to a park file. Its answer goes to ``on_filed``; a lost worker gives none.

        The entry must be there: its ``Result.saved`` or ``Filed`` has come. It may be dropped straight after.
        """
        self._file(request)

    def fetch_nowait(self, request: Fetch) -> None:
        """Have a park file made an entry. Its answer goes to ``on_filed``; a lost worker gives none."""
        self._file(request)

    def _file(self, request: Seal | Fetch) -> None:
        if request.ticket in self._filing:
            raise InternalError(f"ticket {request.ticket} is out already")
        if self.lost is None:
            self._filing[request.ticket] = request
            self._send(request)
            self._watch()

    async def wait_lost(self) -> str:
        """Wait until the worker is lost, also while it is idle; returns the reason. Hands on what comes meanwhile."""
        while self.lost is None:
            with suppress(WorkerLost):
                await self._attend()
        return self.lost

    async def aclose(self) -> None:
        """End the worker: ask it, then kill it. It is gone when this returns.

        A plan in flight ends early: who waits for it gets what was done, or ``WorkerLost``.
        """
        child = self._child
        with trio.CancelScope(shield=True):
            if self.lost is None:
                self._send(Shutdown())
                self.lost = "the worker was closed"
                with trio.move_on_after(WORKER_CLOSE_SECONDS):
                    await child.wait_ended()
            await child.kill_and_reap()
            child.close()
            await trio.lowlevel.checkpoint()

    # -- start --------------------------------------------------------------------------------------

    async def _handshake(
        self, end: type[_End], ready_timeout: float, on_progress: Callable[[float], None] | None
    ) -> _End:
        while True:
            message: FromWorker | None = None
            try:
                with trio.move_on_after(ready_timeout):
                    message = await self._receive()
            except MessageError as error:
                raise await self._lose(f"the worker answered garbage: {error}") from error
            except WorkerLost as error:
                raise self._start_error(error) from error
            match message:
                case None:
                    raise WorkerStartFailed(
                        "timeout", f"the worker made no progress in loading its model for {ready_timeout:g} s"
                    )
                case Progress():
                    if on_progress is not None:
                        on_progress(message.fraction)
                case Failed():
                    raise WorkerStartFailed(message.kind, message.reason)
                case _ if isinstance(message, end):
                    return message
                case _:
                    raise await self._lose(f"the worker answered garbage: no {end.__name__} after its start")

    def _start_error(self, lost: WorkerLost) -> WorkerLost | WorkerStartFailed:
        """A worker that crashes while it loads will do so again; one that was killed from outside may not."""
        code = self._child.exit_code
        if code is None or code in {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP}:
            return lost
        return WorkerStartFailed("engine", f"the worker crashed while it loaded its model: {lost}")

    # -- bytes --------------------------------------------------------------------------------------

    def _send(self, message: ToWorker) -> None:
        """Queue a message and send what the socket takes now; ``_receive`` sends the rest."""
        self._outbox += codec.encode(message)
        if len(self._outbox) > 2 * MAX_LINK_MESSAGE_BYTES:
            self._child.kill()  # it has not read for long; whoever waits for it is told by its end
            self._outbox.clear()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._child.sock.send(self._outbox)]
        except BlockingIOError:
            return
        except OSError:
            self._outbox.clear()  # it is gone; the next receive says how

    async def _attend(self) -> None:
        """Take part in reading until a message has come: as the one who reads, or as one who is woken after it.

        Raises:
            WorkerLost: the worker is lost.
        """
        if self._reading:
            await self._others.park()
            if self.lost is not None:
                raise WorkerLost(self.lost)
            return
        self._reading = True
        try:
            self._hand_on(await self._receive())
        except MessageError as error:
            raise await self._lose(f"the worker answered garbage: {error}") from error
        finally:
            self._reading = False
            self._others.unpark_all()

    def _hand_on(self, message: FromWorker) -> None:
        if isinstance(message, Filed):
            request = self._filing.pop(message.ticket, None)
            if request is None:
                raise MessageError("the answer about a park file that nobody asked for")
            check_filed(request, message, self.ready)
            if self._on_filed is not None:
                self._on_filed(message)
        elif self._in_flight is None or self._answer is not None:
            raise MessageError("a message that nobody asked for")
        else:
            self._answer = message

    async def _receive(self) -> FromWorker:
        """The next message. Looks after the worker while it owes one."""
        watch = Watch(busy_at=trio.current_time())
        while (message := self._take_message()) is None:
            with trio.CancelScope() as self._patience:
                self._watch()
                await self._wait_bytes()
            if self._patience.cancelled_caught:
                self._flush()
                watch = await self._look(watch, trio.current_time())
        return message

    def _watch(self) -> None:
        """Have the task that reads look after the worker, if that owes an answer."""
        owing = self._loading or self._in_flight is not None or self._filing
        if owing and self._patience.deadline == math.inf:
            self._patience.deadline = trio.current_time() + WORKER_SAMPLE_SECONDS

    async def _wait_bytes(self) -> None:
        sock = self._child.sock
        try:
            if self._outbox:
                # It reads all the time, so what is left goes soon; nothing is answered before it has come.
                await trio.lowlevel.wait_writable(sock)
                self._flush()
                return
            await trio.lowlevel.wait_readable(sock)
            data = sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except (OSError, trio.ClosedResourceError):
            data = b""
        if not data:
            raise await self._lose_ended()
        self._inbox += data

    def _take_message(self) -> FromWorker | None:
        head = codec.HEADER.size
        if len(self._inbox) < head:
            return None
        length = codec.decode_length(bytes(self._inbox[:head]))
        if len(self._inbox) < head + length:
            return None
        body = bytes(self._inbox[head : head + length])
        del self._inbox[: head + length]
        return codec.decode_from_worker(body)

    # -- loss ---------------------------------------------------------------------------------------

    async def _look(self, watch: Watch, now: float) -> Watch:
        if self._in_flight is None and not self._loading:
            # A park file may wait for its disk for long, in a thread whose state is not seen here.
            watch = replace(watch, busy_at=now)
        sample = parse_stat(self._child.stat(), at=now)
        watch, reason = judge(watch, sample)
        if reason is not None:
            raise await self._lose(f"the worker {reason}")
        return watch

    async def _lose_ended(self) -> WorkerLost:
        """The worker's end of the link is closed: it has ended, or is about to."""
        if self.lost is None:
            await self._child.reap()
            return await self._lose(f"the worker {self._child.describe_end()}")
        return WorkerLost(self.lost)

    async def _lose(self, reason: str) -> WorkerLost:
        """Give the worker up; returns the error to raise once its process is gone."""
        if self.lost is None:
            self.lost = reason
        await self._child.kill_and_reap()
        return WorkerLost(self.lost)
