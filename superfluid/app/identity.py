"""Which vocabulary a sessions directory belongs to.

A log holds token ids, and ids mean something in one vocabulary only: served by a model with another one, every session
would silently become nonsense. So the directory remembers the vocabulary of its first session, and a model with another
is refused. Another model with the same vocabulary (a fine-tune, another quantisation) is fine; sessions record it
as a change of their fingerprint.
"""

import json
import os
from pathlib import Path
from typing import Final

from superfluid.core.errors import StartError

NAME: Final = "model.json"


def check_vocabulary(directory: Path, digest: str, model: str, *, has_sessions: bool) -> None:
    """Compare with what the directory remembers; remember this one where there is nothing to protect yet.

    Args:
        digest: Of the whole vocabulary.
        model: What to call the model in messages.

    Raises:
        StartError: The directory's sessions were made with another vocabulary.
    """
    path = directory / NAME
    known = _read(path)
    if known is not None and known.get("vocabulary") == digest:
        return
    if known is not None and has_sessions:
        raise StartError(
            f"the sessions in {directory} were made with {known.get('model')}, whose vocabulary is not that of {model}; "
            "serve that model, or choose another --sessions directory"
        )
    _write(path, {"vocabulary": digest, "model": model})


def _read(path: Path) -> dict[str, str] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        raise StartError(
            f"{path} cannot be read ({failure}); move it away to accept the model as it is"
        ) from failure
    return found if isinstance(found, dict) else None


def _write(path: Path, content: dict[str, str]) -> None:
    """Temporary name, fsync, rename, fsync of the directory: it is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as failure:
        raise StartError(f"{path} cannot be written ({failure.strerror})") from failure
