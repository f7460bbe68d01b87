"""What a model can do here: kept from an earlier measurement, or measured now by a worker process of its own.

A measurement holds for one ``Identity`` (model, library, CPU, settings) and is kept in a file named by its digest, which
is written whole or not at all. A file that cannot be read, is damaged, or speaks of something else is as good as none. So
is a measurement that was not finished: it is made again, in another daemon. Nothing that fails here keeps a daemon from
serving: without a measurement it serves as it would without asking for one.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog
import trio

from superfluid.core.capability import Capability, Identity, choose_tactic, from_json, is_cheap, to_json
from superfluid.core.errors import SuperfluidError
from superfluid.core.limits import MAX_CAPABILITY_BYTES
from superfluid.worker.link import WorkerLink
from superfluid.worker.machine import identity
from superfluid.worker.messages import EXACT_ASIDE, Load

ATTENTION: Final = "attention"
EXACT: Final = "exact"

_log = structlog.get_logger(target=__name__)


class Probe(Protocol):
    """Starts a worker that measures, and waits for its record (`WorkerLink.probe`)."""

    def __call__(self, load: Load, *, on_progress: Callable[[float], None] | None) -> Awaitable[str]:
        """Raises what `WorkerLink.start` raises."""


class Prober:
    """Measures one model.

    Args:
        model: Digest of its content.
        cache: Directory of what was measured before.
        on_progress: Told the share of a measurement that is done; nothing is told where it was kept.
    """

    def __init__(
        self,
        *,
        model: str,
        cache: Path,
        on_progress: Callable[[float], None] | None = None,
        probe: Probe = WorkerLink.probe,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._model = model
        self._cache = cache
        self._on_progress = on_progress
        self._probe = probe
        self._now_ms = now_ms

    async def kept_exactness(self, load: Load) -> Capability | None:
        """What `exactness` would answer at once; None where it would have to measure."""
        return await self._kept(replace(load, probe=EXACT))

    async def attention(self, load: Load, *, again: bool = False) -> Capability:
        """Times of both attention kernels; none of them, and the trouble, where they could not be had.

        Args:
            again: Measure it even if that was done before.
        """
        return await self._find(replace(load, flash_attn="auto", probe=ATTENTION), again=again)

    async def exactness(self, load: Load, *, aside: bool = False, again: bool = False) -> Capability:
        """What makes rows exact in the context that *load* describes.

        Args:
            aside: Measure beside a worker that serves, at the lowest priority: slowly.
            again: Measure it even if that was done before.
        """
        return await self._find(replace(load, probe=EXACT_ASIDE if aside else EXACT), again=again)

    async def tactic(self, loads: Sequence[Load]) -> tuple[Capability | None, str]:
        """The cheapest of several contexts in which rows are exact, and why there is none.

        Args:
            loads: The one that is served best first; the others are looked at only if it is not exact, or dearly so.
        """
        known: list[Capability] = []
        for load in loads:
            known.append(await self.exactness(load))
            if is_cheap(known[-1]):
                break
        chosen = choose_tactic(known)
        reasons = (
            f"{load.kv_type} with flash attention {load.flash_attn} and {load.kernels} kernels: {one.batch_invariant}"
            for load, one in zip(loads, known, strict=False)
        )
        return chosen, "" if chosen else "; ".join(reasons)

    async def _find(self, load: Load, *, again: bool) -> Capability:
        kept = None if again else await self._kept(load)
        if kept is not None:
            return kept
        wanted = await self._identity(load)
        found = replace(await self._measure(load), identity=wanted)
        if found.measured_ms:
            _write(self._path(load, wanted), to_json(found))
        return found

    async def _kept(self, load: Load) -> Capability | None:
        wanted = await self._identity(load)
        kept = _read(self._path(load, wanted))
        return kept if kept is not None and kept.identity == wanted else None

    async def _identity(self, load: Load) -> Identity:
        # In a thread: it loads the engine's library.
        return await trio.to_thread.run_sync(lambda: identity(load, model=self._model))

    def _path(self, load: Load, wanted: Identity) -> Path:
        kind = ATTENTION if load.probe == ATTENTION else EXACT
        return self._cache / f"{kind}-{wanted.key(kind)}.json"

    async def _measure(self, load: Load) -> Capability:
        """What a probe says; one that fails says why. Not to be kept where it was not `measured_ms`."""
        nothing = Capability(identity=identity(load, model=self._model))
        try:
            record = await self._probe(load, on_progress=self._on_progress)
        except SuperfluidError as failure:
            return replace(nothing, trouble=f"it could not be measured: {failure}")
        found = from_json(record)
        if found is None:
            return replace(nothing, trouble="it could not be measured: the worker answered garbage")
        exactness = found.exactness
        finished = exactness is None or not exactness.unfinished
        return replace(found, measured_ms=self._now_ms() if finished else 0)


def _read(path: Path) -> Capability | None:
    try:
        with path.open("rb") as file:
            return from_json(file.read(MAX_CAPABILITY_BYTES))
    except OSError:
        return None  # not there, or not for us: measured again


def _write(path: Path, record: str) -> None:
    """Keep a record; who cannot write it measures again next time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.touch(mode=0o600)
        temporary.write_text(record)
        temporary.rename(path)
    except OSError as failure:
        _log.warning("what was measured cannot be kept", path=str(path), reason=failure.strerror)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
