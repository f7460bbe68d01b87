"""A model file, loaded whole or vocabulary only, and what is wrong with a file that is none."""

import ctypes
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import xxhash

from superfluid.core.errors import ModelError
from superfluid.core.limits import MIB
from superfluid.worker.llama.library import complaints, compute_plainly, forget_complaints, lib

_GGUF_MAGIC: Final = b"GGUF"
_POINTER_PREFIX: Final = b"version https://git-lfs"
_META_BYTES: Final = 256
"""First guess of a metadata value's length; longer ones are read again with their own length."""


class Model:
    """A loaded model. Closed by whoever loaded it, after every context made of it.

    Args:
        path: the model file.
        vocab_only: load no weights. Such a model must not be asked for its layers or heads: llama.cpp aborts the
            process then.
        plain: compute products with quantised weights one row at a time (``messages.KERNELS``).
        on_progress: called from this thread with the share that is loaded.

    Raises:
        ModelError: the file is no model that can be loaded; the error names path and cause.
    """

    def __init__(
        self,
        path: Path,
        *,
        vocab_only: bool,
        plain: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        check_file(path)
        params = lib.llama_model_default_params()
        params.vocab_only = vocab_only
        if plain:
            compute_plainly()
            params.use_extra_bufts = False  # where repacked weights would lie
        if on_progress is not None:
            # Held until the load is over: ctypes would free it, and llama.cpp jump into nothing.
            params.progress_callback = _progress_callback(on_progress)
        forget_complaints()
        handle = lib.llama_model_load_from_file(bytes(path), params)
        if not handle:
            raise _why_not(path)
        self.path = path
        self.handle: Any = handle
        self.vocab: Any = lib.llama_model_get_vocab(handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self.metadata = _metadata(handle)

    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained for, or 0 when the file does not say.

        Read from the metadata, because a vocabulary-only load leaves llama.cpp's own number at 0.
        """
        text = self.metadata.get(f"{self.metadata.get('general.architecture', '')}.context_length", "")
        return int(text) if text.isdecimal() else 0

    @property
    def description(self) -> str:
        """llama.cpp's words for it, such as ``llama 135M Q4_1``; needs the weights."""
        return _text(partial(lib.llama_model_desc, self.handle))

    def eog_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""
        return frozenset(i for i in range(self.n_vocab) if lib.llama_vocab_is_eog(self.vocab, i))

    def close(self) -> None:
        """Free it. Calling it again does nothing."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = self.vocab = None


def check_file(path: Path) -> None:
    """Refuse what is cheaply seen to be no model, with a better reason than llama.cpp has.

    Raises:
        ModelError: of the kind ``missing``, ``not-a-file``, ``empty``, ``pointer``, ``not-gguf`` or ``permission``.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelError(f"model file {path} is {what}", kind="not-a-file")
        with path.open("rb") as file:
            head = file.read(len(_POINTER_PREFIX))
    except FileNotFoundError:
        raise ModelError(f"model file {path} does not exist", kind="missing") from None
    except PermissionError:
        raise ModelError(f"model file {path} may not be read by this user", kind="permission") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelError(f"model file {path} cannot be read: {error}", kind="missing") from error
    if not head:
        raise ModelError(f"model file {path} is empty (0 bytes)", kind="empty")
    if head == _POINTER_PREFIX:
        reason = f"model file {path} is a git-lfs pointer, not the model; fetch it with: git lfs pull"
        raise ModelError(reason, kind="pointer")
    if not head.startswith(_GGUF_MAGIC):
        raise ModelError(f"model file {path} is not a GGUF file", kind="not-gguf")


def model_digest(path: Path, *, check_cancelled: Callable[[], object] = lambda: None) -> str:
    """xxh3-128 of the file's content, as hexadecimal: the identity of the weights.

    Reads the whole file (seconds a gigabyte): call it in a thread.

    Args:
        check_cancelled: called before each block, some milliseconds apart; what it raises ends the reading.

    Raises:
        ModelError: as ``check_file``; or the file cannot be read to its end.
    """
    check_file(path)
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as file:
            check_cancelled()
            while block := file.read(MIB):
                digest.update(block)
                check_cancelled()
    except OSError as error:
        raise ModelError(f"model file {path} cannot be read: {error}", kind="missing") from error
    return digest.hexdigest()


def _why_not(path: Path) -> ModelError:
    """The error for a load that llama.cpp refused, from its own last lines."""
    lines = complaints()
    said = "; ".join(line for line in lines if line) or "the engine gives no reason"
    # Wordings of llama.cpp's loader and GGUF reader; anything else keeps its own words under "engine".
    cut_short = ("within the file bounds", "exceeds remaining file size", "failed to read")
    if any(words in said for words in cut_short):
        return ModelError(f"model file {path} is truncated or damaged: {said}", kind="truncated")
    if "alloc" in said or "mmap failed" in said or "bad_alloc" in said:
        return ModelError(f"too little memory to load model file {path}: {said}", kind="memory")
    return ModelError(f"model file {path} cannot be loaded: {said}", kind="engine")


def _progress_callback(on_progress: Callable[[float], None]) -> Any:  # noqa: ANN401 - a ctypes function pointer
    def report(fraction: float, _user_data: Any) -> bool:  # noqa: ANN401 - ctypes' void pointer
        on_progress(fraction)
        return True

    return lib.llama_progress_callback(report)


def _metadata(handle: Any) -> dict[str, str]:  # noqa: ANN401 - the bindings have no types
    entries = {}
    for index in range(lib.llama_model_meta_count(handle)):
        key = _text(partial(lib.llama_model_meta_key_by_index, handle, index))
        entries[key] = _text(partial(lib.llama_model_meta_val_str_by_index, handle, index))
    return entries


def _text(read: Callable[[Any, int], int]) -> str:
    """Call a function of snprintf's manner: it returns the length it needs, and fills what it is given."""
    buffer = bytearray(_META_BYTES)
    length = read((ctypes.c_char * len(buffer)).from_buffer(buffer), len(buffer))
    if length >= len(buffer):
        buffer = bytearray(length + 1)
        length = read((ctypes.c_char * len(buffer)).from_buffer(buffer), len(buffer))
    return bytes(buffer[: max(length, 0)]).decode(errors="replace")
