"""The walk over a log: frame, need more, clean end, torn tail, damage."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superfluid.core import walk
from superfluid.core.frame import HEAD_BYTES, FileHead, Frame, Kind, Position, build_frame
from superfluid.core.mark import Mark
from superfluid.core.walk import CleanEnd, Damage, NeedMore, TornTail, Walker

HEAD = FileHead(log_id=b"L" * 16, store_id=b"S" * 16, key=99, created_ms=0)


class Log:
    """A small log in memory: what ``core.frame`` lays out, without the head."""

    def __init__(self):
        self.data = b""
        self.ends = [Position(offset=HEAD_BYTES, previous=HEAD.checksum, epoch=0)]

    def add(self, raw, kind=Kind.DATA):
        at = replace(self.ends[-1], epoch=1)
        built = build_frame(kind, raw, at=at, durable=at.offset, key=HEAD.key)
        self.data += built.data
        self.ends.append(built.after)
        return self

    def mark(self, frames):
        """The mark as it stood after so many frames."""
        at = self.ends[frames]
        return Mark(sequence=frames, log_id=HEAD.log_id, end=at.offset, checksum=at.previous, epoch=1)

    def starts(self, frames):
        return self.ends[frames].offset - HEAD_BYTES


def small_log():
    return Log().add(b"start", Kind.START).add(b"one").add(b"two" * 20).add(b"", Kind.CLOSE)


def run(data, witness=None, *, step=None):
    """Walk all of it; the payloads and the end."""
    walker = Walker(HEAD, witness)
    pieces = [data] if step is None else [data[at : at + step] for at in range(0, len(data), step)]
    payloads = []

    def drain():
        while isinstance(item := walker.next_item(), Frame):
            payloads.append(item.payload)
        return item

    for piece in pieces:
        if not isinstance(drain(), NeedMore):
            break
        walker.feed(piece)
    if isinstance(item := drain(), NeedMore):
        walker.feed_end()
        item = drain()
    assert drain() == item, "an end is repeated"
    return payloads, item


PAYLOADS = [b"start", b"one", b"two" * 20, b""]


@pytest.mark.parametrize("step", [None, 1, 7, 16, 64, 100])
def test_a_whole_log_is_walked_to_its_clean_end(step):
    log = small_log()

    assert run(log.data, step=step) == (PAYLOADS, CleanEnd(at=log.ends[-1]))


def test_an_empty_log_ends_cleanly():
    payloads, end = run(b"")

    assert payloads == []
    assert end == CleanEnd(at=Log().ends[0])


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("cut", range(len(small_log().data)))
def test_a_cut_at_any_byte_keeps_the_whole_frames(cut, step):
    log = small_log()
    whole = max(n for n in range(len(log.ends)) if log.starts(n) <= cut)

    payloads, end = run(log.data[:cut], log.mark(whole), step=step)

    assert payloads == PAYLOADS[:whole]
    if cut == log.starts(whole):
        assert end == CleanEnd(at=log.ends[whole])
    else:
        assert isinstance(end, TornTail)
        assert (end.at, end.file_end) == (log.ends[whole], HEAD_BYTES + cut)
        assert end.at.offset <= end.zeros_from <= end.file_end


@pytest.mark.parametrize("cut", range(len(small_log().data)))
def test_a_cut_below_the_mark_is_damage(cut):
    log = small_log()

    _, end = run(log.data[:cut], log.mark(4))

    assert isinstance(end, Damage)
    assert end.offset == max(at.offset for at in log.ends if at.offset - HEAD_BYTES <= cut)
    assert f"up to {log.ends[4].offset}" in end.reason


@pytest.mark.parametrize("with_mark", [False, True])
@pytest.mark.parametrize("frames", [2, 3, 4])
def test_a_flip_is_damage_where_a_later_frame_or_the_mark_vouches(frames, with_mark):
    log = small_log()
    data = log.data[: log.starts(frames)]
    last = log.starts(frames - 1)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x04
        frame = max(n for n in range(frames) if log.starts(n) <= at)

        payloads, end = run(bytes(flipped), log.mark(frames) if with_mark else None)

        assert payloads == PAYLOADS[:frame]
        if with_mark or at < last:
            assert isinstance(end, Damage), at
            assert end.offset == log.ends[frame].offset
        else:
            assert isinstance(end, TornTail), at
            assert end.at == log.ends[frame]


@pytest.mark.parametrize("count", [1, 8, 15, 16, 512, 4096, 10_000])
@pytest.mark.parametrize("with_mark", [False, True])
def test_a_tail_of_zeros_is_torn_and_empty(count, with_mark):
    log = small_log()

    payloads, end = run(log.data + bytes(count), log.mark(4) if with_mark else None)

    assert payloads == PAYLOADS
    at = log.ends[-1]
    assert end == TornTail(at=at, zeros_from=at.offset, file_end=at.offset + count)


def test_zeros_in_place_of_a_frame_before_another_are_damage():
    log = small_log()
    begin, end_of = log.starts(2), log.starts(3)
    data = log.data[:begin] + bytes(end_of - begin) + log.data[end_of:]

    _, end = run(data)

    assert isinstance(end, Damage)
    assert end.offset == log.ends[2].offset
    assert str(log.ends[3].offset) in end.reason


@pytest.mark.parametrize("step", [None, 1, 1000])
@pytest.mark.parametrize("shift", [0, 4, 16])
def test_log_bytes_inside_a_torn_payload_are_no_frames(shift, step):
    log = small_log()
    whole = log.data
    log.add(bytes(shift) + whole + b"x" * 100)

    payloads, end = run(log.data[:-20], log.mark(4), step=step)

    assert payloads == PAYLOADS
    assert isinstance(end, TornTail)


def test_a_frame_of_this_log_that_claims_no_more_does_not_vouch():
    # The durable end of a later frame may lie before the bad one's start: then both were in flight.
    log = small_log()
    at = log.ends[-1]
    later = Position(offset=at.offset + 160, previous=1, epoch=1)
    frame = build_frame(Kind.DATA, b"later", at=later, durable=at.offset, key=HEAD.key)

    _, end = run(log.data + b"x" * 160 + frame.data)

    assert isinstance(end, TornTail)


def test_more_than_one_write_behind_a_bad_frame_is_damage(monkeypatch):
    monkeypatch.setattr(walk, "MAX_FRAME_BYTES", 1000)
    log = small_log()

    assert isinstance(run(log.data + b"x" * 1000)[1], TornTail)
    assert isinstance(run(log.data + b"x" * 999 + bytes(500))[1], TornTail)
    _, end = run(log.data + b"x" + bytes(999) + b"x")
    assert isinstance(end, Damage)
    assert end.offset == log.ends[-1].offset
    assert "more than one write" in end.reason


def test_a_frame_that_does_not_chain_is_damage_even_at_the_tail():
    log = small_log()
    at = log.ends[-1]
    other = build_frame(
        Kind.DATA,
        b"x",
        at=Position(offset=at.offset, previous=at.previous ^ 1, epoch=1),
        durable=0,
        key=HEAD.key,
    )

    _, end = run(log.data + other.data)

    assert isinstance(end, Damage)
    assert "does not follow" in end.reason


def test_a_snapshot_is_refused_by_name():
    log = small_log().add(b"state", Kind.SNAPSHOT)

    _, end = run(log.data)

    assert isinstance(end, Damage)
    assert "snapshot" in end.reason


@pytest.mark.parametrize("change", [{"end": -16}, {"end": 16}, {"checksum": 1}, {"end": 5 - 10_000}])
def test_a_mark_that_names_no_frame_of_this_log_is_damage(change):
    log = small_log()
    mark = log.mark(3)
    fields = {"end": mark.end, "checksum": mark.checksum}
    fields = {name: value + change.get(name, 0) for name, value in fields.items()}
    fields["end"] = max(0, fields["end"])

    _, end = run(log.data, Mark(sequence=1, log_id=HEAD.log_id, epoch=1, **fields))

    assert isinstance(end, Damage)
    assert "mark" in end.reason


def test_a_mark_from_before_the_first_frame_vouches_for_nothing():
    log = small_log()

    assert run(log.data, log.mark(0)) == (PAYLOADS, CleanEnd(at=log.ends[-1]))
    assert isinstance(run(b"x" * 100, log.mark(0))[1], TornTail)


def test_it_says_how_much_it_needs():
    log = Log().add(b"x" * 1000)
    walker = Walker(HEAD, None)

    assert walker.next_item() == NeedMore(64)
    walker.feed(log.data[:100])
    assert walker.next_item() == NeedMore(len(log.data) - 100)


@given(st.lists(st.binary(max_size=60), max_size=5), st.integers(1, 50), st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_the_pieces_it_is_fed_in_do_not_matter(payloads, step, tail):
    log = Log()
    for payload in payloads:
        log.add(payload)

    assert run(log.data + tail, step=step) == run(log.data + tail)
