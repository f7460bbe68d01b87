"""Whatever stands in a log, it is commands, a torn tail or the one named error, the same whole and byte by byte.

``python fuzz/fuzz_record.py`` runs it under atheris, which has to be installed; the tests run a fixed number of inputs.
"""

from superfluid.core.errors import LogCorrupt
from superfluid.core.frame import HEAD_BYTES, FileHead, Frame, Kind, unpack
from superfluid.core.record import Command, decode_batch, encode_batch, encode_command
from superfluid.core.walk import CleanEnd, Damage, NeedMore, TornTail, Walker

HEAD = FileHead(log_id=bytes(16), store_id=bytes(range(16)), key=0x5EED, created_ms=0)
"""Inputs are what follows this head, so that seeds with this key's checksums are logs."""


def one_input(data: bytes) -> None:
    """The invariant, for one input: as the frames of a log, and as the payload of one."""
    found, end = walk(data, len(data) or 1)
    assert walk(data, 1) == (found, end)
    size = HEAD_BYTES + len(data)
    match end:
        case CleanEnd():
            assert end.at.offset == size
        case TornTail():
            assert end.at.offset <= end.zeros_from <= end.file_end == size
        case Damage():
            assert HEAD_BYTES <= end.offset <= size
    for frame in found:
        if frame.kind is Kind.DATA:
            try:
                payload = unpack(frame)
            except LogCorrupt:
                continue
            commands(payload)
    commands(data)


def walk(data: bytes, step: int) -> tuple[list[Frame], CleanEnd | TornTail | Damage]:
    """The frames behind the head, fed in pieces of *step* bytes, and how they end."""
    walker = Walker(HEAD, None)
    pieces = (data[start : start + step] for start in range(0, len(data), step))
    found = []
    while True:
        item = walker.next_item()
        if isinstance(item, Frame):
            found.append(item)
        elif not isinstance(item, NeedMore):
            assert walker.next_item() == item
            return found, item
        elif (piece := next(pieces, None)) is not None:
            walker.feed(piece)
        else:
            walker.feed_end()


def commands(payload: bytes) -> list[Command]:
    """The commands of a payload, which say the same when they are written again; none where it is refused."""
    try:
        found = list(decode_batch(payload))
    except LogCorrupt:
        return []
    written = encode_batch([encode_command(command) for command in found])
    assert encode_batch([encode_command(command) for command in decode_batch(written)]) == written
    return found


if __name__ == "__main__":
    import sys

    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
