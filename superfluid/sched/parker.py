"""What the scheduler wants done with park files, done: found when a worker starts, written and read beside its ticks."""

from functools import partial

import structlog
import trio

from superfluid.core.errors import StartError
from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.core.origin import Origin
from superfluid.core.schedule import Scheduler
from superfluid.sched.parkfiles import Parked, ParkFiles, StreamOf
from superfluid.worker.link import WorkerLink
from superfluid.worker.messages import Filed, Load, Ready

_log = structlog.get_logger(target=__name__)


class Parker:
    """Stands between one scheduler and the directory of its park files."""

    def __init__(self, files: ParkFiles, scheduler: Scheduler) -> None:
        self._files = files
        self._scheduler = scheduler
        self._model: tuple[str, StreamOf] | None = None
        self._identified = trio.Event()

    def identify(self, model: str, stream_of: StreamOf) -> None:
        """Say which model this is (the digest of its content), and how to get a session's tokens: without it no file
        can be used."""
        self._model = (model, stream_of)
        self._identified.set()

    def close(self) -> None:
        """Let nobody wait for `identify` any more."""
        self._identified.set()

    async def open(self, load: Load, ready: Ready) -> None:
        """A worker is ready: find the files that it can read, before the first job could need one.

        The successor of a lost worker finds what that wrote, unless it is of another build: then it looks at all files
        again.

        Raises:
            StartError: The lossy encoding was asked for, and cannot be had.
        """
        if self._files.lossy and ready.lossy_refusal:
            raise StartError(f"--park-lossy cannot be had with this model: {ready.lossy_refusal}; use --park")
        await self._identified.wait()
        if self._model is None:
            return
        model, stream_of = self._model
        # Before anything is found: what has to go would be found, and go then.
        await self._remove()
        identity = f"{model} {ready.settings}"
        origin = Origin(identity=identity, rows=load.exact_rows, outputs=load.exact_outputs)
        anew = self._scheduler.parking.open(origin)
        try:
            await trio.to_thread.run_sync(self._files.sweep)
            if anew:
                await self._look(origin, stream_of, ready.n_ctx)
        except OSError as failure:
            directory = str(self._files.directory)
            _log.error("park files cannot be used", directory=directory, reason=failure.strerror)

    async def carry_out(self, link: WorkerLink) -> None:
        """Do what was ordered since the last time."""
        orders = list(self._scheduler.orders)
        self._scheduler.orders.clear()
        for order in orders:
            match order:
                case SealFile():
                    link.seal_nowait(self._files.seal(order))
                case FetchFile():
                    link.fetch_nowait(self._files.fetch(order))
                case RemoveFile():
                    await self._unlink(order)

    def filed(self, answer: Filed) -> None:
        """Take a worker's answer."""
        if not answer.ok:
            _log.warning("a park file was not written or not used", reason=answer.detail)
        self._scheduler.filed(answer.ticket, ok=answer.ok, size=answer.size)

    async def _look(self, origin: Origin, stream_of: StreamOf, n_ctx: int) -> None:
        """Put the files that lie there into the books: first those that go first."""
        found = await trio.to_thread.run_sync(self._files.scan)
        judged = list(self._files.judge(found, stream_of, origin, n_ctx=n_ctx))
        parking = self._scheduler.parking
        for file in judged:
            if isinstance(file, Parked):
                continue
            if file.gone:
                parking.remove(file.session)
            else:
                parking.refused(file.session, size=file.size)
        for file in judged:
            if isinstance(file, Parked):
                parking.found(
                    file.session,
                    file.stream,
                    size=file.size,
                    name=file.name,
                    exact=file.exact,
                    lossy=file.lossy,
                )

    async def _remove(self) -> None:
        """Carry out the removals that a lost worker's time left over; nothing else is ordered between workers."""
        orders = self._scheduler.orders
        while orders:
            order = orders.pop(0)
            assert isinstance(order, RemoveFile), "nothing can be written or read without a worker"
            await self._unlink(order)

    async def _unlink(self, order: RemoveFile) -> None:
        try:
            await trio.to_thread.run_sync(partial(self._files.remove, order))
        except OSError as failure:
            _log.warning("a park file stays", session=order.session, reason=failure.strerror)
