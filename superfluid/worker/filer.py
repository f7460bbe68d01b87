"""The threads that write and read park files, beside the one that computes.

Neither touches the engine: a seal writes the bytes of a host-memory entry, a fetch makes such an entry of a file, and
only when everything in the file has proven right. What goes wrong with a file or for want of memory or space is said in
the answer; nothing of it ends the worker.

Seals run at the lowest priority, in few steps that do their work without the interpreter's lock. A thread that runs only
when nothing else does (``SCHED_IDLE``) would be too low: on a busy machine it could lose its core for seconds while it
holds that lock, and the lanes would wait for it. Fetches have somebody waiting: they have a thread of their own, at the
ordinary priority.
"""

import os
import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np

from superfluid.worker import park, quantize
from superfluid.worker.host import Entry, HostMemory
from superfluid.worker.llama.context import State
from superfluid.worker.memory import available_bytes
from superfluid.worker.messages import Fetch, Filed, Seal, clip
from superfluid.worker.park import Encoding, Header, ParkError
from superfluid.worker.quantize import LayoutError

_LOWEST: Final = 19
_ORDINARY: Final = 0


class Filing:
    """Takes seals and fetches, and answers each once.

    Args:
        host: where entries are.
        answer: called with each answer, from threads of its own. Raises ``OSError`` when nobody is there to hear it.
    """

    def __init__(self, host: HostMemory, answer: Callable[[Filed], None]) -> None:
        self._host = host
        self._seals = _Filer("seal", _LOWEST, answer)
        self._fetches = _Filer("fetch", _ORDINARY, answer)

    def seal(self, request: Seal) -> None:
        """Have the entry written as it is now, whatever is dropped later."""
        entry = self._host.get(request.entry)
        self._seals.work.put((request.ticket, lambda: _seal(request, entry)))

    def fetch(self, request: Fetch) -> None:
        """Have the file made an entry."""
        self._fetches.work.put((request.ticket, lambda: _fetch(request, self._host)))


class _Filer(threading.Thread):
    """Does one task after another. A task returns the size to answer with."""

    def __init__(self, name: str, nice: int, answer: Callable[[Filed], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._nice = nice
        self._answer = answer
        self.work: queue.SimpleQueue[tuple[int, Callable[[], int]]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        # On Linux this is the thread's own priority. Raising it back to the ordinary one may not be allowed.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        try:
            while True:
                ticket, task = self.work.get()
                self._answer(_try(ticket, task))
                del task  # it holds an entry
        except ConnectionError:
            return  # the daemon is gone, and the process about to end
        except Exception:  # noqa: BLE001 - reported, and ends the process
            traceback.print_exc()
            os._exit(1)


def _try(ticket: int, task: Callable[[], int]) -> Filed:
    try:
        return Filed(ticket=ticket, ok=True, size=task())
    except (ParkError, LayoutError, OSError) as error:
        return Filed(ticket=ticket, ok=False, size=0, detail=clip(str(error)))
    except MemoryError:
        return Filed(ticket=ticket, ok=False, size=0, detail="too little memory")


# -- seal -------------------------------------------------------------------------------------------


def _seal(request: Seal, entry: Entry | None) -> int:
    if entry is None or entry.positions != request.positions:
        raise ParkError("there is no such entry of so many positions")
    stored = quantize.pack(entry.state) if request.lossy else entry.state
    header = Header(
        identity=request.identity,
        digest=request.digest,
        positions=entry.positions,
        encoding=Encoding.Q8 if request.lossy else Encoding.RAW,
        state_bytes=len(entry.state),
        stored_bytes=len(stored),
    )
    path = Path(request.path)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{request.ticket}{park.TEMPORARY}")
    try:
        _write(temporary, header, stored.data)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return header.file_bytes


def _write(path: Path, header: Header, stored: memoryview) -> None:
    path.unlink(missing_ok=True)  # of a worker that had this number and was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with FileIO(os.open(path, flags, 0o600), "w") as out:
        park.write(out, header, stored)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- fetch ------------------------------------------------------------------------------------------


def _fetch(request: Fetch, host: HostMemory) -> int:
    if request.entry in host:
        raise ParkError("the entry is there already")
    with park.open_park(Path(request.path)) as source:
        header = park.read_head(source)
        _check_asked(header, request)
        state = _read_state(source, header)
    if not host.put(request.entry, Entry(positions=header.positions, state=state)):
        raise ParkError("the entry is there already")
    return len(state)


def _check_asked(header: Header, request: Fetch) -> None:
    if header.identity != request.identity:
        raise ParkError("it was made by another model or other settings")
    if header.digest != request.digest or header.positions != request.positions:
        raise ParkError("it covers other tokens")


def _read_state(source: FileIO, header: Header) -> State:
    # The kernel promises more memory than it has: the allocation would succeed, and the process be killed later.
    lossy = header.encoding is Encoding.Q8
    room = available_bytes()
    if room is not None and header.stored_bytes + lossy * header.state_bytes > room:
        raise MemoryError
    stored = np.empty(header.stored_bytes, np.uint8)
    park.read_stored(source, header, stored.data)
    state = quantize.unpack(stored, header.state_bytes) if lossy else stored
    state.setflags(write=False)
    return state
