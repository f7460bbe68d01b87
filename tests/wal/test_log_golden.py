"""The format on disk does not change by accident: files written once are read, and written again byte for byte.

``python -m tests.wal.test_log_golden`` writes them anew, which is right only together with a new format version.
"""

from pathlib import Path

import cbor2

from superfluid.core.frame import HEAD_BYTES, FileHead, Kind, Position, build_frame
from superfluid.core.mark import FILE_BYTES, Mark, encode_slot
from superfluid.core.record import encode_batch
from superfluid.wal import read_log
from tests.wal.builders import encoded, numbers, open_log

GOLDEN = Path(__file__).parent / "golden"
HEAD = FileHead(
    log_id=bytes(range(16)),
    store_id=bytes(range(16, 32)),
    key=0x0123456789ABCDEF,
    created_ms=1_700_000_000_000,
)
FRAMES = [
    (Kind.START, cbor2.dumps({"ts_unix_ms": 1_700_000_000_001})),
    (Kind.DATA, encode_batch([encoded(0), encoded(1, size=40)])),
    (Kind.DATA, encode_batch([encoded(2, size=5, noise=40)])),
    (Kind.CLOSE, b""),
    # Compressed: another version of the compressor may write other bytes, and must read these.
    (Kind.START, cbor2.dumps({"ts_unix_ms": 1_700_000_000_002})),
    (Kind.DATA, encode_batch([encoded(3, size=20_000)])),
    (Kind.CLOSE, b""),
]
STABLE_FRAMES = 4


def files():
    """The log, the length of its stable part, and its mark."""
    data, stable = HEAD.encode(), 0
    at = Position(offset=HEAD_BYTES, previous=HEAD.checksum, epoch=0)
    for index, (kind, raw) in enumerate(FRAMES):
        if kind is Kind.START:
            at = Position(offset=at.offset, previous=at.previous, epoch=at.epoch + 1)
        built = build_frame(kind, raw, at=at, durable=at.offset, key=HEAD.key)
        data += built.data
        at = built.after
        if index < STABLE_FRAMES:
            stable = len(data)
    mark = Mark(sequence=7, log_id=HEAD.log_id, end=at.offset, checksum=at.previous, epoch=at.epoch)
    slots = bytearray(FILE_BYTES)
    slots[mark.offset : mark.offset + 64] = encode_slot(mark)
    return data, stable, bytes(slots)


def test_the_bytes_are_the_ones_written_before():
    data, stable, _ = files()

    assert data[:stable] == (GOLDEN / "wal-v3.log").read_bytes()[:stable]


def test_the_files_written_before_are_read(tmp_path):
    directory = tmp_path / "s"
    directory.mkdir(0o700)
    for name, source in (("wal.log", "wal-v3.log"), ("wal.mark", "wal-v3.mark")):
        (directory / name).write_bytes((GOLDEN / source).read_bytes())
    assert numbers(read_log(directory)) == [0, 1, 2, 3]

    opened = open_log(directory)

    assert numbers(opened.commands) == [0, 1, 2, 3]
    assert (opened.clean, opened.warnings) == (True, ())
    assert (opened.log.log_id, opened.log.store_id, opened.log.epoch) == (HEAD.log_id, HEAD.store_id, 3)
    opened.log.close()


if __name__ == "__main__":
    log, _, marks = files()
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "wal-v3.log").write_bytes(log)
    (GOLDEN / "wal-v3.mark").write_bytes(marks)
