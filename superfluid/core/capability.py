"""What a model can do on this machine, as it was measured, and what follows from that.

Two things about a context are not known before they are tried. Which attention kernel is faster depends on the model, the
CPU and the depth; and whether a row's logits depend, in their last bits, on the rows that are computed beside it depends
on which kernels the library picks for which shapes. So both are measured, once, and kept with everything they hold for
(``Identity``). Nothing here measures: times and findings come in, choices go out.

A **tactic** is what makes rows bit-identical: no more than the context itself, or a multiple of k rows of a sequence in
each micro-batch, which keeps every one of them in the same kernel.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from xxhash import xxh3_128_hexdigest

PROBED_LANES: Final = 8
"""Lanes whose steps are timed besides those of one: what kernels differ in beside others is not seen in a lone lane."""

FORMAT: Final = 2
"""Of the kept records; one of another format is measured again."""

PADDINGS: Final = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 8))
"""(rows of a sequence in a micro-batch, those of them whose logits are computed) that are tried, the cheapest first.
llama.cpp's kernels for repacked weights take rows in fours, llamafile's take two or more; eight is beyond every kernel
known. The last layer has rows for logits alone: of a lone lane one, if they are not padded too."""

SUREST: Final = PADDINGS[-1]
"""Exact wherever another one is: it keeps whole groups of each."""

SHAPES: Final = ("whole", "lone rows", "odd chunks", "neighbours", "import", "threads")
"""What is compared with a prompt in regular chunks: the prompt in one piece; rows decoded alone; the prompt in odd
chunks; rows beside others that come, go and prefill; rows after a cut, an export and an import; another number of
threads."""

CHEAP: Final = 2.0
"""A tactic that costs at most this factor, as two rows for one do, is taken without a look at other contexts: trying one
takes a minute, and they compute prompts more slowly."""

ALIKE: Final = 1.1
"""Times within this factor are alike: on a machine that others use too, the fastest of some steps is no better known."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a measurement holds for.

    Args:
        model: digest of the file's content.
        library: the engine's build, with the CPU features that it uses.
        cpu: the processor's name and a digest of its features.
        kernels: ``fast`` or ``plain``, of products with weights.
        flash_attn: ``off`` or ``on``; ``auto`` for what does not depend on it.
    """

    model: str
    library: str
    cpu: str
    threads: int
    n_ubatch: int
    kernels: str
    flash_attn: str
    kv_type: str

    def key(self, probe: str) -> str:
        """The name under which what *probe* found is kept."""
        return xxh3_128_hexdigest(json.dumps([FORMAT, probe, asdict(self)], sort_keys=True).encode())


# -- attention --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """How long a decode step takes with one attention kernel, in microseconds.

    Args:
        first_us: one sequence, at its begin; batch_us: ``PROBED_LANES`` of them, at their begins.
        deep_us: one sequence, *depth* positions later.
    """

    flash_attn: str
    depth: int
    first_us: int
    batch_us: int
    deep_us: int

    def at(self, depth: int, lanes: int = 1) -> float:
        """Expected with any number of lanes at any depth. Attention costs the same for each position before it, and a
        lane more is more rows of the same products: both are lines."""
        slope = max(self.deep_us - self.first_us, 0) / self.depth
        lane = max(self.batch_us - self.first_us, 0) / (PROBED_LANES - 1)
        return self.first_us + (lanes - 1) * lane + lanes * slope * depth


def choose_attention(times: Sequence[KernelTime], depth: int, lanes: int = 1) -> str:
    """The kernel that is faster with so many *lanes* at *depth*; ``off`` without times, or when both are alike.

    Off is the better of equals: exact rows need less there.
    """
    expected = {time.flash_attn: time.at(depth, lanes) for time in times}
    clearly = "on" in expected and expected["on"] * ALIKE < expected.get("off", 0.0)
    return "on" if clearly else "off"


# -- exactness --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one number of rows.

    Args:
        rows: rows of a sequence in a micro-batch are a multiple of this.
        outputs: so are those of them whose logits are computed.
        mismatch: the shape that differed, and where; empty when every shape gave the same bits.
        step_us: a lone lane's step with this padding, in microseconds.
    """

    rows: int
    outputs: int
    mismatch: str
    step_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """What was found about the rows of one context.

    Args:
        positions: of the sequence that was compared.
        plain_us: a lone lane's step without any padding, in microseconds.
        unfinished: why it ended before it found anything; empty otherwise.
    """

    positions: int
    plain_us: int
    trials: tuple[Trial, ...]
    unfinished: str = ""

    @property
    def found(self) -> Trial | None:
        """The trial in which all was the same."""
        return next((trial for trial in self.trials if not trial.mismatch), None)

    @property
    def cost(self) -> float:
        """A step's time by the tactic over a plain step's; 0 without a tactic."""
        found = self.found
        return found.step_us / self.plain_us if found and self.plain_us else 0.0

    def why_not(self) -> str:
        """Why rows of this context are not exact; empty when they are."""
        if self.found is not None:
            return ""
        if self.unfinished:
            return self.unfinished
        last = self.trials[-1].mismatch if self.trials else "nothing was tried"
        return f"rows of this model depend on what is computed beside them ({last})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tactic:
    """How a context is to be made and filled so that rows are exact."""

    kernels: str
    flash_attn: str
    kv_type: str
    rows: int
    outputs: int


# -- the record -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What is known of a model as it is served.

    Args:
        attention: times of the kernels; empty where they were not compared.
        exactness: of this context; None until it is asked for.
        measured_ms: when the last of it was measured, in milliseconds since 1970; 0 for never.
        trouble: why something could not be measured; empty otherwise.
    """

    identity: Identity
    attention: tuple[KernelTime, ...] = ()
    exactness: Exactness | None = None
    measured_ms: int = 0
    trouble: str = ""

    @property
    def batch_invariant(self) -> bool | str:
        """True when a reply's bits do not depend on what else runs; otherwise why that is not so."""
        if self.exactness is None:
            return self.trouble or "not measured yet: it is when a session first asks for it"
        return self.exactness.why_not() or True

    @property
    def tactic(self) -> Tactic | None:
        """What makes rows exact in this context; None where nothing does, or nothing was tried."""
        found = self.exactness.found if self.exactness else None
        if found is None:
            return None
        return Tactic(
            kernels=self.identity.kernels,
            flash_attn=self.identity.flash_attn,
            kv_type=self.identity.kv_type,
            rows=found.rows,
            outputs=found.outputs,
        )


def choose_tactic(known: Sequence[Capability]) -> Capability | None:
    """The cheapest of several contexts' tactics, by the time of a step; None when none of them has one."""
    exact = [one for one in known if one.exactness is not None and one.exactness.found is not None]
    return min(exact, key=_step_us, default=None)


def is_cheap(one: Capability) -> bool:
    """Whether a context's tactic is so cheap that others need not be tried."""
    return one.exactness is not None and 0 < one.exactness.cost <= CHEAP


def _step_us(one: Capability) -> int:
    found = one.exactness.found if one.exactness else None
    assert found is not None
    return found.step_us


# -- JSON -------------------------------------------------------------------------------------------


def to_json(one: Capability) -> str:
    """The record as people and programs read it. ``from_json`` reads it back."""
    invariant, tactic, exactness = one.batch_invariant, one.tactic, one.exactness
    record = {
        "format": FORMAT,
        "batch_invariant": invariant,
        "tactic": asdict(tactic) if tactic else None,
        "cost": round(exactness.cost, 3) if exactness and tactic else None,
        "identity": asdict(one.identity),
        "attention": [asdict(time) for time in one.attention],
        "exactness": _exactness(exactness) if exactness else None,
        "measured_ms": one.measured_ms,
        "trouble": one.trouble,
    }
    return json.dumps(record)


def _exactness(one: Exactness) -> dict[str, Any]:
    return asdict(one) | {"shapes": list(SHAPES)}


def from_json(text: str | bytes) -> Capability | None:
    """A record that ``to_json`` wrote; None for everything else, which is to be measured again.

    What can be said twice in a record is read once only, so that no record contradicts itself.
    """
    try:
        record = json.loads(text)
        if _field(record, "format", int) != FORMAT:
            return None
        exactness = record["exactness"]
        return Capability(
            identity=_read_identity(_field(record, "identity", dict)),
            attention=tuple(_read_time(one) for one in _field(record, "attention", list)),
            exactness=None if exactness is None else _read_exactness(exactness),
            measured_ms=_count(record, "measured_ms"),
            trouble=_field(record, "trouble", str),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_identity(record: Mapping[str, Any]) -> Identity:
    texts = {
        name: _field(record, name, str)
        for name in ("model", "library", "cpu", "kernels", "flash_attn", "kv_type")
    }
    return Identity(**texts, threads=_count(record, "threads"), n_ubatch=_count(record, "n_ubatch"))


def _read_time(record: Mapping[str, Any]) -> KernelTime:
    numbers = {name: _count(record, name, least=1) for name in ("depth", "first_us", "batch_us", "deep_us")}
    return KernelTime(flash_attn=_kernel(record), **numbers)


def _read_exactness(record: Mapping[str, Any]) -> Exactness:
    if record["shapes"] != list(SHAPES):
        raise ValueError("other shapes were compared")
    return Exactness(
        positions=_count(record, "positions"),
        plain_us=_count(record, "plain_us"),
        trials=tuple(_read_trial(one) for one in _field(record, "trials", list)),
        unfinished=_field(record, "unfinished", str),
    )


def _read_trial(record: Mapping[str, Any]) -> Trial:
    rows, outputs = _count(record, "rows"), _count(record, "outputs")
    if (rows, outputs) not in PADDINGS:
        raise ValueError("no such padding is tried")
    return Trial(
        rows=rows,
        outputs=outputs,
        mismatch=_field(record, "mismatch", str),
        step_us=_count(record, "step_us"),
    )


def _kernel(record: Mapping[str, Any]) -> str:
    name = _field(record, "flash_attn", str)
    if name not in {"off", "on"}:
        raise ValueError("no such kernel")
    return name


def _field(record: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = record[name]
    if type(value) is not kind:  # a bool is an int to isinstance
        raise TypeError(f"{name} is no {kind.__name__}")
    return value


def _count(record: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    value = _field(record, name, int)
    if value < least:
        raise ValueError(f"{name} is too small")
    return value
