"""One llama.cpp context, typed: rows in, logits out, sequence operations, and what its memory really holds.

Every sequence has a KV buffer of its own (``kv_unified`` off): a short lane does not slow down beside long ones. What
follows from that, read in llama.cpp's source and measured:

* A call takes rows whose sequence ids are ascending; neighbours in id share a graph. It goes through them in steps: a
  micro-batch has as many rows of each of its sequences as the shortest of them has left, and at most ``n_ubatch`` in all.
* Which kernel computes a row depends on how many rows of its sequence the micro-batch has. Rows of exact jobs therefore
  come in multiples of ``exact_rows``: dummy rows at the sequence's next positions fill up, and are cut off again after
  the call. They are seen by no row before them. Such calls fit one micro-batch, and every sequence in them has a
  multiple: what else is in the call decides nothing.
* ``llama_memory_seq_cp`` between such buffers copies all cells of the buffer, and only at the next ``llama_decode``:
  until then either side reads as something else. It is never used here. A copy is an export and a restore of the one
  sequence, which costs what the sequence holds and is complete when it returns.
* After a call that does not return 0 only the memory knows how many positions a sequence has.
"""

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from superfluid.core.errors import ModelError
from superfluid.core.limits import EXACT_DUMMIES, MAX_DRAFT, MIB
from superfluid.worker.llama.library import complaints, forget_complaints, lib
from superfluid.worker.llama.model import Model
from superfluid.worker.memory import available_bytes, default_context
from superfluid.worker.messages import Load

Ids: TypeAlias = npt.NDArray[np.int32]
Row: TypeAlias = npt.NDArray[np.float32]
State: TypeAlias = npt.NDArray[np.uint8]
"""The exported state of a sequence, as the engine lays it out. Never changed once it is made."""

_FLASH: Final = {"off": 0, "on": 1, "auto": -1}
_KV_TYPES: Final = {"f16": 1, "bf16": 30, "f32": 0, "q8_0": 8}
"""``ggml_type`` of each name; the bindings have no constant for bf16."""
_KV_BYTES: Final = {"f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32}
"""Bytes of one value; q8_0 stores 32 values and their 2-byte scale in 34."""

_MAX_CELLS: Final = 1 << 31
"""llama.cpp counts the cells of a context in 32 bits."""

_abort_by_strlen = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
"""The abort callback: libc's ``strlen`` on a two-byte flag.

llama.cpp asks the callback before every node of its graph, hundreds of times a step. A Python callback would take the
interpreter's lock each time and stall the step behind the thread that reads the link. ``strlen`` needs no lock and
answers 0 (false) while the flag's first byte is 0, and 1 (true) once another thread has stored a byte there.
"""


class Outcome(IntEnum):
    """How a call of ``llama_decode`` ended. Anything but OK: ask ``length`` of every sequence of the batch."""

    OK = 0
    FULL = 1
    """No cells for these rows. Nothing was stored."""
    ABORTED = 2
    """The abort flag was set. Graphs that had run remain stored."""
    FAILED = 3
    """The engine refused or broke on the batch; its complaints say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a context costs: bytes of KV a position, and of all its sequences together."""

    bytes_per_token: int
    total: int


class Context:
    """One context of *model* with ``load.n_seq`` sequences. Only one thread may use it.

    ``abort_nowait`` alone may be called from any thread.

    Raises:
        ModelError: of the kind ``memory`` when it does not fit, ``engine`` when llama.cpp refuses it
        otherwise.
    """

    def __init__(self, model: Model, load: Load) -> None:
        per_token = _bytes_per_token(model, load)
        n_ctx = load.n_ctx or default_context(
            trained=model.n_ctx_train, position_bytes=per_token * load.n_seq, available=available_bytes()
        )
        memory = _check_memory(model, load, n_ctx, per_token)
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx * load.n_seq
        params.n_seq_max = load.n_seq
        # A decode round has a row of every lane, however small the chunks of a prefill are to be.
        params.n_batch = max(min(load.n_batch, n_ctx), load.n_seq, load.exact_rows)
        params.n_ubatch = max(min(load.n_ubatch, params.n_batch), load.exact_rows)
        # The last row of a sequence is asked for, and those of guesses; room for the logits of all rows would be large.
        params.n_outputs_max = max(load.n_seq * load.exact_outputs, 1 + MAX_DRAFT + load.exact_outputs)
        params.n_threads = params.n_threads_batch = load.threads
        params.flash_attn_type = _FLASH[load.flash_attn]
        params.type_k = params.type_v = _KV_TYPES[load.kv_type]
        params.kv_unified = False
        params.no_perf = True
        self._abort_flag = (ctypes.c_char * 2)()
        params.abort_callback = _abort_by_strlen
        params.abort_callback_data = ctypes.addressof(self._abort_flag)
        forget_complaints()
        handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            raise _why_not(model.path, memory)
        self.handle: Any = handle
        self.model = model
        self._memory: Any = lib.llama_get_memory(handle)
        self._check_mode()
        self.n_vocab = model.n_vocab
        self.n_ctx: int = lib.llama_n_ctx_seq(handle)
        self.n_seq: int = lib.llama_n_seq_max(handle)
        self.n_batch: int = lib.llama_n_batch(handle)
        self.n_ubatch: int = lib.llama_n_ubatch(handle)
        self.exact_rows = load.exact_rows
        self.exact_outputs = load.exact_outputs
        self.threads = load.threads
        self.bytes_per_token = memory.bytes_per_token
        self._cuts_freely = not (
            lib.llama_model_is_recurrent(model.handle) or lib.llama_model_is_hybrid(model.handle)
        )
        self._window: int = lib.llama_model_n_swa(model.handle)
        self._batch = _Batch(self.n_batch)
        self._stride = 1

    @property
    def cuts(self) -> str:
        """How a sequence can be cut, one of ``messages.CUTS``."""
        if not self._cuts_freely:
            return "none"
        return "window" if self._window > 0 else "free"

    def _check_mode(self) -> None:
        """Refuse a context that is not what this module is written for; elsewhere llama.cpp would abort."""
        handle, path = self.handle, self.model.path
        wrong = None
        if not self._memory:
            wrong = f"model file {path} cannot generate text: it has no memory of a sequence"
        elif lib.llama_n_ctx_seq(handle) * lib.llama_n_seq_max(handle) != lib.llama_n_ctx(handle):
            wrong = "this build of llama.cpp shares one KV buffer between sequences"
        if wrong is not None:
            self.close()
            raise ModelError(wrong, kind="engine")

    def close(self) -> None:
        """Free it. Calling it again does nothing."""
        if self.handle:
            lib.llama_free(self.handle)
            self.handle = self._memory = None

    def set_threads(self, threads: int) -> None:
        """Let the next calls use so many threads."""
        lib.llama_set_n_threads(self.handle, threads, threads)
        self.threads = threads

    # -- rows ---------------------------------------------------------------------------------------

    def room(self, *, exact: bool) -> int:
        """Positions of a sequence that can be computed. The last ones are left to the dummy rows of exact jobs, whether
        a job needs them or not: where its reply ends must not depend on how it was computed."""
        return self.n_ctx - (EXACT_DUMMIES if exact else 0)

    def chunk_rows(self, *, exact: bool) -> int:
        """Most rows of one sequence in a call; for an exact job a multiple of ``exact_rows``."""
        return self.n_ubatch // self.exact_rows * self.exact_rows if exact else self.n_batch

    def lanes(self, *, exact: bool) -> int:
        """Most sequences in a call of ``decode_rows``."""
        return self.n_ubatch // self.exact_rows if exact else self.n_batch

    def decode_chunk(
        self, seq: int, start: int, tokens: Ids, *, logits: bool, exact: bool = False
    ) -> Outcome:
        """Compute rows of one sequence at positions *start* and on, at most ``chunk_rows``.

        Args:
            logits: whether ``logits(len(tokens) - 1)`` is wanted afterwards.
            exact: fill up to a multiple of ``exact_rows``.
        """
        rows = self._fill(seq, start, tokens, exact=exact)
        if logits:
            self._want(len(tokens) - 1, len(tokens), exact=exact)
        return self._decode_run(seq, start + len(tokens), rows, len(tokens))

    def decode_guesses(self, seq: int, start: int, tokens: Ids, *, exact: bool = False) -> Outcome:
        """The same, for at most ``1 + MAX_DRAFT`` rows that all have logits afterwards."""
        rows = self._fill(seq, start, tokens, exact=exact)
        self._want(0, len(tokens), exact=exact)
        return self._decode_run(seq, start + len(tokens), rows, len(tokens))

    def _fill(self, seq: int, start: int, tokens: Ids, *, exact: bool) -> int:
        """Set the batch to rows of one sequence, without logits; returns how many, dummies included."""
        n = len(tokens)
        rows = n + -n % self.exact_rows if exact else n
        batch = self._batch
        batch.tokens[:n] = tokens
        batch.tokens[n:rows] = tokens[-1]
        batch.positions[:rows] = np.arange(start, start + rows, dtype=np.int32)
        batch.seqs[:rows] = seq
        batch.outputs[:rows] = 0
        return rows

    def _want(self, first: int, end: int, *, exact: bool) -> None:
        """Ask for the logits of some rows of one sequence; for exact rows in whole groups of ``exact_outputs``."""
        group = self.exact_outputs if exact else 1
        self._batch.outputs[first - first % group : end + -end % group] = 1

    def _decode_run(self, seq: int, end: int, rows: int, wanted: int) -> Outcome:
        self._stride = 1
        outcome = self._decode(rows)
        if outcome is Outcome.OK and rows > wanted and not self.trim(seq, end):
            return Outcome.FAILED
        return outcome

    def decode_rows(
        self, seqs: list[int], positions: list[int], tokens: list[int], *, exact: bool = False
    ) -> Outcome:
        """Compute one row of each of several sequences, in ascending order of their ids, all with logits.

        Args:
            exact: give each sequence ``exact_rows`` rows; at most ``lanes`` sequences.
        """
        stride = self._stride = self.exact_rows if exact else 1
        n = len(seqs) * stride
        batch = self._batch
        if stride == 1:
            batch.tokens[:n] = tokens
            batch.positions[:n] = positions
            batch.seqs[:n] = seqs
            batch.outputs[:n] = 1
            return self._decode(n)
        batch.tokens[:n] = np.repeat(tokens, stride)
        batch.positions[:n] = np.add.outer(positions, np.arange(stride)).ravel()
        batch.seqs[:n] = np.repeat(seqs, stride)
        batch.outputs[:n].reshape(-1, stride)[:] = np.arange(stride) < self.exact_outputs
        outcome = self._decode(n)
        if outcome is Outcome.OK:
            cut = [self.trim(seq, position + 1) for seq, position in zip(seqs, positions, strict=True)]
            return Outcome.OK if all(cut) else Outcome.FAILED
        return outcome

    def _decode(self, n: int) -> Outcome:
        self._batch.struct.n_tokens = n
        status = lib.llama_decode(self.handle, self._batch.struct)
        return Outcome(status) if 0 <= status <= Outcome.ABORTED else Outcome.FAILED

    def logits(self, row: int) -> Row:
        """The logits of row *row* of the last call, dummies not counted. A view: the next call overwrites it."""
        pointer = lib.llama_get_logits_ith(self.handle, row * self._stride)
        if not pointer:
            raise IndexError(f"row {row} of the batch has no logits")
        memory = (ctypes.c_float * self.n_vocab).from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(memoryview(memory), dtype=np.float32)

    def abort_nowait(self) -> None:
        """End the call that runs now, or the next one, as soon as its graph reaches another node."""
        self._abort_flag[0] = b"\x01"

    def clear_abort(self) -> None:
        """Let calls run again."""
        self._abort_flag[0] = b"\x00"

    # -- sequences ----------------------------------------------------------------------------------

    def length(self, seq: int) -> int:
        """How many positions *seq* really holds, as the memory says."""
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def clear(self, seq: int) -> None:
        """Forget *seq*. This cannot fail."""
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def trim(self, seq: int, n: int) -> bool:
        """Keep the first *n* positions of *seq*.

        Returns:
            whether *seq* now holds exactly them, so that position *n* can be computed. Models with recurrent
            layers cannot cut, and those with a sliding window only while the window before the cut is there.
            On False the sequence is cleared.
        """
        held = self.length(seq)
        if held > n:
            lib.llama_memory_seq_rm(self._memory, seq, n, -1)
        if self.length(seq) == n and self._reaches_back(seq, n):
            return True
        self.clear(seq)
        return n == 0

    def _reaches_back(self, seq: int, n: int) -> bool:
        """Whether everything that position *n* attends to is there."""
        first = int(lib.llama_memory_seq_pos_min(self._memory, seq))
        if n == 0 or first <= 0 or not self._cuts_freely:
            return True  # recurrent memory holds one state, at the last position
        return self._window > 0 and first <= n - self._window + 1

    def export(self, seq: int) -> State | None:
        """The state of *seq*, whole: as many bytes as it holds positions. None when there is no memory for it."""
        size = self.export_size(seq)
        try:
            state = np.empty(size, np.uint8)
        except MemoryError:
            return None
        written = int(lib.llama_state_seq_get_data(self.handle, _bytes_at(state), size, seq))
        if written != size or size == 0:
            return None  # the engine found no memory for its own part
        state.setflags(write=False)
        return state

    def export_size(self, seq: int) -> int:
        """Bytes of what ``export`` would return."""
        return int(lib.llama_state_seq_get_size(self.handle, seq))

    def restore(self, seq: int, state: State, n: int) -> bool:
        """Make *seq* hold the first *n* positions of an exported *state*.

        Returns:
            whether *seq* holds exactly them; on False it is cleared. Costs what *state* holds, not what *n* says.
        """
        self.clear(seq)
        if n == 0:
            return True
        taken = lib.llama_state_seq_set_data(self.handle, _bytes_at(state), len(state), seq)
        if taken == len(state) and self.length(seq) >= n:
            return self.trim(seq, n)
        self.clear(seq)  # a failed import leaves what it had read so far
        return False


class _Batch:
    """The arrays of a ``llama_batch``, owned by numpy, so that a whole batch is filled in a few assignments."""

    def __init__(self, rows: int) -> None:
        self.tokens = np.zeros(rows, np.int32)
        self.positions = np.zeros(rows, np.int32)
        self.seqs = np.zeros(rows, np.int32)
        self.outputs = np.zeros(rows, np.int8)
        self._counts = np.ones(rows, np.int32)
        # The struct wants an array of sequence ids for each row: pointers to the single elements of `seqs`.
        base = self.seqs.ctypes.data
        self._pointers = np.arange(base, base + 4 * rows, 4, dtype=np.uintp)
        self.struct = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self.tokens, lib.llama_token),
            embd=None,
            pos=_pointer(self.positions, lib.llama_pos),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=_pointer(self.outputs, ctypes.c_int8),
        )


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:  # noqa: ANN401 - ctypes pointers of any type
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _bytes_at(array: npt.NDArray[np.uint8]) -> Any:  # noqa: ANN401 - a ctypes pointer
    return _pointer(array, ctypes.c_uint8)


def _bytes_per_token(model: Model, load: Load) -> int:
    """KV bytes of one position of one sequence."""
    handle = model.handle
    heads = lib.llama_model_n_head_kv(handle)
    width = lib.llama_model_n_embd(handle) // max(lib.llama_model_n_head(handle), 1)
    architecture = model.metadata.get("general.architecture", "")
    key, value = (
        int(model.metadata.get(f"{architecture}.attention.{name}_length", width)) for name in ("key", "value")
    )
    layers = lib.llama_model_n_layer(handle)
    return int(layers * heads * (key + value) * _KV_BYTES[load.kv_type])


def _check_memory(model: Model, load: Load, n_ctx: int, per_token: int) -> Memory:
    """Refuse a context that cannot fit, before llama.cpp writes zeros over memory that is not there.

    The kernel promises more memory than it has, so the allocation itself would succeed and the process be killed later,
    without a reason.
    """
    memory = Memory(bytes_per_token=per_token, total=per_token * n_ctx * load.n_seq)
    room = available_bytes()
    wanted = f"{load.n_seq} sequences of {n_ctx} tokens of {model.path}"
    advice = "lower the context or the number of lanes"
    if room is not None and memory.total > room:
        raise ModelError(
            f"too little memory: {wanted} need {memory.total // MIB} MiB of KV cache, "
            f"{room // MIB} MiB are available; {advice}",
            kind="memory",
        )
    if n_ctx * load.n_seq >= _MAX_CELLS:
        raise ModelError(f"{wanted} are more than the engine can count; {advice}", kind="memory")
    return memory


def _why_not(path: Path, memory: Memory) -> ModelError:
    said = "; ".join(complaints()) or "the engine gives no reason"
    if "alloc" in said:
        return ModelError(
            f"too little memory for {memory.total // MIB} MiB of KV cache of {path}: {said}", kind="memory"
        )
    return ModelError(f"no context can be made of {path}: {said}", kind="engine")
