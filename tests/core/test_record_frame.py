"""Frames, the file head and the mark as bytes."""

import random
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core import mark as marks
from superfluid.core.errors import LogCorrupt
from superfluid.core.frame import (
    ALIGNMENT,
    HEAD_BYTES,
    HEADER_BYTES,
    FileHead,
    Frame,
    Kind,
    Position,
    build_frame,
    decode_head,
    objection,
    parse_header,
    payload_is_intact,
    unpack,
)
from superfluid.core.limits import COMPRESS_FROM_BYTES, MAX_PAYLOAD_BYTES
from superfluid.core.mark import Mark

HEAD = FileHead(log_id=b"L" * 16, store_id=b"S" * 16, key=0x1122334455667788, created_ms=1_700_000_000_000)
START = Position(offset=HEAD_BYTES, previous=HEAD.checksum, epoch=7)
U64 = st.integers(0, 2**64 - 1)


def build(raw=b"payload", *, kind=Kind.DATA, at=START):
    return build_frame(kind, raw, at=at, durable=at.offset, key=HEAD.key)


def parse(data, at=START):
    header = parse_header(data, 0, at.offset, HEAD.key)
    assert header is not None
    return header, Frame(header, Kind(header.kind), data[HEADER_BYTES : HEADER_BYTES + header.stored])


def test_the_head_has_the_layout_its_text_promises():
    data = HEAD.encode()

    magic, log_id, store_id, key, created, _ = struct.unpack("<8s16s16sQQQ", data[:64])
    assert (magic, log_id, store_id, key, created) == (
        b"SFLOG003",
        HEAD.log_id,
        HEAD.store_id,
        HEAD.key,
        HEAD.created_ms,
    )
    assert data[64:] == data[:64]


@pytest.mark.parametrize("at", range(HEAD_BYTES))
def test_one_intact_copy_of_the_head_is_enough(at):
    data = bytearray(HEAD.encode())
    data[at] ^= 0x01

    reading = decode_head(bytes(data))

    assert reading is not None
    assert reading.head == HEAD
    assert reading.damaged


def test_a_head_without_an_intact_copy_is_none():
    data = bytearray(HEAD.encode())
    data[10] ^= 0x01
    data[74] ^= 0x01

    assert decode_head(bytes(data)) is None
    assert decode_head(b"") is None
    assert decode_head(bytes(HEAD_BYTES)) is None


def test_two_intact_copies_that_disagree_are_none():
    other = FileHead(log_id=b"M" * 16, store_id=b"S" * 16, key=1, created_ms=2)

    assert decode_head(HEAD.encode()[:64] + other.encode()[:64]) is None


def test_a_frame_has_the_layout_its_text_promises():
    built = build(b"123456789")

    fields = struct.unpack_from("<4sBBHQQQIIQ", built.data)
    assert fields == (b"SFB3", 1, 0, 0, 128, 128, 7, 9, 9, HEAD.checksum)
    assert built.data[64:] == b"123456789" + bytes(7)
    assert built.after.offset == 128 + len(built.data)


@given(st.binary(max_size=100), st.sampled_from([Kind.DATA, Kind.START, Kind.CLOSE]))
def test_a_frame_reads_as_it_was_built(raw, kind):
    built = build(raw, kind=kind)
    header, frame = parse(built.data)

    assert objection(header, START) is None
    assert payload_is_intact(header, built.data[HEADER_BYTES:], HEAD.key)
    assert unpack(frame) == raw
    assert (frame.kind, frame.offset, frame.end) == (kind, 128, built.after.offset)
    assert built.after.offset % ALIGNMENT == 0


def test_a_large_payload_is_compressed_and_says_so():
    raw = b"all work and no play " * 2000
    built = build(raw)
    header, frame = parse(built.data)

    assert header.flags == 1
    assert header.raw == len(raw)
    assert len(built.data) < len(raw) // 8
    assert unpack(frame) == raw


def test_a_large_payload_that_does_not_shrink_is_stored_as_it_is():
    noise = random.Random(1).randbytes(COMPRESS_FROM_BYTES)

    header, frame = parse(build(noise).data)

    assert header.flags == 0
    assert unpack(frame) == noise


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_a_header_with_any_byte_changed_is_none(at):
    data = bytearray(build().data)
    data[at] ^= 0x10

    assert parse_header(bytes(data), 0, START.offset, HEAD.key) is None


def test_a_frame_elsewhere_is_none():
    data = build().data

    assert parse_header(data, 0, START.offset + 16, HEAD.key) is None
    assert parse_header(data, 0, START.offset, HEAD.key + 1) is None


def test_a_payload_with_any_byte_changed_is_not_intact():
    built = build()
    header, _ = parse(built.data)
    padded = built.data[HEADER_BYTES:]

    for at in range(len(padded)):
        changed = bytearray(padded)
        changed[at] ^= 0x01
        assert not payload_is_intact(header, bytes(changed), HEAD.key)


OBJECTIONS = {
    "another predecessor": ({"previous": 1}, "does not follow"),
    "a snapshot": ({"kind": 4}, "snapshot"),
    "an unknown kind": ({"kind": 9}, "kind 9"),
    "kind zero": ({"kind": 0}, "kind 0"),
    "an unknown flag": ({"flags": 2}, "flags 0x2"),
    "a reserved field in use": ({"zero": 1}, "does not know"),
    "durable beyond itself": ({"durable": 129}, "contradicts"),
    "an epoch that falls": ({"epoch": 6}, "contradicts"),
    "a length over the limit": ({"stored": MAX_PAYLOAD_BYTES + 1, "raw": MAX_PAYLOAD_BYTES + 1}, "limit"),
    "two lengths without compression": ({"raw": 8}, "length"),
}


@pytest.mark.parametrize(("changes", "text"), OBJECTIONS.values(), ids=OBJECTIONS.keys())
def test_an_intact_header_that_cannot_follow_is_objected_to(changes, text):
    header, _ = parse(build().data)

    reason = objection(header._replace(**changes), START)

    assert reason is not None
    assert text in reason


def compressed(payload, *, raw):
    header, _ = parse(build().data)
    return Frame(header._replace(flags=1, stored=len(payload), raw=raw), Kind.DATA, payload)


def test_a_payload_must_declare_its_size():
    payload = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000)

    with pytest.raises(LogCorrupt, match="declares"):
        unpack(compressed(payload, raw=1000))


def test_a_payload_that_declares_another_size_is_refused_before_it_is_decompressed():
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))

    with pytest.raises(LogCorrupt, match="declares"):
        unpack(compressed(bomb, raw=1000))


def test_a_payload_with_a_large_window_is_refused():
    params = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    raw = bytes(1 << 25)
    payload = zstandard.ZstdCompressor(compression_params=params).compress(raw)

    with pytest.raises(LogCorrupt, match="window"):
        unpack(compressed(payload, raw=len(raw)))


@pytest.mark.parametrize("spoil", [lambda p: p[:-3], lambda p: p + b"x", lambda p: b"garbage" + p])
def test_a_payload_that_does_not_decompress_is_refused(spoil):
    payload = zstandard.ZstdCompressor().compress(b"some text " * 100)

    with pytest.raises(LogCorrupt):
        unpack(compressed(spoil(payload), raw=1000))


# -- the mark ---------------------------------------------------------------------------------------


MARKS = st.builds(
    Mark, sequence=U64, log_id=st.binary(min_size=16, max_size=16), end=U64, checksum=U64, epoch=U64
)


@given(MARKS)
def test_a_slot_reads_as_it_was_written(mark):
    assert marks.decode_slot(marks.encode_slot(mark)) == mark


def mark_file(*written):
    data = bytearray(marks.FILE_BYTES)
    for mark in written:
        data[mark.offset : mark.offset + marks.SLOT_BYTES] = marks.encode_slot(mark)
    return data


def numbered(sequence):
    return Mark(sequence=sequence, log_id=b"L" * 16, end=1000 + sequence, checksum=5, epoch=1)


@pytest.mark.parametrize("order", [(4, 5), (5, 4), (5, 6)])
def test_the_latest_of_two_marks_counts(order):
    found = marks.latest(bytes(mark_file(*map(numbered, order))))

    assert found == numbered(max(order))


@pytest.mark.parametrize("at", range(marks.SLOT_BYTES))
def test_a_damaged_slot_leaves_the_other(at):
    data = mark_file(numbered(4), numbered(5))
    data[numbered(5).offset + at] ^= 0x80

    assert marks.latest(bytes(data)) == numbered(4)


@pytest.mark.parametrize("data", [b"", bytes(marks.FILE_BYTES), b"\xff" * marks.FILE_BYTES, b"SFMARK03"])
def test_no_intact_slot_is_no_mark(data):
    assert marks.latest(data) is None


def test_a_file_cut_to_its_first_slot_has_that_one():
    assert marks.latest(bytes(mark_file(numbered(4), numbered(5))[:64])) == numbered(4)
