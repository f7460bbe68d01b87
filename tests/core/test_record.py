"""Commands and records: what is encoded is what is read, and nothing else is read."""

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superfluid.core import record
from superfluid.core.errors import BadRequest, CommandTooLarge, EventTooLarge, LogCorrupt
from superfluid.core.record import Command, Record, decode_batch, encode_batch, encode_command
from superfluid_protocol import EventBody, event
from tests.protocol.strategies import values

U64 = st.integers(0, 2**64 - 1)
RECORDS = st.builds(
    Record, session=U64, event_id=U64, epoch=U64, ts_unix_ms=U64, body=values(EventBody, finite=True)
)
COMMANDS = st.builds(
    Command,
    op_id=st.none() | st.text(max_size=20),
    digest=st.none() | st.binary(max_size=20),
    request_id=st.none() | st.text(max_size=20),
    records=st.lists(RECORDS, max_size=3).map(tuple),
)


def appended(text="hello", *, span=(), **changes):
    fields = {"session": 1, "event_id": 2, "epoch": 3, "ts_unix_ms": 4, **changes}
    return Record(body=event.Appended(text=text, span=span), **fields)


def command(*records, op_id=None, digest=None, request_id=None):
    return Command(op_id=op_id, digest=digest, request_id=request_id, records=records)


@given(st.lists(COMMANDS, max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_batch_reads_as_it_was_written(commands):
    payload = encode_batch([encode_command(item) for item in commands])

    assert list(decode_batch(payload)) == commands


def test_the_plain_form_of_a_command_is_stable():
    encoded = encode_command(
        command(appended("hi", span=(1, 0x01020304)), op_id="op", digest=b"\x00\x01", request_id=None)
    )

    assert encoded.hex(" ") == (
        "84 62 6f 70 42 00 01 f6 81 85 01 02 03 04 83 01 62 68 69 48 01 00 00 00 04 03 02 01"
    )


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 65535, 65536])
def test_a_batch_of_any_length_has_the_head_cbor_gives_it(count):
    null = b"\xf6"

    assert encode_batch([null] * count) == cbor2.dumps([None] * count)


def test_a_number_out_of_range_fails_its_command_only():
    with pytest.raises(BadRequest, match="cannot be stored"):
        encode_command(command(appended(span=(2**32,))))


def test_a_lone_surrogate_is_refused_and_not_quoted():
    with pytest.raises(BadRequest) as caught:
        encode_command(command(appended("secret \ud800")))

    assert "secret" not in str(caught.value)


def test_an_operation_id_with_a_lone_surrogate_is_refused():
    with pytest.raises(BadRequest, match="not valid Unicode"):
        encode_command(command(appended(), op_id="\udfff"))


def test_an_event_that_fits_no_frame_of_the_protocol_is_refused(monkeypatch):
    monkeypatch.setattr(record, "MAX_EVENT_BYTES", 300)

    encode_command(command(appended("x" * 280)))
    with pytest.raises(EventTooLarge, match="limit of 300"):
        encode_command(command(appended("x"), appended("x" * 300)))


def test_the_wire_size_decides_not_the_stored_one(monkeypatch):
    # A span takes four bytes a token here and one on the wire.
    monkeypatch.setattr(record, "MAX_EVENT_BYTES", 300)

    assert len(encode_command(command(appended(None, span=(1,) * 200)))) > 800


def test_a_command_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(record, "MAX_COMMAND_BYTES", 300)

    encode_command(command(appended("x" * 200)))
    with pytest.raises(CommandTooLarge, match="limit of 300"):
        encode_command(command(appended("x" * 200), appended("x" * 200)))


GOOD_RECORD = [1, 2, 3, 4, [1, "hi", b""]]

UNREADABLE = {
    "no CBOR": b"\x81",
    "a break": b"\xff",
    "text that is not UTF-8": b"\x81\x61\xff",
    "bytes behind the array": b"\x80\x00\x01",
    "another array behind it": b"\x80\x80",
    "half a number behind it": b"\x80\x19",
    "not an array": cbor2.dumps({}),
    "a command that is a map": cbor2.dumps([{}]),
    "a command of three": cbor2.dumps([[None, None, []]]),
    "an operation id of bytes": cbor2.dumps([[b"op", None, None, []]]),
    "a digest of text": cbor2.dumps([[None, "digest", None, []]]),
    "a request id that is a number": cbor2.dumps([[None, None, 7, []]]),
    "records that are no array": cbor2.dumps([[None, None, None, None]]),
    "a record of four": cbor2.dumps([[None, None, None, [GOOD_RECORD[:4]]]]),
    "a negative session": cbor2.dumps([[None, None, None, [[-1, *GOOD_RECORD[1:]]]]]),
    "a session of two to the 64": cbor2.dumps([[None, None, None, [[2**64, *GOOD_RECORD[1:]]]]]),
    "an event id that is a truth": cbor2.dumps([[None, None, None, [[1, True, *GOOD_RECORD[2:]]]]]),
    "an unknown event": cbor2.dumps([[None, None, None, [[1, 2, 3, 4, [99]]]]]),
    "an event with a field of another type": cbor2.dumps([[None, None, None, [[1, 2, 3, 4, [1, 5, b""]]]]]),
    "a span that is no whole number of tokens": cbor2.dumps(
        [[None, None, None, [[1, 2, 3, 4, [1, "hi", b"123"]]]]]
    ),
}


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_no_encoder_writes_is_refused(payload):
    with pytest.raises(LogCorrupt):
        list(decode_batch(payload))


def test_the_shape_the_refusals_vary_is_itself_readable():
    [read] = decode_batch(cbor2.dumps([[None, None, None, [GOOD_RECORD]]]))

    assert read == command(appended("hi"))
