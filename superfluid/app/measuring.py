"""What the daemon measures of its model, when, and what it makes of it.

    --flash-attn auto   the kernels are compared before the first worker starts, once for a model and a machine
    --exact             so is what makes rows exact; without a tactic the daemon does not start
    a session asks      for exact replies: then it is measured, beside the worker that serves

Whoever needs an answer waits for it. All of it is kept (`superfluid.sched.probing`), so that only the first start of a
model takes longer.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
import trio

from superfluid.app.config import DEFAULT_LANES, ServeConfig
from superfluid.core.capability import SUREST, Capability, choose_attention
from superfluid.core.errors import StartError
from superfluid.sched.probing import Prober
from superfluid.worker.memory import DEFAULT_CONTEXT
from superfluid.worker.messages import Load

PROGRESS_SECONDS: Final = 2.0
"""A measurement says how far it is, this often."""

EXACT_CONTEXTS: Final = (
    ("plain", "off", "f16"),
    ("fast", "on", "q8_0"),
    ("fast", "on", "bf16"),
    ("plain", "on", "q8_0"),
    ("plain", "on", "bf16"),
)
"""Other contexts that were seen to be exact, the likeliest and cheapest first: kernels of products with weights,
attention kernel, KV type."""

_log = structlog.get_logger(target=__name__)


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where measurements are kept: ``$SUPERFLUID_CACHE``, or ``superfluid`` in the user's directory of caches."""
    if configured := environ.get("SUPERFLUID_CACHE"):
        return Path(configured)
    caches = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or "/") / ".cache")
    return Path(caches) / "superfluid"


async def measure_now(
    path: Path, environ: Mapping[str, str], *, threads: int, on_progress: Callable[[float], None]
) -> Capability:
    """Measure a model anew, without a daemon, and keep what was found for one that serves it later.

    Args:
        threads: Of the worker; 0 takes the machine's cores.
    """
    digest = await trio.to_thread.run_sync(_digest, path)
    prober = Prober(model=digest, cache=cache_directory(environ), on_progress=on_progress)
    load = Load(model_path=str(path), n_ctx=0, n_seq=1, threads=threads or os.cpu_count() or 1)
    attention = await prober.attention(load, again=True)
    kernel = choose_attention(attention.attention, DEFAULT_CONTEXT // 2, DEFAULT_LANES)
    exactness = await prober.exactness(replace(load, flash_attn=kernel), again=True)
    return _together(attention, exactness)


def _digest(path: Path) -> str:
    from superfluid.worker.llama.model import model_digest

    return model_digest(path, check_cancelled=trio.from_thread.check_cancelled)


def _together(attention: Capability, exactness: Capability) -> Capability:
    """All that is known of a model as it is served."""
    trouble = attention.trouble or exactness.trouble
    return replace(exactness, attention=attention.attention, trouble=trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """How the model is to be served.

    Attributes:
        invariant: Rows are exact in this context by themselves.
    """

    load: Load
    invariant: bool


class Measuring:
    """One daemon's measurements.

    Args:
        load: What workers load, kernel and KV type aside.
        make_prober: Given the digest of the model's content.
    """

    def __init__(
        self,
        config: ServeConfig,
        load: Load,
        *,
        cache: Path,
        make_prober: Callable[..., Prober] = Prober,
    ) -> None:
        self._config = config
        self._load = load
        self._cache = cache
        self._make_prober = make_prober
        self._prober: Prober | None = None
        self._identified = trio.Event()
        self._prepared = trio.Event()
        self._asking = trio.Lock()
        self._attention: Capability | None = None
        self._exactness: Capability | None = None
        self._told = -PROGRESS_SECONDS

    def identify(self, model: str) -> None:
        """Say what the model is: the digest of its content."""
        self._prober = self._make_prober(model=model, cache=self._cache, on_progress=self._tell)
        self._identified.set()

    @property
    def capability(self) -> Capability | None:
        """All that is known of the model as it is served; None before anything is."""
        attention, exactness = self._attention, self._exactness
        if exactness is None or attention is None:
            return exactness or attention
        return _together(attention, exactness)

    async def prepare(self) -> Prepared:
        """Decide how the model is served; measures what has to be known for it.

        Raises:
            StartError: `--exact` was asked for, and nothing makes this model exact here.
        """
        load = self._load = replace(self._load, flash_attn=await self._kernel())
        if self._config.exact:
            load = self._load = await self._exact_load(load)
        else:
            load = self._load = await self._padded(load)
        self._prepared.set()
        return Prepared(load=load, invariant=load.exact_rows == 1)

    async def exactness(self) -> Capability:
        """What makes rows exact in the context that is served; measured when it is first asked for."""
        await self._prepared.wait()
        async with self._asking:
            if self._exactness is None:
                prober = await self._identity()
                _log.info("measuring what makes replies exact, once for this model and machine")
                self._exactness = await prober.exactness(self._load, aside=True)
                _log.info("measured", batch_invariant=self._exactness.batch_invariant)
        return self._exactness

    async def _kernel(self) -> str:
        """The attention kernel, by what was asked for or by measurement."""
        asked = self._config.flash_attn
        if asked != "auto":
            return asked
        prober = await self._identity()
        self._attention = await prober.attention(self._load)
        depth = (self._load.n_ctx or DEFAULT_CONTEXT) // 2
        chosen = choose_attention(self._attention.attention, depth, self._config.max_batch)
        _log.info("attention kernel", flash_attn=chosen, trouble=self._attention.trouble or None)
        return chosen

    async def _exact_load(self, load: Load) -> Load:
        """The cheapest context that is exact."""
        prober = await self._identity()
        others = [
            replace(load, kernels=kernels, flash_attn=flash, kv_type=kv)
            for kernels, flash, kv in EXACT_CONTEXTS
            if self._config.flash_attn in {"auto", flash}
        ]
        chosen, why_not = await prober.tactic([load, *others])
        if chosen is None or chosen.tactic is None:
            raise StartError(f"--exact cannot be had with this model on this machine: {why_not}")
        self._exactness = chosen
        tactic = chosen.tactic
        cost = chosen.exactness.cost if chosen.exactness else 0.0
        _log.info(
            "replies are exact",
            rows=tactic.rows,
            outputs=tactic.outputs,
            kv=tactic.kv_type,
            flash_attn=tactic.flash_attn,
            kernels=tactic.kernels,
            cost=round(cost, 2),
        )
        return replace(
            load,
            kernels=tactic.kernels,
            flash_attn=tactic.flash_attn,
            kv_type=tactic.kv_type,
            exact_rows=tactic.rows,
            exact_outputs=tactic.outputs,
        )

    async def _padded(self, load: Load) -> Load:
        """Let exact sessions be served beside others: by what is known of this context, or, for a session that asks
        later, by what is sure to do if anything does."""
        kept = await (await self._identity()).kept_exactness(load)
        rows, outputs = SUREST
        if kept is not None:
            self._exactness = kept
            if kept.tactic is not None:
                rows, outputs = kept.tactic.rows, kept.tactic.outputs
        return replace(load, exact_rows=rows, exact_outputs=outputs)

    async def _identity(self) -> Prober:
        await self._identified.wait()
        assert self._prober is not None
        return self._prober

    def _tell(self, fraction: float) -> None:
        if trio.current_time() - self._told >= PROGRESS_SECONDS:
            self._told = trio.current_time()
            _log.info("measuring the model, once", percent=round(100 * fraction))
