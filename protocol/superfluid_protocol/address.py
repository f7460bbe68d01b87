"""Where the daemon's socket and log are: one rule that server and clients follow, so that they meet.

Linux stores a Unix socket's path in 108 bytes, the closing zero included (``unix(7)``, ``sun_path``). A longer path falls
back to a short one in a per-user directory under ``/tmp``, named by a digest of the long path.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SUN_PATH_BYTES: Final = 108
SOCKET_NAME: Final = "superfluid.sock"
SESSIONS_NAME: Final = "sessions"


def home(environ: Mapping[str, str]) -> Path:
    """The daemon's directory: ``$SUPERFLUID_HOME``, or ``~/.superfluid``."""
    configured = environ.get("SUPERFLUID_HOME")
    if configured:
        return Path(configured)
    return Path(environ.get("HOME") or "/") / ".superfluid"


def default_socket(environ: Mapping[str, str]) -> Path:
    """The socket that is used when none is named."""
    return home(environ) / SOCKET_NAME


def default_sessions(environ: Mapping[str, str]) -> Path:
    """The directory of the session log that is used when none is named."""
    return home(environ) / SESSIONS_NAME


def socket_path(path: Path, uid: int) -> Path:
    """The path that is really bound and connected to for a socket named *path*.

    Args:
        path: As configured; taken relative to the working directory.
        uid: The user whose daemon it is. The short directory belongs to that user alone, and both sides check it.
    """
    absolute = path.absolute()
    encoded = bytes(absolute)
    if len(encoded) < SUN_PATH_BYTES:
        return absolute
    digest = hashlib.sha256(encoded).hexdigest()[:32]
    return Path(f"/tmp/superfluid-{uid}") / f"{digest}.sock"  # noqa: S108 - both sides check the directory's owner
