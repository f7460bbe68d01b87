"""The daemon with its log's file layer and its sockets watched: ``python traced_daemon.py OUTPUT serve …``.

Writes what strace would write, at the place where Python hands over to the kernel, so that the order of write, sync
and send is seen on machines without strace too.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from superfluid.cli.main import main
from superfluid.wal.files import OsFiles


def watched(
    name: str, call: Callable[..., Any], output: int, fd_of: Callable[[Any], int]
) -> Callable[..., Any]:
    """*call*, writing a line before and a line after it."""

    def wrapper(self: Any, *arguments: Any) -> Any:
        fd = fd_of(self) if isinstance(self, socket.socket) else arguments[0]
        data = next((bytes(a) for a in arguments if isinstance(a, bytes | bytearray | memoryview)), None)
        target = str(Path(f"/proc/self/fd/{fd}").readlink())
        thread = threading.get_native_id()
        text = f', "{_escape(data)}"' if data is not None else ""
        os.write(
            output, f"{thread} {name}({fd}<{_escape(target.encode())}>{text} <unfinished ...>\n".encode()
        )
        result = -1
        try:
            returned = call(self, *arguments)
            result = returned if isinstance(returned, int) else 0
        finally:
            os.write(output, f"{thread} <... {name} resumed>) = {result}\n".encode())
        return returned

    return wrapper


def _escape(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def install(output: int) -> None:
    for name, method in (("pwrite64", "pwrite"), ("fsync", "fsync")):
        setattr(OsFiles, method, watched(name, getattr(OsFiles, method), output, lambda _self: -1))
    socket.socket.send = watched("sendto", socket.socket.send, output, socket.socket.fileno)


if __name__ == "__main__":
    install(os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    main()
