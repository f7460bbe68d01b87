"""llama-server beside the daemon: started on a loopback port, asked for streams of tokens, ended by its process id."""

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0
END_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class PeerServer:
    """A llama-server that serves. *command* is how it was started, without its path."""

    port: int
    command: tuple[str, ...]

    def get(self, path: str) -> bytes:
        """The body of a small page."""
        with socket.create_connection((LOOPBACK, self.port), timeout=5) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: peer\r\nConnection: close\r\n\r\n".encode())
            received = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        head, _blank, body = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(head.decode(errors="replace"))
        return body


@dataclass(kw_only=True)
class PeerStream:
    """One reply. While it runs only bytes are kept, with the time of each piece: they are read afterwards."""

    asked: float
    received: bytearray = field(default_factory=bytearray)
    pieces: list[tuple[int, float]] = field(default_factory=list)

    def arrivals(self) -> list[tuple[float, int]]:
        """(when, tokens) of every event that brought any.

        Raises:
            RuntimeError: The server refused.
        """
        if b"200 OK" not in self.received[:32]:
            raise RuntimeError(bytes(self.received[:500]).decode(errors="replace"))
        found = []
        ends = [end for end, _when in self.pieces]
        begin = self.received.find(b"data: ")
        while begin >= 0:
            end = self.received.find(b"\n", begin)
            said = json.loads(self.received[begin + len(b"data: ") : end])
            tokens = len(said.get("tokens", ()))
            # The last event repeats nothing but counts: with it come the timings, not another token.
            if tokens and not said.get("stop"):
                found.append((self.pieces[bisect_left(ends, end)][1], tokens))
            begin = self.received.find(b"data: ", end)
        return found


@contextmanager
def peer_serving(
    folder: Path, model: Path, *, lanes: int, context: int, threads: int, options: Sequence[str] = ()
) -> Iterator[PeerServer]:
    """Serve *model* with llama-server until the block ends.

    Args:
        folder: Where the binary lies, with its libraries.
        context: Positions of each lane.
    """
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    # Its context is that of all slots together.
    arguments = (
        *("-m", str(model), "--host", LOOPBACK, "--port", str(port), "-t", str(threads)),
        *("-np", str(lanes), "-c", str(lanes * context), *options),
    )
    environ = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [str(folder / "llama-server"), *arguments], env=environ, stdout=output, stderr=output
        )
        server = PeerServer(port=port, command=("llama-server", *arguments[2:]))
        try:
            if not _healthy(server, child):
                output.seek(0)
                raise RuntimeError(
                    f"llama-server did not come up:\n{output.read()[-2000:].decode(errors='replace')}"
                )
            yield server
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def ask_peer(server: PeerServer, prompts: Sequence[Sequence[int]], tokens: int) -> list[PeerStream]:
    """Ask for one reply to each prompt, all at once: greedy, of exactly so many tokens, nothing from a cache."""
    frames = [_request(prompt, tokens) for prompt in prompts]
    selector = selectors.DefaultSelector()
    streams = []
    for _ in prompts:
        stream = PeerStream(asked=0.0)
        streams.append(stream)
        selector.register(socket.create_connection((LOOPBACK, server.port)), selectors.EVENT_READ, stream)
    keys = list(selector.get_map().values())
    for key, frame in zip(keys, frames, strict=True):
        key.data.asked = time.perf_counter()
        _socket(key).sendall(frame)
    while selector.get_map():
        for key, _mask in selector.select():
            data = _socket(key).recv(1 << 16)
            if data:
                key.data.received += data
                key.data.pieces.append((len(key.data.received), time.perf_counter()))
            else:
                selector.unregister(key.fileobj)
                _socket(key).close()
    selector.close()
    return streams


def _socket(key: selectors.SelectorKey) -> socket.socket:
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj


def _request(prompt: Sequence[int], tokens: int) -> bytes:
    body = json.dumps(
        {
            "prompt": list(prompt),
            "n_predict": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
    ).encode()
    head = (
        "POST /completion HTTP/1.1\r\nHost: peer\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _healthy(server: PeerServer, child: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        with suppress(OSError):
            server.get("/health")
            return True
        time.sleep(0.2)
    return False
