"""Which vocabulary a sessions directory belongs to.

A log holds token ids, and ids mean something in one vocabulary only: served by a model with another one, every session
would silently become nonsense. So the directory remembers the vocabulary of its first session, and a model with another
is refused. Another model with the same vocabulary (a fine-tune, another quantisation) is fine; sessions record it
as a change of their fingerprint.

Where that memory was removed, the sessions themselves still tell something: the model that they last ran on, and ids that
only a large enough vocabulary has.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from superfluid.core.errors import StartError
from superfluid.core.state import Session
from superfluid.sched.model import Text
from superfluid.wal.files import OsFiles
from superfluid.wal.sync import Syncer, create_file

NAME: Final = "model.json"

_log = structlog.get_logger(target=__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a directory's sessions tell of their vocabulary.

    Attributes:
        largest_token: The largest id in them; -1 without any.
        fingerprints: Of the models that they last ran on.
    """

    any_sessions: bool
    largest_token: int
    fingerprints: frozenset[int]

    @classmethod
    def of(cls, sessions: Iterable[Session]) -> "Recorded":
        """Look through all *sessions*."""
        known = list(sessions)
        return cls(
            any_sessions=bool(known),
            largest_token=max(
                (int(np.frombuffer(s.own_tokens, np.uint32).max()) for s in known if s.own_tokens), default=-1
            ),
            fingerprints=frozenset(s.fingerprint for s in known if s.fingerprint is not None),
        )


def check_vocabulary(directory: Path, text: Text, model: str, recorded: Recorded) -> None:
    """Compare with what the directory remembers; remember this one where nothing speaks against it.

    Args:
        text: Of the model that is to be served.
        model: What to call the model in messages.

    Raises:
        StartError: The directory's sessions were made with another vocabulary.
    """
    path = directory / NAME
    known = _read(path)
    if known is not None and known.get("vocabulary") == text.vocabulary_digest:
        return
    if recorded.any_sessions:
        if known is not None:
            raise StartError(
                f"the sessions in {directory} were made with {known.get('model')}, whose vocabulary is not that of "
                f"{model}; serve that model, or choose another --sessions directory"
            )
        _check_recorded(path, text, model, recorded)
    _write(path, {"vocabulary": text.vocabulary_digest, "model": model})


def _check_recorded(path: Path, text: Text, model: str, recorded: Recorded) -> None:
    """The file is gone: refuse what cannot be, and say what can only be hoped."""
    if recorded.largest_token >= text.vocabulary.n_tokens:
        raise StartError(
            f"the sessions in {path.parent} hold token ids that the vocabulary of {model} does not have ({path}, which "
            "named their model, is missing); serve their model, or choose another --sessions directory"
        )
    if text.fingerprint not in recorded.fingerprints:
        _log.warning(
            "nothing says which vocabulary the sessions were made with: the file that did is missing; from now on it is "
            "taken to be that of the model served, and if it is not, their texts will make no sense to it",
            missing=str(path),
            model=model,
        )


def _read(path: Path) -> dict[str, str] | None:
    """What is remembered; None where there is no file."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as failure:
        raise _unreadable(path, str(failure)) from failure
    if not isinstance(found, dict):
        raise _unreadable(path, "it is no JSON object")
    return found


def _unreadable(path: Path, reason: str) -> StartError:
    return StartError(f"{path} cannot be read ({reason}); move it away to accept the model as it is")


def _write(path: Path, content: dict[str, str]) -> None:
    """It is there whole or not at all."""
    files = OsFiles()
    syncer = Syncer(files, monotonic=time.monotonic, on_slow=None)
    try:
        files.close(create_file(files, syncer, path, json.dumps(content).encode()))
    except OSError as failure:
        raise StartError(f"{path} cannot be written ({failure.strerror})") from failure
