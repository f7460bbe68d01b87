"""The directory of park files: their names, whose they are, and what the worker is asked to do with them.

The daemon reads no more of a file than its header. That what a file holds is whole, and of the tokens that it claims, the
worker finds out before its context is touched.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from superfluid.core.ids import TokenIds
from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.worker import park
from superfluid.worker.messages import Fetch, Seal

_EXACT: Final = " exact="

_log = structlog.get_logger(target=__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A file that can be used.

    Attributes:
        exact: Leading positions that were computed exactly.
        size: Bytes of the file.
        encoding: A ``park.Encoding``.
    """

    session: int
    stream: TokenIds
    exact: int
    size: int
    encoding: int


class ParkFiles:
    """The park files of one model.

    Args:
        directory: Made, for its owner alone, when it is first needed.
        lossy: Write files in the lossy encoding.
    """

    def __init__(self, directory: Path, *, lossy: bool) -> None:
        self.directory = directory
        self.lossy = lossy
        self.encodings: dict[int, int] = {}
        """Of each session's file."""
        self._identity: str | None = None

    def identify(self, model: str, settings: str) -> None:
        """Say what KV is of: digest of the model, and what else decides whether a worker can read it."""
        self._identity = f"{model} {settings}"

    def path(self, session: int) -> Path:
        """The session's file."""
        return self.directory / f"{session}{park.SUFFIX}"

    def seal(self, order: SealFile) -> Seal:
        """What to tell the worker."""
        self.encodings[order.session] = park.Encoding.Q8 if self.lossy else park.Encoding.RAW
        return Seal(
            ticket=order.ticket,
            entry=order.entry,
            path=str(self.path(order.session)),
            identity=self._name(order.exact),
            digest=_digest(order.stream),
            positions=len(order.stream),
            lossy=self.lossy,
        )

    def fetch(self, order: FetchFile) -> Fetch:
        """What to tell the worker."""
        return Fetch(
            ticket=order.ticket,
            entry=order.entry,
            path=str(self.path(order.session)),
            identity=self._name(order.exact),
            digest=_digest(order.stream),
            positions=len(order.stream),
        )

    def remove(self, order: RemoveFile) -> None:
        """Remove a session's file, if it has one. Blocks."""
        self.path(order.session).unlink(missing_ok=True)

    def prepare(self) -> list[tuple[int, park.Header, int]]:
        """Make the directory, remove what killed workers left unfinished, and read the headers. Blocks.

        Returns:
            session, header and size of each file, the one that was written last coming last.

        Raises:
            OSError: The directory cannot be used.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in park.leftovers(self.directory):
            leftover.unlink(missing_ok=True)
        found: list[tuple[float, int, park.Header, int]] = []
        with os.scandir(self.directory) as files:
            for file in files:
                stem, suffix = Path(file.name).stem, Path(file.name).suffix
                if suffix != park.SUFFIX or not stem.isdecimal():
                    continue
                try:
                    status = file.stat(follow_symlinks=False)
                    found.append(
                        (status.st_mtime, int(stem), park.read_header(Path(file.path)), status.st_size)
                    )
                except (park.ParkError, OSError) as fault:
                    _log.warning("a park file is not used", file=file.path, reason=str(fault))
        return [(session, header, size) for _, session, header, size in sorted(found, key=lambda f: f[:2])]

    def usable(
        self,
        found: list[tuple[int, park.Header, int]],
        stream_of: Callable[[int], "TokenIds | None"],
    ) -> list[Parked]:
        """Of what `prepare` found: the files that are of this model and of the sessions as they are."""
        usable: list[Parked] = []
        for session, header, size in found:
            identity, _, exact = header.identity.partition(_EXACT)
            stream = stream_of(session)
            reason = None
            if identity != self._identity or not exact.isdecimal():
                reason = "it was made with another model or other settings"
            elif stream is None or len(stream) < header.positions:
                reason = "the session is not there any more, or shorter than the file"
            elif _digest(stream[: header.positions]) != header.digest:
                reason = "the session has other tokens"
            if reason is not None or stream is None:
                _log.info("a park file is not used", session=session, reason=reason)
                continue
            self.encodings[session] = header.encoding
            usable.append(
                Parked(
                    session=session,
                    stream=stream[: header.positions],
                    exact=int(exact),
                    size=size,
                    encoding=header.encoding,
                )
            )
        return usable

    def _name(self, exact: int) -> str:
        assert self._identity is not None, "nothing is parked before the model is known"
        return f"{self._identity}{_EXACT}{exact}"


def _digest(stream: TokenIds) -> bytes:
    return hashlib.sha256(stream.tobytes()).digest()
