"""Reads strace's output: which system call began and ended before which."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from superfluid.core.record import Record, decode_batch

TRACED = "pwrite64,fsync,fdatasync,sendto,sendmsg,sendmmsg,write,writev,pwritev"

FRAME_HEAD_BYTES = 64
DATA = 1
"""The kind of a frame that carries commands (see ``superfluid.core.frame``)."""

_BEGUN = re.compile(r'^(\d+) +(\w+)\(\d+<([^>]*)>(?:, "([^"]*)")?(.*)$')
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>.*= (-?\d+)")
_RESULT = re.compile(r"= (-?\d+)[^=]*$")


@dataclass(slots=True)
class Call:
    """One system call on a descriptor; *begun* and *ended* are places in the one order that strace saw."""

    name: str
    target: str
    data: bytes
    begun: int
    ended: int = -1
    result: int = -1


def tracer(output: Path) -> tuple[str, ...]:
    """The command to put in front: it traces all threads, and lets the traced program keep our process id."""
    return (
        *("strace", "-D", "-f", "-y", "-xx", "-s", "1000000"),
        *("-e", f"trace={TRACED}", "-e", "signal=none", "-o", str(output)),
    )


def read_calls(output: Path) -> list[Call]:
    calls: list[Call] = []
    # At most one of a thread, or a few where a signal's handler came between.
    open_of_thread: defaultdict[str, list[Call]] = defaultdict(list)
    for number, line in enumerate(output.read_text().splitlines()):
        if begun := _BEGUN.match(line):
            thread, name, target, data, rest = begun.groups()
            call = Call(name, _unescape(target).decode(), _unescape(data or ""), number)
            calls.append(call)
            if "<unfinished" in rest:
                open_of_thread[thread].append(call)
            elif result := _RESULT.search(rest):
                call.ended, call.result = number, int(result[1])
        elif resumed := _RESUMED.match(line):
            thread, name, result_text = resumed.groups()
            call = open_of_thread[thread].pop()
            assert call.name == name
            call.ended, call.result = number, int(result_text)
    return calls


def _unescape(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def records_written(call: Call) -> list[Record]:
    """The records in a write to the log; none in another write."""
    data = call.data
    if not data.startswith(b"SFB3") or data[4] != DATA:
        return []
    assert data[5] == 0, "this test keeps its batches below the size that is compressed"
    stored = int.from_bytes(data[32:36], "little")
    payload = data[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + stored]
    return [record for command in decode_batch(payload) for record in command.records]
