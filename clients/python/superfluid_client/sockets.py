"""Finding and reaching the daemon's socket: what both clients share of it. Nothing here waits."""

import errno
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from superfluid_client.errors import ConnectionFailed
from superfluid_protocol.address import default_socket, socket_path

CONNECT_SECONDS: Final = 5.0
"""How long connecting may take by default. Only a daemon that is too busy to accept makes it take time at all."""

CONNECT_RETRY_SECONDS: Final = 0.01
"""Pause before the next try while the daemon's queue of connections is full: a Unix socket then answers "try again" at
once, and there is nothing to wait on."""

MAX_IDLE: Final = 4
"""Connections a client keeps for its next requests; one that runs a stream and cancels it needs two."""


def locate(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path:
    """The path to connect to, by the rule that the daemon follows too.

    Raises:
        ConnectionFailed: The rule leads into the shared temporary directory and somebody else owns the place.
    """
    configured = default_socket(environ) if path is None else Path(path)
    real = socket_path(configured, os.getuid())
    if real != configured.absolute():
        _check_private(real.parent)
    return real


def _check_private(directory: Path) -> None:
    """The fallback directory is in a place where anybody may create names, so its owner has to be us."""
    try:
        info = directory.lstat()
    except OSError:
        return  # connecting will say what is missing
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise ConnectionFailed(f"{directory} belongs to another user; use a shorter socket path")


def try_connect(path: Path) -> socket.socket | None:
    """A connected, non-blocking socket; None when the daemon's queue of connections is full just now.

    Raises:
        ConnectionFailed: Nobody can be reached there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(os.fspath(path))
    except BlockingIOError:
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise connect_failure(path, error) from error
    return sock


def is_alive(sock: socket.socket) -> bool:
    """Whether a connection that waited between two requests can take the next one.

    Nothing is expected on it, so whatever can be read is its end.
    """
    try:
        sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def overloaded(path: Path) -> ConnectionFailed:
    """The error for a daemon whose queue of connections stayed full."""
    return ConnectionFailed(
        f"the daemon at {path} does not accept connections now; it is overloaded or stopped"
    )


def connect_failure(path: Path, error: OSError) -> ConnectionFailed:
    """Why no daemon was reached at *path*."""
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
        return ConnectionFailed(
            f"no superfluid daemon listens on {path}; start one with 'superfluid serve MODEL' "
            "(for example smollm2), or name its socket"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConnectionFailed(f"the socket {path} belongs to another user's daemon")
    return ConnectionFailed(f"the socket {path} cannot be connected to: {error.strerror or error}")
