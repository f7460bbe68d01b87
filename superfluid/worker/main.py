"""The worker process: a thin shell that feeds an engine from a socket.

    python -P -m superfluid.worker.main superfluid-worker-llamacpp --fd N --parent PID

The main thread is the only one that touches llama.cpp. Another reads the link: it queues plans, passes signals on at
once, hands seals and fetches to the threads of ``filer``, and ends the process the moment the link is closed, also in
the middle of a call of llama.cpp (ctypes releases the interpreter's lock there). So a worker never outlives its daemon,
whatever it was doing; the parent-death signal says the same once more, for the case that this interpreter hangs.

Exit codes: 0 ended on request or with the link; 1 a bug (the traceback is on standard error); 3 the model cannot be
loaded (a ``Failed`` message said why).
"""

import argparse
import ctypes
import faulthandler
import os
import queue
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from superfluid.core.errors import StartError
from superfluid.core.plan import Plan
from superfluid.worker import codec, messages
from superfluid.worker.messages import (
    Cancel,
    Failed,
    Fetch,
    Interrupt,
    Load,
    MessageError,
    Probed,
    Progress,
    Seal,
    Shutdown,
    ToWorker,
)

if TYPE_CHECKING:
    from superfluid.worker.engine import Engine
    from superfluid.worker.filer import Filing
    from superfluid.worker.signals import Signals

PROCESS_NAME: Final = "superfluid-worker-llamacpp"
"""In the command line of every worker, for people and scripts that look for them."""

EXIT_CANNOT_START: Final = 3
"""Nothing changes by starting the worker again the same way."""

_PR_SET_PDEATHSIG: Final = 1
_NICE: Final = -5
"""Where it is allowed: every lane waits for the slowest of the engine's threads, so that the daemon or a program beside
it that takes a core for a moment delays all of them."""
_NICE_ASIDE: Final = 19
_PROGRESS_STEP: Final = 0.01
"""Share of the model between two reports: llama.cpp reports every tensor."""


class Link:
    """The child's end of the link: frames in, messages out. One thread reads; any may send."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._stream = sock.makefile("rb")

    def receive(self) -> ToWorker | None:
        """The next message, or None when the daemon has closed the link (or is gone)."""
        header = self._stream.read(codec.HEADER.size)
        if len(header) < codec.HEADER.size:
            return None
        length = codec.decode_length(header)
        body = self._stream.read(length)
        return codec.decode_to_worker(body) if len(body) == length else None

    def send(self, message: messages.FromWorker) -> None:
        """Send one message whole. Raises ``OSError`` when the daemon is gone."""
        frame = codec.encode(message)
        with self._sending:
            self._socket.sendall(frame)


class Inbox(threading.Thread):
    """Reads the link until it ends, and then ends the process."""

    def __init__(self, link: Link) -> None:
        super().__init__(name="link", daemon=True)
        self._link = link
        self.work: queue.SimpleQueue[Load | Plan | Shutdown] = queue.SimpleQueue()
        """At most one plan at a time: the daemon sends the next one after the result."""
        self.signals: Signals | None = None
        """Set by the main thread once there is an engine that could be signalled."""
        self.filing: Filing | None = None
        """Likewise, before the daemon is told that it may ask for anything."""

    def run(self) -> None:
        code = 0
        try:
            while (message := self._link.receive()) is not None:
                self._take(message)
        except ConnectionError:
            pass  # the daemon died with bytes of ours unread: an end like the other
        except Exception:  # noqa: BLE001 - reported, and ends the process
            traceback.print_exc()
            code = 1
        # No clean-up: the main thread may be inside llama.cpp for seconds, and nothing here outlives us.
        os._exit(code)

    def _take(self, message: ToWorker) -> None:
        signals = self.signals
        match message:
            case Cancel():
                if signals is not None:
                    signals.cancel(message.job)
            case Interrupt():
                if signals is not None:
                    signals.interrupt(message.plan_id)
            case Shutdown():
                if signals is None:
                    os._exit(0)  # still loading
                signals.stop()
                self.work.put(message)
            case Seal() | Fetch():
                if self.filing is None:
                    raise MessageError("a request for a park file came before the model was loaded")
                # Here and not in the threads, so that a seal finds its entry before a plan behind it drops that.
                self.filing.seal(message) if isinstance(message, Seal) else self.filing.fetch(message)
            case _:
                self.work.put(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker; returns its exit code."""
    parser = argparse.ArgumentParser(prog=PROCESS_NAME)
    parser.add_argument("name", choices=[PROCESS_NAME])
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args(argv)
    _settle(arguments.parent)
    link = Link(socket.socket(fileno=arguments.fd))
    inbox = Inbox(link)
    inbox.start()
    try:
        return _serve(link, inbox)
    except BrokenPipeError:
        return 0  # the daemon is gone; the inbox is about to end the process anyway


def _settle(parent: int) -> None:
    """Tie this process to its daemon's life and away from its terminal."""
    faulthandler.enable()
    # A terminal and a service manager signal the whole process group. The daemon decides when its worker ends; the end
    # of the link says so too, whatever became of the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The signal is tied to the thread that spawned us, so the daemon spawns from its main thread.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before the line above: the signal would never come
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _serve(link: Link, inbox: Inbox) -> int:
    load = inbox.work.get()
    if not isinstance(load, Load):
        return 0  # told to end before it began
    try:
        if load.probe:
            return _probe(load, link)
        engine = _open(load, link)
    except StartError as error:
        kind = getattr(error, "kind", "engine")
        link.send(Failed(kind=kind, reason=messages.clip(str(error))))
        return EXIT_CANNOT_START
    except MemoryError:
        link.send(Failed(kind="memory", reason=f"too little memory to load model file {load.model_path}"))
        return EXIT_CANNOT_START
    from superfluid.worker.filer import Filing  # as late, and for the same reason, as the engine

    inbox.signals = engine.signals
    inbox.filing = Filing(engine.host, link.send)
    link.send(engine.ready)
    while isinstance(plan := inbox.work.get(), Plan):
        link.send(engine.run(plan))
    engine.close()
    return 0


def _open(load: Load, link: Link) -> "Engine":
    # Imported here, so that missing bindings are a message to the daemon and not a traceback.
    from superfluid.worker.engine import Engine

    return Engine.open(load, _reporter(link))


def _probe(load: Load, link: Link) -> int:
    """Measure instead of serving; returns the exit code."""
    from superfluid.worker.probe import probe

    aside = load.probe == messages.EXACT_ASIDE
    # Nothing else is slowed down by what nobody may be waiting for, and nothing else gets into what is timed.
    os.setpriority(os.PRIO_PROCESS, 0, _NICE_ASIDE if aside else 0)
    link.send(Probed(record=probe(load, _reporter(link))))
    return 0


def _reporter(link: Link) -> Callable[[float], None]:
    reported = 0.0

    def report(fraction: float) -> None:
        nonlocal reported
        if fraction >= reported + _PROGRESS_STEP:
            reported = fraction
            link.send(Progress(fraction=min(max(fraction, 0.0), 1.0)))

    return report


def run() -> NoReturn:
    """Run one worker and end the process, without waiting for the thread that reads the link."""
    try:
        code = main()
    except Exception:  # noqa: BLE001 - reported, and ends the process
        traceback.print_exc()
        code = 1
    os._exit(code)


if __name__ == "__main__":
    run()
