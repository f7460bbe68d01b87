"""A worker that misbehaves in the way its first argument names. Speaks the real messages as far as it is
honest."""

import os
import signal
import socket
import sys
import time

from superfluid.core.plan import Result
from superfluid.worker import codec
from superfluid.worker.main import Link
from superfluid.worker.messages import Failed, Filed, Probed, Progress, Ready, ToWorker

READY = Ready(
    n_vocab=260,
    n_ctx=512,
    n_ctx_train=4096,
    n_seq=6,
    bytes_per_token=256,
    description="fake",
    library="none",
    threads=1,
    cuts="free",
    settings="none",
)

BYTES_FOR_RESULT = {
    "noise": b"\x05\x00\x00\x00\xff\xff\xff\xff\xff",
    "giant": b"\xff\xff\xff\xff",
    "zero-length": b"\x00\x00\x00\x00",
    "half-a-frame": b"\x40\x00\x00\x00\x83",
    "wrong-kind": codec.encode(Progress(fraction=0.5)),
    "other-plan": codec.encode(Result(plan_id=999, jobs=(), positions=())),
    "impossible-cell": codec.encode(Result(plan_id=1, jobs=(), positions=((600, 1),))),
    "filed-unasked": codec.encode(Filed(ticket=2, ok=True, size=9)),
    "filed-absurd": codec.encode(Filed(ticket=1, ok=True, size=1 << 40)),
    "filed-failed-with-bytes": codec.encode(Filed(ticket=1, ok=False, size=9)),
    "result-unasked": codec.encode(Result(plan_id=1, jobs=(), positions=())),
    "nothing": b"",
}


def main() -> None:
    mode, fd = sys.argv[1], int(sys.argv[3])
    sock = socket.socket(fileno=fd)
    link = Link(sock)
    link.receive()
    start(mode, link, sock)
    link.send(READY)
    while (message := link.receive()) is not None:
        answer(mode, message, sock)


def start(mode: str, link: Link, sock: socket.socket) -> None:
    """What goes wrong before the handshake is over."""
    match mode:
        case "fails":
            link.send(Failed(kind="memory", reason="too little of it"))
            os._exit(3)
        case "aborts-loading":
            sys.stderr.write("assertion failed: n < 3\n")
            sys.stderr.flush()
            os.abort()
        case "killed-loading":
            link.send(Progress(fraction=0.5))
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped-loading":
            link.send(Progress(fraction=0.5))
            os.kill(os.getpid(), signal.SIGSTOP)
        case "probes":
            link.send(Progress(fraction=0.5))
            link.send(Probed(record="{}"))
            os._exit(0)
        case "slow":
            time.sleep(60)
        case "noise-for-ready":
            sock.sendall(BYTES_FOR_RESULT["noise"])
        case "result-for-ready":
            sock.sendall(BYTES_FOR_RESULT["other-plan"])


def answer(mode: str, message: ToWorker, sock: socket.socket) -> None:
    """What goes wrong when work comes."""
    match mode:
        case "exits":
            sys.stderr.write("first line\nthe reason of it\n")
            sys.stderr.flush()
            os._exit(7)
        case "last-words":
            sock.sendall(codec.encode(Result(plan_id=1, jobs=(), positions=())))
            os._exit(0)
        case "deaf":  # to everything but SIGKILL
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "chatty":
            os.write(2, b"x" * (1 << 16))  # as much as the pipe holds
            sock.sendall(codec.encode(Result(plan_id=1, jobs=(), positions=())))
        case _:
            sock.sendall(BYTES_FOR_RESULT[mode])


if __name__ == "__main__":
    main()
