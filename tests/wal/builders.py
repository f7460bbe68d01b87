"""Small commands that can be told apart, and logs made of them."""

import random
from collections.abc import Iterable
from pathlib import Path

from superfluid.core.record import Command, Record, encode_command
from superfluid.wal import Files, Log, Opened
from superfluid_protocol import event


def command(number: int, *, size: int = 0, noise: int = 0) -> Command:
    """The command with this number; larger by ``size`` bytes that compress and ``noise`` bytes that do not."""
    source = random.Random(number)
    tokens = (source.randrange(2**32) for _ in range(noise // 4))
    body = event.Appended(text="." * size, span=(number, *tokens))
    record = Record(session=1, event_id=number, epoch=1, ts_unix_ms=0, body=body)
    return Command(op_id=f"op-{number}", digest=None, request_id=None, records=(record,))


def encoded(number: int, *, size: int = 0, noise: int = 0) -> bytes:
    return encode_command(command(number, size=size, noise=noise))


def numbers(commands: Iterable[Command]) -> list[int]:
    """The numbers of the commands, each checked to be whole."""
    found = []
    for item in commands:
        [record] = item.records
        noise = 4 * (len(record.body.span) - 1)
        assert item == command(record.event_id, size=len(record.body.text), noise=noise)
        found.append(record.event_id)
    return found


def open_log(directory: Path, *, files: Files | None = None, now_ms: int = 1_000) -> Opened:
    return Log.open(directory, files=files, now_ms=now_ms)


def begun(directory: Path, *, files: Files | None = None, now_ms: int = 1_000) -> tuple[Log, list[int]]:
    """An opened log whose run has begun, and the numbers it held."""
    opened = open_log(directory, files=files, now_ms=now_ms)
    found = numbers(opened.commands)
    opened.log.begin()
    return opened.log, found


def held(directory: Path, *, files: Files | None = None) -> list[int]:
    """What the log holds when it is opened now; it is closed again, without having been written."""
    opened = open_log(directory, files=files)
    try:
        return numbers(opened.commands)
    finally:
        opened.log.close()
