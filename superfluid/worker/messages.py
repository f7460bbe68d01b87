"""The messages between daemon and worker. ``codec`` makes bytes of them.

    daemon -> worker   Load (first, once), Plan, Cancel, Interrupt, Seal, Fetch, Shutdown
    worker -> daemon   Progress*, then Ready, Probed or Failed; after Ready one Result a Plan, one Filed a Seal or Fetch

KV bytes never cross the link: a worker reads and writes park files itself, and says when it is done.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from superfluid.core.limits import MAX_LINK_TEXT_BYTES
from superfluid.core.plan import Plan, Result

FLASH_ATTENTION: Final = ("off", "on", "auto")
KERNELS: Final = ("fast", "plain")
"""The library's own choice for each shape of a product; one row at a time, whatever its neighbours."""
KV_TYPES: Final = ("f16", "bf16", "f32", "q8_0")
EXACT_ASIDE: Final = "exact-aside"
PROBES: Final = ("", "attention", "exact", EXACT_ASIDE)
"""Nothing; which attention kernel is faster; what makes rows exact; the same beside a worker that serves, at the lowest
priority."""
CUTS: Final = ("free", "window", "none")


class MessageError(ValueError):
    """Bytes that are no message, or a message that is none of this direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker is to load.

    Args:
        n_ctx: positions of one sequence; 0 leaves it to the worker (``memory.default_context``).
        n_seq: sequences, lanes and kept ones together.
        n_batch: most rows in one call of the engine; n_ubatch: most rows in one of its graphs.
        flash_attn: one of ``FLASH_ATTENTION``. Off is the fastest on a CPU with F16 (measured).
        kv_type: one of ``KV_TYPES``.
        kernels: one of ``KERNELS``, for products with quantised weights. Plain decodes as fast and computes prompts more
            slowly; its rows depend on their shape far less. Fixed by the first model that a process loads.
        exact_rows: the rows that a sequence of an exact job has in one micro-batch are made a multiple of this.
        exact_outputs: so are, of these, the rows whose logits are computed: a divisor of *exact_rows*. The model's last
            layer has rows for them alone, and picks its kernel by their number.
        probe: one of ``PROBES``: measure the model, answer ``Probed`` and end, instead of serving.
    """

    model_path: str
    n_ctx: int
    n_seq: int
    n_batch: int = 512
    n_ubatch: int = 512
    threads: int = 2
    flash_attn: str = "off"
    kv_type: str = "f16"
    kernels: str = "fast"
    exact_rows: int = 1
    exact_outputs: int = 1
    probe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End one job at the next step. A job that is not there is ignored: it may have ended by itself meanwhile."""

    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End this plan at its next step. A plan that has ended meanwhile is ignored, so that none is cut by mistake."""

    plan_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Write a host-memory entry to a park file, beside everything else. Answered by ``Filed``.

    The entry may be dropped at once: its bytes stay until they are written.

    Args:
        ticket: names this request in its answer.
        path: the file; written as a temporary one beside it, synced, renamed, its directory synced.
        identity: of model and settings; goes into the file and is compared when it is read.
        digest: of the token ids of the entry's positions; likewise.
        positions: that the entry holds.
        lossy: store it in the lossy encoding.
    """

    ticket: int
    entry: int
    path: str
    identity: str
    digest: bytes
    positions: int
    lossy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Read a park file into a new host-memory entry, beside everything else. Answered by ``Filed``.

    A file that is not whole, or not of this *identity*, *digest* and number of *positions*, makes no entry.
    """

    ticket: int
    entry: int
    path: str
    identity: str
    digest: bytes
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """What became of a ``Seal`` or ``Fetch``.

    Args:
        ok: it is done. Otherwise *detail* says why not, and nothing was changed.
        size: bytes of the file (Seal) or of the entry (Fetch).
    """

    ticket: int
    ok: bool
    size: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe found, as JSON text (``core.capability``). The process ends after this message."""

    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """End the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Share of the model that is loaded, 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded.

    Args:
        n_ctx: positions of one sequence, as the engine rounded them.
        bytes_per_token: bytes that one more position adds to a sequence's exported state; beyond a sliding window less.
        bytes_per_sequence: bytes of such a state besides, however long the sequence is: recurrent layers.
        lossy_refusal: why states cannot be stored lossily (``Seal.lossy``); empty when they can.
        description: the engine's words for the model.
        library: the engine's version and the CPU features it uses.
        cuts: one of ``CUTS``: whether a sequence can be cut back to any position, hardly (a sliding window), or not at
            all (recurrent layers).
        settings: what else than the model decides whether KV of another worker can be read: names and values.
    """

    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_seq: int
    bytes_per_token: int
    description: str
    library: str
    threads: int
    cuts: str
    settings: str
    bytes_per_sequence: int = 0
    lossy_refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The model cannot be loaded; *kind* is one of ``WorkerStartFailed``'s. The process ends after this message."""

    kind: str
    reason: str


ToWorker: TypeAlias = Load | Plan | Cancel | Interrupt | Seal | Fetch | Shutdown
FromWorker: TypeAlias = Progress | Ready | Probed | Failed | Result | Filed


def clip(text: str) -> str:
    """*text* cut to what one text of a message may hold."""
    return text.encode(errors="replace")[:MAX_LINK_TEXT_BYTES].decode(errors="ignore")
