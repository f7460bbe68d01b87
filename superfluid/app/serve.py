"""The daemon from start to end.

    socket and directory locked -> log replayed -> serving -> (signal) -> draining -> workers, log, socket gone
                                      \\-> model loads beside it; what needs it waits

The socket is bound, and with it the conflicts are found, before the log is read; connections wait in the kernel's
backlog until then.
"""

import gc
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from superfluid.api.generate import Generations
from superfluid.api.scheduling import Scheduling
from superfluid.api.service import Service
from superfluid.app.config import GB, ServeConfig
from superfluid.app.identity import Recorded, check_vocabulary
from superfluid.app.measuring import Measuring, cache_directory
from superfluid.app.text import load_text
from superfluid.core import tree
from superfluid.core.capability import to_json
from superfluid.core.errors import CorruptError, ShuttingDown, StartError
from superfluid.core.limits import MAX_CONNECTIONS, RESERVED_DESCRIPTORS
from superfluid.core.options import Options
from superfluid.core.replay import apply_command
from superfluid.core.state import State
from superfluid.front.listener import Listener
from superfluid.front.native import NativeServer
from superfluid.observe.metrics import DaemonCollector, renderer
from superfluid.observe.pressure import relieve
from superfluid.sched.engine import Engine
from superfluid.sched.model import Model, Text
from superfluid.sched.parkfiles import ParkFiles
from superfluid.sched.status import Phase
from superfluid.store.store import Store
from superfluid.wal.log import Log, Opened
from superfluid.worker.messages import Load
from superfluid_protocol import ModelInfo

if TYPE_CHECKING:
    from superfluid.core.ids import TokenIds

FLUSH_SECONDS: Final = 3.0
"""Once running generations are cancelled: time for their records and for the last replies to reach their clients."""

CLOSE_SECONDS: Final = 5.0
"""Time for the worker to end by itself before it is killed."""

PROGRESS_SECONDS: Final = 1.0
"""A start that takes longer says how far it is, this often."""

PARK_DIRECTORY: Final = "park"
"""Of park files, inside the sessions directory."""

GC_THRESHOLDS: Final = (50_000, 20, 100)
"""The garbage collector's, see `_settle_memory`."""

_log = structlog.get_logger(target=__name__)


class _Interrupted(Exception):
    """The daemon was asked to end while it read its log."""


class Daemon:
    """One daemon, from start to end.

    Args:
        path: The model file.
        on_ready: Called once, when the first worker has its model and everything is served.
    """

    def __init__(self, config: ServeConfig, path: Path, *, on_ready: Callable[["Daemon"], None]) -> None:
        self.config = config
        self.path = path
        self.socket = config.socket
        self._on_ready = on_ready
        self._stop = trio.Event()
        self._stop_now = trio.Event()
        self._failure: StartError | CorruptError | None = None
        self._measuring = Measuring(config, self._load(), cache=cache_directory(os.environ))
        self._loading = trio.CancelScope()
        """Of the model's text side, which reads the whole model file."""
        self._watching = trio.CancelScope()
        """Of memory pressure."""

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM; a second one ends the draining.

        Raises:
            StartError: The daemon cannot start as configured.
            CorruptError: The log is damaged.
        """
        _allow_descriptors()
        with (
            trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
            closing(Listener.bind(self.config.socket)) as listener,
        ):
            self.socket = listener.path
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._heed, signals)
                await self._replay_and_serve(listener)
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _heed(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if self._stop.is_set():
                self._stop_now.set()
            else:
                _log.info(
                    "ending", signal=signal.Signals(number).name, drain_seconds=self.config.drain_timeout
                )
                self._stop.set()

    async def _replay_and_serve(self, listener: Listener) -> None:
        try:
            opened, state = await trio.to_thread.run_sync(self._open_log)
        except _Interrupted:
            return
        except (StartError, CorruptError) as failure:
            self._failure = failure
            return
        _settle_memory()
        try:
            await self._serve(listener, Store(opened.log, state, now_ms=_now_ms))
        finally:
            with trio.CancelScope(shield=True):
                clean = await trio.to_thread.run_sync(opened.log.close)
            _log.info("log closed", clean=clean)

    def _open_log(self) -> tuple[Opened, State]:
        """Lock, replay and begin the log. Blocks, in a thread."""
        began = time.monotonic()
        told = began

        def progress(done: int, total: int) -> None:
            nonlocal told
            self._check_interrupted()
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                _log.info("reading the log", percent=round(100 * done / max(total, 1)))

        opened = Log.open(
            self.config.sessions, now_ms=_now_ms(), progress=progress, on_slow_fsync=_slow_fsync
        )
        try:
            for warning in opened.warnings:
                _log.warning(warning)
            state = self._replay(opened)
            opened.log.begin()
        except BaseException:
            opened.log.close()
            raise
        if opened.log.read_only is not None:
            _log.error("the log is read-only", reason=opened.log.read_only)
        _log.info(
            "log replayed",
            sessions=len(state.sessions),
            bytes=opened.log.end,
            epoch=opened.log.epoch,
            clean=opened.clean,
            seconds=round(time.monotonic() - began, 3),
        )
        return opened, state

    def _replay(self, opened: Opened) -> State:
        state = State()
        for command in opened.commands:
            self._check_interrupted()
            misfit = apply_command(state, command)
            if misfit is not None:
                _log.error(
                    "sessions are frozen",
                    reason=misfit,
                    sessions=sorted({r.session for r in command.records}),
                )
        return state

    def _check_interrupted(self) -> None:
        if self._stop.is_set():
            raise _Interrupted

    async def _serve(self, listener: Listener, store: Store) -> None:
        # Before anything is served: what is created from now on has no ids of any vocabulary yet.
        load = partial(self._load_checked_text, recorded=Recorded.of(store.state.sessions.values()))
        model = Model(self.config.model, self.path, load_text=load)
        engine = Engine(self._load(), self._options(), park=self._park_files())
        async with trio.open_nursery() as base:
            base.start_soon(store.run)
            try:
                await self._work(listener, store, model, engine)
            finally:
                # After a failure too: the committer is shielded, and ends by this alone.
                store.close()

    async def _work(self, listener: Listener, store: Store, model: Model, engine: Engine) -> None:
        """Everything that uses the store, until the daemon was asked to end and has drained."""
        async with trio.open_nursery() as work:
            generations = Generations(
                store=store, model=model, engine=engine, exactness=self._measuring.exactness, nursery=work
            )
            scheduling = Scheduling(
                store=store,
                engine=engine,
                generations=generations,
                exactness=self._measuring.exactness,
                now_ms=_now_ms,
            )
            metrics = renderer(DaemonCollector(store, engine))
            service = Service(
                store=store,
                model=model,
                generations=generations,
                scheduling=scheduling,
                models=lambda: (self._describe(engine),),
                metrics=metrics,
            )
            server = NativeServer(listener, service)
            work.start_soon(server.run)
            work.start_soon(self._load_text, model, engine, store)
            work.start_soon(self._run_engine, engine)
            work.start_soon(self._announce, model, engine)
            work.start_soon(self._restore_pins, scheduling)
            work.start_soon(self._watch_memory, engine)
            await self._stop.wait()
            if engine.status.n_ctx is None:
                engine.close()  # who waits for a first worker is told now
            await self._drain(generations, server)
            engine.close()
            self._watching.cancel()
            patience = CLOSE_SECONDS if engine.status.n_ctx is not None else 0
            work.cancel_scope.deadline = trio.current_time() + patience

    async def _drain(self, generations: Generations, server: NativeServer) -> None:
        """Let running replies finish, then cut the rest off; tell every client what became of its request."""
        generations.refuse_new()
        with trio.move_on_after(self.config.drain_timeout):
            async with trio.open_nursery() as nursery:

                async def wait_idle() -> None:
                    await generations.wait_idle()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(wait_idle)
                await self._stop_now.wait()
                nursery.cancel_scope.cancel()
        generations.cancel_all()
        self._loading.cancel()  # who waits for the text side is told now
        with trio.move_on_after(FLUSH_SECONDS):
            await generations.wait_idle()
            await server.wait_idle()
        server.close()

    async def _load_text(self, model: Model, engine: Engine, store: Store) -> None:
        text: Text | None = None
        with self._loading:
            try:
                text = await model.load()
            except StartError as failure:
                self._fail(failure)
        if text is None:
            return

        def stream_of(session: int) -> "TokenIds | None":
            known = store.state.sessions.get(session)
            return None if known is None else tree.tokens(store.state, known)

        engine.identify(text.content, stream_of)
        _log.info("chat template", path=text.codec.describe() if text.codec else text.no_codec)

    def _load_checked_text(self, path: Path, *, recorded: Recorded) -> Text:
        """The model's text side, refused before anybody can append with it if the sessions are of another vocabulary."""
        # Cancellable while it only reads; what follows changes files, and runs to its end.
        text = load_text(
            path,
            now=datetime.now().astimezone(),
            check_cancelled=trio.from_thread.check_cancelled,
            on_content=lambda digest: trio.from_thread.run_sync(self._measuring.identify, digest),
        )
        check_vocabulary(self.config.sessions, text, self.config.model, recorded)
        return text

    async def _run_engine(self, engine: Engine) -> None:
        try:
            prepared = await self._measuring.prepare()
            engine.configure(prepared.load, exact=self.config.exact, invariant=prepared.invariant)
            await engine.run()
        except StartError as failure:
            self._fail(failure)

    def _fail(self, failure: StartError) -> None:
        self._failure = self._failure or failure
        self._stop.set()
        self._stop_now.set()

    async def _announce(self, model: Model, engine: Engine) -> None:
        """Say how loading goes, and when everything is there."""
        told = trio.current_time()
        while engine.status.n_ctx is None and engine.status.phase is not Phase.FAILED:
            await engine.status.changed.wait()
            if trio.current_time() - told > PROGRESS_SECONDS:
                told = trio.current_time()
                _log.info("loading the model", percent=round(100 * engine.status.fraction))
        try:
            await model.text()
        except (StartError, ShuttingDown):
            return
        if engine.status.n_ctx is not None:
            _log.info(
                "ready", model=self.config.model, context=engine.status.n_ctx, worker=engine.status.worker_pid
            )
            self._on_ready(self)

    async def _watch_memory(self, engine: Engine) -> None:
        with self._watching:
            await relieve(engine)

    async def _restore_pins(self, scheduling: Scheduling) -> None:
        with suppress(StartError, ShuttingDown):  # then there is no worker, and nothing to pin
            await scheduling.restore_pins()

    def _describe(self, engine: Engine) -> ModelInfo:
        """The served model, for clients. The file by its name alone: where it lies is nobody's business."""
        capability = self._measuring.capability
        return ModelInfo(
            name=Path(self.config.model).name,
            path=self.path.name,
            loaded=engine.status.phase is Phase.READY,
            context=engine.status.n_ctx or 0,
            lanes=self.config.max_batch,
            description=engine.status.description,
            capability=to_json(capability) if capability else None,
        )

    def _options(self) -> Options:
        config = self.config
        host = config.host_memory_gb
        return Options(
            lanes=config.max_batch,
            kept=config.kept_sequences,
            class_lanes=config.class_caps(),
            starvation_ticks=config.starvation_ticks,
            prefill_budget=config.prefill_budget,
            tick_target_ms=config.tick_target_ms,
            pressure_high=config.pressure_high,
            pressure_low=config.pressure_low,
            pin_budget_pct=config.pin_budget_pct,
            coalesce_min=config.coalesce_min,
            host_bytes=None if host is None else int(host * GB),
            speculate=config.speculate,
            park=config.park,
            park_bytes=int(config.park_budget_gb * GB),
            park_lossy=config.park_lossy,
        )

    def _park_files(self) -> ParkFiles | None:
        config = self.config
        if not config.park:
            return None
        return ParkFiles(config.sessions / PARK_DIRECTORY, lossy=config.park_lossy)

    def _load(self) -> Load:
        config = self.config
        return Load(
            model_path=str(self.path),
            n_ctx=config.max_context,
            n_seq=config.max_batch + config.kept_sequences,
            threads=config.threads or os.cpu_count() or 1,
        )


def _settle_memory() -> None:
    """Spare the sessions from the garbage collector.

    What was replayed lives as long as the daemon and holds no cycles, and so does nearly all that a request adds; with
    the default thresholds, looking through it all again and again took a tenth of an append's time.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _allow_descriptors() -> None:
    """Raise this process's own limit of descriptors, where it may: a connection takes one, and shells start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _slow_fsync(seconds: float) -> None:
    _log.warning("slow fsync", seconds=round(seconds, 3))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
