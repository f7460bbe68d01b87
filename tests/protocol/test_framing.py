"""Frames: the same ones however the bytes arrive, and nothing allocated for a lie."""

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superfluid_protocol import (
    MAX_FRAME,
    DecodeError,
    FrameDecoder,
    FrameTooLarge,
    Request,
    decode,
    encode,
    encode_frame,
    request,
)

PAYLOADS = (b"", b"a", b"hello" * 50, bytes(range(256)), b"")
STREAM = b"".join(encode_frame(payload) for payload in PAYLOADS)


def take_all(decoder):
    taken = []
    while (payload := decoder.next_frame()) is not None:
        taken.append(payload)
    return taken


def test_a_frame_is_its_length_and_its_bytes():
    assert encode_frame(b"abc") == b"\x03\x00\x00\x00abc"
    assert MAX_FRAME == 64 * 1024 * 1024


def test_two_frames_in_one_read():
    decoder = FrameDecoder()
    decoder.feed(STREAM)

    assert take_all(decoder) == list(PAYLOADS)
    assert decoder.buffered == 0


def test_one_byte_at_a_time():
    decoder = FrameDecoder()
    taken = []
    for at in range(len(STREAM)):
        decoder.feed(STREAM[at : at + 1])
        taken += take_all(decoder)

    assert taken == list(PAYLOADS)


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_split_at_each_byte(cut):
    decoder = FrameDecoder()
    decoder.feed(STREAM[:cut])
    first = take_all(decoder)
    held = decoder.buffered
    decoder.feed(STREAM[cut:])

    assert first + take_all(decoder) == list(PAYLOADS)
    assert held <= cut


def test_a_payload_that_does_not_decode_costs_no_other_frame():
    good = encode(request.Cancel(session=1))
    decoder = FrameDecoder()
    decoder.feed(encode_frame(good) + encode_frame(b"\x23garbage") + encode_frame(good))

    first, bad, last = take_all(decoder)

    with pytest.raises(DecodeError):
        decode(Request, bad)
    assert decode(Request, first) == decode(Request, last) == (request.Cancel(session=1), 2)


@settings(deadline=None)
@given(payloads=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(0, 3000)))
def test_any_cuts_give_the_same_frames(payloads, cuts):
    stream = b"".join(encode_frame(payload) for payload in payloads)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder = FrameDecoder()
    taken = []
    for start, end in itertools.pairwise(places):
        decoder.feed(memoryview(stream)[start:end])
        taken += take_all(decoder)

    assert taken == payloads
    assert decoder.buffered == 0


def test_an_incomplete_frame_is_not_an_error():
    decoder = FrameDecoder()

    assert decoder.next_frame() is None
    decoder.feed(b"\x03\x00\x00")
    assert (decoder.next_frame(), decoder.buffered) == (None, 3)
    decoder.feed(b"\x00ab")
    assert (decoder.next_frame(), decoder.buffered) == (None, 6)
    decoder.feed(b"c")
    assert (decoder.next_frame(), decoder.buffered) == (b"abc", 0)


@pytest.mark.parametrize("declared", [MAX_FRAME + 1, 2**31, 2**32 - 1])
def test_a_frame_too_large_is_refused_with_its_fourth_byte(declared):
    header = declared.to_bytes(4, "little")
    decoder = FrameDecoder()
    decoder.feed(header[:3])
    assert decoder.next_frame() is None
    decoder.feed(header[3:])

    tracemalloc.start()
    with pytest.raises(FrameTooLarge) as caught:
        decoder.next_frame()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (caught.value.declared, caught.value.limit) == (declared, MAX_FRAME)
    assert peak < 16 * 1024


def test_frames_before_the_bad_one_are_delivered_and_none_after():
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"good") + b"\xff\xff\xff\xff" + encode_frame(b"lost"))

    assert decoder.next_frame() == b"good"
    for _ in range(2):
        with pytest.raises(FrameTooLarge):
            decoder.next_frame()
        with pytest.raises(FrameTooLarge):
            decoder.feed(b"more")
    assert decoder.buffered == 0


def test_a_frame_at_the_limit_is_fine():
    decoder = FrameDecoder(limit=10)
    decoder.feed(encode_frame(bytes(10)) + encode_frame(bytes(11)))

    assert decoder.next_frame() == bytes(10)
    with pytest.raises(FrameTooLarge, match="11 bytes is above the limit of 10"):
        decoder.next_frame()


def test_a_payload_too_large_is_not_sent():
    with pytest.raises(FrameTooLarge):
        encode_frame(bytes(MAX_FRAME + 1))


def test_a_hundred_thousand_frames_in_one_read_move_few_bytes():
    """Counts the bytes that the buffer moves, not the time that it takes."""
    count, frame = 100_000, encode_frame(b"x" * 12)
    decoder = FrameDecoder()
    decoder.feed(frame * count)
    moved, held, taken = 0, len(frame) * count, 0
    while decoder.next_frame() is not None:
        taken += 1
        if len(decoder._buffer) != held:
            held = len(decoder._buffer)
            moved += held

    assert taken == count
    assert moved <= 2 * len(frame) * count


def test_a_small_tail_behind_a_large_frame_frees_the_large_buffer():
    decoder = FrameDecoder()
    decoder.feed(encode_frame(bytes(1_000_000)) + b"\x05")

    assert decoder.next_frame() == bytes(1_000_000)
    assert (decoder.buffered, len(decoder._buffer)) == (1, 1)


def test_the_largest_frame_in_pieces():
    piece = bytes(1 << 20)
    decoder = FrameDecoder()
    decoder.feed(MAX_FRAME.to_bytes(4, "little"))
    for _ in range(63):
        decoder.feed(piece)
        assert decoder.next_frame() is None
    decoder.feed(piece)

    assert len(decoder.next_frame()) == MAX_FRAME
    assert decoder.buffered == 0
