"""The directory of park files: their names, whose they are, and what the worker is asked to do with them.

The daemon reads no more of a file than its header. That what a file holds is whole, and of the tokens that it claims, the
worker finds out before its context is touched.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from superfluid.core.ids import TokenIds
from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.core.origin import Origin
from superfluid.worker import park
from superfluid.worker.messages import Fetch, Seal

StreamOf = Callable[[int], "TokenIds | None"]
"""Gives a session's tokens, or None for one that is not there."""

_log = structlog.get_logger(target=__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file that lies there.

    Attributes:
        size: Bytes of the file.
        header: None where it cannot be read; *damage* says why.
    """

    session: int
    size: int
    header: park.Header | None
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A file that can be used.

    Attributes:
        name: What it says of itself (`Origin.name`).
        exact: Leading positions that are exact.
        size: Bytes of the file.
        lossy: Whether it is in the lossy encoding.
    """

    session: int
    stream: TokenIds
    name: str
    exact: int
    size: int
    lossy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A file that cannot be used now.

    Attributes:
        size: Bytes of the file.
        gone: Its session is gone, so that it never can.
    """

    session: int
    size: int
    gone: bool = False


class ParkFiles:
    """The park files of one model.

    Args:
        directory: Made, for its owner alone, when it is first needed.
        lossy: Write files in the lossy encoding.
    """

    def __init__(self, directory: Path, *, lossy: bool) -> None:
        self.directory = directory
        self.lossy = lossy

    def path(self, session: int) -> Path:
        """The session's file."""
        return self.directory / f"{session}{park.SUFFIX}"

    def seal(self, order: SealFile) -> Seal:
        """What to tell the worker."""
        return Seal(
            ticket=order.ticket,
            entry=order.entry,
            path=str(self.path(order.session)),
            identity=order.name,
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
            identity=order.name,
            digest=_digest(order.stream),
            positions=len(order.stream),
        )

    def remove(self, order: RemoveFile) -> None:
        """Remove a session's file, if it has one. Blocks."""
        self.path(order.session).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Make the directory, and remove what killed workers left unfinished in it. Blocks.

        Only while no worker writes there.

        Raises:
            OSError: The directory cannot be used.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in park.leftovers(self.directory):
            leftover.unlink(missing_ok=True)

    def scan(self) -> list[Found]:
        """Read the headers, the file that was written last coming last. Blocks.

        Raises:
            OSError: The directory cannot be used.
        """
        found: list[tuple[int, Found]] = []
        with os.scandir(self.directory) as files:
            for file in files:
                session = file.name.removesuffix(park.SUFFIX)
                if not session.isdecimal() or file.name != self.path(int(session)).name:
                    continue  # of somebody else
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                header, damage = _header(Path(file.path))
                found.append(
                    (status.st_mtime_ns, Found(session=int(session), size=size, header=header, damage=damage))
                )
        return [one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].session))]

    def judge(
        self, found: list[Found], stream_of: StreamOf, origin: Origin, *, n_ctx: int
    ) -> Iterator[Parked | Refused]:
        """Tell which of the files can be used by a worker of that origin, with *n_ctx* positions a sequence, for the
        sessions as they are."""
        for file in found:
            stream = stream_of(file.session)
            parked = None if stream is None else _judge(file, stream, origin, n_ctx)
            if isinstance(parked, Parked):
                yield parked
                continue
            reason = parked or "its session is not there any more"
            gone = stream is None
            _log.info(
                "a park file is not used",
                session=file.session,
                bytes=file.size,
                reason=reason,
                then="it is removed" if gone else "it goes before others when room is needed",
            )
            yield Refused(session=file.session, size=file.size, gone=gone)


def _judge(file: Found, stream: TokenIds, origin: Origin, n_ctx: int) -> Parked | str:
    """The file as it can be used, or why it cannot."""
    header = file.header
    if header is None:
        return file.damage
    exact = origin.trusted(header.identity)
    if exact is None:
        return "it was made with another model or other settings"
    if header.positions > n_ctx:
        return f"it has {header.positions} positions, and the context {n_ctx}"
    if len(stream) < header.positions:
        return "the session is shorter than the file"
    stream = stream[: header.positions]
    if _digest(stream) != header.digest:
        return "the session has other tokens"
    return Parked(
        session=file.session,
        stream=stream,
        name=header.identity,
        exact=exact,
        size=file.size,
        lossy=header.encoding is not park.Encoding.RAW,
    )


def _header(path: Path) -> tuple[park.Header | None, str]:
    try:
        return park.read_header(path), ""
    except (park.ParkError, OSError) as fault:
        return None, str(fault)


def _digest(stream: TokenIds) -> bytes:
    return hashlib.sha256(stream.tobytes()).digest()
