"""postcard where the vectors are silent: bounds, what has no vectors, and values that cannot be written."""

import struct
import tracemalloc
from typing import Annotated

import pytest

from superfluid_protocol import (
    EXTENSION_BASE,
    F32,
    I8,
    I64,
    MAX_DEPTH,
    U8,
    U64,
    Bool,
    Bytes,
    Bytes16,
    DecodeError,
    EncodeError,
    EventBody,
    EventMsg,
    GenParams,
    Inspection,
    PurgeMode,
    Reason,
    Request,
    Response,
    SessionSummary,
    Span,
    Str,
    Tier,
    decode,
    encode,
    event,
    request,
    response,
    types,
)
from superfluid_protocol.numbers import Role
from superfluid_protocol.schema import BytesType

PARAMS = GenParams(temperature=0.0, top_p=1.0, min_p=0.0, top_k=0, seed=7)


def refusal(type_, data):
    with pytest.raises(DecodeError) as caught:
        decode(type_, data)
    return caught.value.reason, caught.value.offset


def nested(levels):
    """A body with ``levels`` bodies, each but the last a ``Rerooted`` that holds the next."""
    body = event.EpochBump()
    for _ in range(levels - 1):
        body = event.Rerooted(purged_parent=0, prefix=((0, body),))
    return body


# -- what the crate's vectors do not have -----------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "data"),
    [
        (types.Resident(), "00"),
        (types.Parked(covered=300, encoding=2), "01 ac02 02"),
        (types.Cold(), "02"),
    ],
)
def test_tier(tier, data):
    data = bytes.fromhex(data)

    assert encode(tier) == data
    assert decode(Tier, data) == (tier, len(data))


INSPECTION = Inspection(
    summary=SessionSummary(
        id=5,
        parent=None,
        fork_at=0,
        title="t",
        archived=True,
        meta_version=1,
        generation=2,
        events=3,
        tokens=4,
        open_tool_calls=1,
    ),
    params=PARAMS,
    epoch=9,
    last_finish=1,
    qos_class=2,
    batch_invariant=False,
    pin_deadline_unix_ms=0,
    behavior_fingerprint=300,
    open_tool_calls=((2, "f", "{}"),),
    tier=types.Parked(covered=4, encoding=0),
    tokens=(1, 300),
    events=(EventMsg(event_id=0, epoch=9, ts_unix_ms=8, body=event.EpochBump()),),
    wal_version=3,
    store_id=bytes(range(16)),
)
INSPECTION_BYTES = bytes.fromhex(
    "05 00 00 01 01 74 01 01 02 03 04 01"  # summary
    "00000000 0000803f 00000000 00 07"  # params
    "09 01 02 00 00"  # epoch, last_finish, qos_class, batch_invariant, pin_deadline_unix_ms
    "01 ac02"  # behavior_fingerprint
    "01 02 01 66 02 7b7d"  # open_tool_calls
    "01 04 00"  # tier
    "02 01 ac02"  # tokens
    "01 00 09 08 07"  # events
    "03"  # wal_version
    "01 000102030405060708090a0b0c0d0e0f"  # store_id: a tag and 16 raw bytes, no length
)


def test_inspection():
    assert encode(INSPECTION) == INSPECTION_BYTES
    assert decode(Inspection, INSPECTION_BYTES) == (INSPECTION, len(INSPECTION_BYTES))


def test_inspection_as_a_response():
    value = response.Inspection(inspection=INSPECTION)

    assert encode(value) == b"\x13" + INSPECTION_BYTES
    assert decode(Response, b"\x13" + INSPECTION_BYTES) == (value, 1 + len(INSPECTION_BYTES))


def test_inspection_of_an_older_server_has_no_store_id():
    older = INSPECTION_BYTES[:-17]

    value, consumed = decode(Inspection, older)

    assert (value.store_id, value.wal_version, consumed) == (None, 3, len(older))
    assert encode(value) == older + b"\x00"


def test_inspection_is_refused_at_every_other_cut():
    for end in range(len(INSPECTION_BYTES)):
        if end != len(INSPECTION_BYTES) - 17:
            assert refusal(Inspection, INSPECTION_BYTES[:end]) == (Reason.UNEXPECTED_END, end)


def test_with_is_at_the_extension_index():
    value = request.With(op_id="a1", request=request.Read(session=3, cursor=0))
    data = bytes.fromhex("8008 02 6131 04 03 00")

    assert EXTENSION_BASE == 1024
    assert encode(value) == data
    assert decode(Request, data) == (value, len(data))


def test_with_does_not_nest():
    head = bytes.fromhex("8008 01 61")
    inner = request.With(op_id="a", request=request.List())

    assert refusal(Request, head + head + b"\x07") == (Reason.NOT_NESTABLE, 4)
    assert refusal(Request, head * 10_000) == (Reason.NOT_NESTABLE, 4)
    assert refusal(Request, head + b"\x23") == (Reason.BAD_ENUM, 4)
    with pytest.raises(EncodeError, match=r"^With\.request\.With: not allowed inside itself$"):
        encode(request.With(op_id="a", request=inner))


def test_published_indices_have_no_room_below_ours():
    assert refusal(Request, bytes.fromhex("ff07"))[0] is Reason.BAD_ENUM
    assert refusal(Request, bytes.fromhex("8208"))[0] is Reason.BAD_ENUM


# -- bounds -----------------------------------------------------------------------------------------


def test_nesting_up_to_the_bound():
    deepest = nested(MAX_DEPTH)

    assert decode(EventBody, encode(deepest))[0] == deepest


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 100, 10_000, 1_000_000])
def test_nesting_beyond_the_bound_is_refused(levels):
    data = bytes.fromhex("0f000100") * (levels - 1) + b"\x07"

    assert refusal(EventBody, data) == (Reason.TOO_DEEP, 4 * MAX_DEPTH)
    assert refusal(EventMsg, b"\x00\x00\x00" + data) == (Reason.TOO_DEEP, 3 + 4 * MAX_DEPTH)


def test_a_value_beyond_the_bound_is_not_written():
    with pytest.raises(EncodeError, match="nested"):
        encode(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("type_", "head"),
    [
        pytest.param(Request, "010100", id="span"),
        pytest.param(Request, "220100", id="strings"),
        pytest.param(Request, "0f01", id="edits"),
        pytest.param(Request, "1c", id="bytes"),
        pytest.param(Request, "14", id="text"),
        pytest.param(Response, "05", id="events"),
        pytest.param(Response, "06", id="ids"),
        pytest.param(Response, "07", id="tuples"),
        pytest.param(tuple[tuple[U64, U8], ...], "", id="pairs"),
    ],
)
@pytest.mark.parametrize("count", [2**40, 2**63, 2**64 - 1], ids=["2^40", "2^63", "2^64-1"])
def test_a_length_beyond_the_input_allocates_nothing(type_, head, count):
    data = bytes.fromhex(head) + encode(count, U64) + bytes(10)
    refusal(type_, data)  # generates the code, so that only the decode itself is measured

    tracemalloc.start()
    found = refusal(type_, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found == (Reason.UNEXPECTED_END, len(data))
    assert peak < 16 * 1024


def test_a_sequence_without_a_bound_cannot_be_declared():
    with pytest.raises(TypeError, match="no bound"):
        decode(tuple[tuple[()], ...], b"\xff\xff\xff\xff\x0f")
    with pytest.raises(TypeError, match="no bound"):
        decode(tuple[Annotated[bytes, BytesType(0)], ...], b"\x05")


def test_a_sequence_of_structs_can():
    assert decode(tuple[GenParams, ...], b"\x01" + encode(PARAMS))[0] == (PARAMS,)


@pytest.mark.parametrize("extra", range(1, 40))
def test_endless_varints(extra):
    assert refusal(U64, b"\x80" * (10 + extra))[0] is Reason.BAD_VARINT
    assert refusal(Request, b"\x08" + b"\x80" * (10 + extra) + b"\x00") == (Reason.BAD_VARINT, 1)
    assert refusal(Request, b"\x01\x01\x00\x01" + b"\xff" * (5 + extra)) == (Reason.BAD_VARINT, 4)


def test_offsets_name_the_byte():
    assert refusal(Request, bytes.fromhex("0d02")) == (Reason.BAD_BOOL, 1)
    assert refusal(Request, bytes.fromhex("010102")) == (Reason.BAD_OPTION, 2)
    assert refusal(Request, bytes.fromhex("1403 6162ff")) == (Reason.BAD_UTF8, 4)
    assert refusal(Request, bytes.fromhex("10010102")) == (Reason.BAD_ENUM, 3)
    assert refusal(Response, bytes.fromhex("03 000000 19")) == (Reason.BAD_ENUM, 4)


def test_a_span_with_ids_of_every_length():
    span = (0, 127, 128, 16383, 16384, 2097151, 2097152, 268435455, 268435456, 2**32 - 1)
    data = encode(span, Span)

    assert decode(Span, data + b"\xff") == (span, len(data))
    for end in range(len(data)):
        assert refusal(Span, data[:end]) == (Reason.UNEXPECTED_END, end)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(buffer):
    assert decode(Request, buffer(b"\x08\x01")) == (request.Cancel(session=1), 2)


def test_a_negative_offset_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="negative"):
        decode(Request, b"\x07", offset=-1)


def test_an_offset_beyond_the_buffer_is_its_end():
    with pytest.raises(DecodeError) as caught:
        decode(Request, b"\x07", offset=5)

    assert (caught.value.reason, str(caught.value)) == (Reason.UNEXPECTED_END, "unexpected end at byte 1")


# -- values that cannot be written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (request.Cancel(session=-1), "Cancel.session: out of range"),
        (request.Cancel(session=2**64), "Cancel.session: out of range"),
        (request.Cancel(session="1"), "Cancel.session: wrong type"),
        (request.Cancel(session=1.5), "Cancel.session: wrong type"),
        (request.Cancel(session=None), "Cancel.session: wrong type"),
        (request.Generate(session=1, max_tokens=2**32), "Generate.max_tokens: out of range"),
        (request.SetQos(session=1, class_=256, batch_invariant=True), "SetQos.class: out of range"),
        (request.Sessions(include_archived=1), "Sessions.include_archived: wrong type"),
        (request.SetLogLevel(directive=b"x"), "SetLogLevel.directive: wrong type"),
        (request.SetLogLevel(directive="a\ud83d"), "SetLogLevel.directive: bad UTF-8"),
        (request.Append(session=1, text=None, span=(1, -1)), "Append.span[1]: out of range"),
        (request.Append(session=1, text=None, span=(1, 2**32)), "Append.span[1]: out of range"),
        (request.Append(session=1, text=None, span=(1, "2")), "Append.span[1]: wrong type"),
        (request.Append(session=1, text=None, span=[1]), "Append.span: wrong type"),
        (request.AppendSystem(session=1, text=None, tools="ab"), "AppendSystem.tools: wrong type"),
        (request.PutMedia(bytes=[1], mime=""), "PutMedia.bytes: wrong type"),
        (request.Purge(session=1, expected_generation=0, mode=0), "Purge.mode: wrong type"),
        (request.Fork(session=1, at_event=1, params=event.EpochBump()), "Fork.params: wrong type"),
        (request.Rebase(session=1, edits=(1,), params=None), "Rebase.edits[0]: wrong type"),
        (request.With(op_id="", request=event.EpochBump()), "With.request: wrong type"),
        (response.Delta(event=event.EpochBump()), "Delta.event: wrong type"),
        (response.ToolCalls(calls=((1, "a"),)), "ToolCalls.calls[0]: wrong length"),
        (response.ToolCalls(calls=([1, "a", "b"],)), "ToolCalls.calls[0]: wrong type"),
        (GenParams(temperature=0.5, top_p=1.0, min_p=0.0, top_k=0, seed=-1), "GenParams.seed: out of range"),
        (GenParams(temperature=1e39, top_p=1.0, min_p=0.0, top_k=0, seed=0), "temperature: out of range"),
        (GenParams(temperature="1", top_p=1.0, min_p=0.0, top_k=0, seed=0), "temperature: wrong type"),
        (GenParams(temperature=10**400, top_p=1.0, min_p=0.0, top_k=0, seed=0), "temperature: out of range"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(value, text):
    with pytest.raises(EncodeError) as caught:
        encode(value)

    assert str(caught.value).endswith(text)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (256, U8),
        (-129, I8),
        (128, I8),
        (2**63, I64),
        (-(2**63) - 1, I64),
        (b"short", Bytes16),
        ("text", Bytes),
        (1, Bool),
        (b"", Str),
        ((1,), tuple[()]),
        (None, EventBody),
    ],
)
def test_a_wrong_primitive_is_refused(value, type_):
    with pytest.raises(EncodeError):
        encode(value, type_)


def test_no_error_shows_content():
    with pytest.raises(EncodeError) as caught:
        encode(request.SetLogLevel(directive="secret\udc00"))

    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_bare_number_needs_its_type():
    with pytest.raises(TypeError, match="name it"):
        encode(5)
    assert encode(5, U64) == b"\x05"


def test_numbers_ride_as_enum_members_too():
    plain = request.AppendMessage(session=1, role=1, text="")

    assert encode(request.AppendMessage(session=1, role=Role.USER, text="")) == encode(plain)


def test_a_unit_sum_by_itself():
    assert encode(PurgeMode.REROOT) == b"\x01"
    assert refusal(PurgeMode, b"\x02") == (Reason.BAD_ENUM, 0)


def test_an_f64_nan_with_a_low_payload_stays_a_nan_as_f32():
    low = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0001))[0]

    assert encode(low, F32) == bytes.fromhex("0000c07f")


def test_a_bug_of_ours_is_not_blamed_on_the_value(monkeypatch):
    from superfluid_protocol import plain, postcard

    def broken(*_):
        raise TypeError("a bug")

    monkeypatch.setitem(postcard._writers, request.List, broken)
    monkeypatch.setitem(plain._writers, request.List, broken)

    for write in (encode, plain.to_plain):
        with pytest.raises(TypeError, match="a bug"):
            write(request.List())
