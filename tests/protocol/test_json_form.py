"""The JSON form: what it looks like, and everything that it refuses."""

import math
import struct
from decimal import Decimal

import pytest

from superfluid_protocol import (
    F32,
    F64,
    MAX_DEPTH,
    U64,
    Bytes16,
    DecodeError,
    EncodeError,
    EventBody,
    GenParams,
    PurgeMode,
    Reason,
    Request,
    event,
    from_json,
    request,
    to_json,
    types,
)

PARAMS = {"temperature": 0.7, "top_p": 1, "min_p": 0.05, "top_k": 40, "seed": 2**64 - 1}


def refusal(type_, obj):
    with pytest.raises(DecodeError) as caught:
        from_json(type_, obj)
    assert caught.value.offset is None
    return caught.value.reason, caught.value.path


def test_a_request_without_fields_is_a_string_or_tagged_null():
    assert to_json(request.Tree()) == "Tree"
    assert from_json(Request, "Tree") == from_json(Request, {"Tree": None}) == request.Tree()


def test_absent_options_read_as_none():
    read = from_json(Request, {"Append": {"session": 1, "span": []}})

    assert read == request.Append(session=1, text=None, span=())


def test_names_that_python_reserves_are_plain_in_json():
    value = request.SetQos(session=1, class_=2, batch_invariant=False)
    written = {"SetQos": {"session": 1, "class": 2, "batch_invariant": False}}

    assert to_json(value) == written
    assert from_json(Request, written) == value
    assert to_json(types.Drop(from_=1, to=2)) == {"Drop": {"from": 1, "to": 2}}


def test_with():
    value = request.With(op_id="k", request=request.List())

    assert to_json(value) == {"With": {"op_id": "k", "request": "List"}}
    assert from_json(Request, to_json(value)) == value


def test_raw_bytes_are_arrays():
    assert to_json(bytes(16), Bytes16) == [0] * 16
    assert from_json(Bytes16, [7] * 16) == bytes([7] * 16)
    assert refusal(Bytes16, [0] * 15) == (Reason.BAD_LENGTH, "")


def test_integers_for_floats_are_fine_and_floats_read_as_f32():
    read = from_json(GenParams, PARAMS)

    assert (read.top_p, read.temperature, read.seed) == (1.0, 0.699999988079071, 2**64 - 1)
    assert to_json(read)["temperature"] == 0.7


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("temperature", math.nan, Reason.NOT_FINITE),
        ("temperature", math.inf, Reason.NOT_FINITE),
        ("temperature", -math.inf, Reason.NOT_FINITE),
        ("temperature", 3.5e38, Reason.OUT_OF_RANGE),
        ("temperature", 10**400, Reason.OUT_OF_RANGE),
        ("temperature", True, Reason.BAD_TYPE),
        ("temperature", "0.7", Reason.BAD_TYPE),
        ("temperature", None, Reason.BAD_TYPE),
        ("top_k", True, Reason.BAD_TYPE),
        ("top_k", 1.0, Reason.BAD_TYPE),
        ("top_k", -1, Reason.OUT_OF_RANGE),
        ("top_k", 2**32, Reason.OUT_OF_RANGE),
        ("seed", 2**64, Reason.OUT_OF_RANGE),
        ("seed", "1", Reason.BAD_TYPE),
    ],
)
def test_numbers_that_are_refused(field, value, reason):
    assert refusal(GenParams, {**PARAMS, field: value}) == (reason, f"GenParams.{field}")


@pytest.mark.parametrize(
    ("obj", "reason", "path"),
    [
        (None, Reason.BAD_TYPE, ""),
        (7, Reason.BAD_TYPE, ""),
        ([], Reason.BAD_TYPE, ""),
        ({}, Reason.BAD_LENGTH, ""),
        ({"List": None, "Tree": None}, Reason.BAD_LENGTH, ""),
        ("Nothing", Reason.BAD_ENUM, ""),
        ({"Nothing": {}}, Reason.BAD_ENUM, ""),
        ({"Tree": {}}, Reason.BAD_TYPE, "Tree"),
        ({"Tree": []}, Reason.BAD_TYPE, "Tree"),
        ("Cancel", Reason.BAD_TYPE, "Cancel"),
        ({"Cancel": None}, Reason.BAD_TYPE, "Cancel"),
        ({"Cancel": [1]}, Reason.BAD_TYPE, "Cancel"),
        ({"Cancel": {}}, Reason.MISSING_FIELD, "Cancel.session"),
        ({"Cancel": {"session": 1, "secret": 2}}, Reason.UNKNOWN_FIELD, "Cancel"),
        (
            {"SetQos": {"session": 1, "class_": 2, "batch_invariant": True}},
            Reason.MISSING_FIELD,
            "SetQos.class",
        ),
        ({"SetLogLevel": {"directive": "\ud83d"}}, Reason.BAD_UTF8, "SetLogLevel.directive"),
        ({"SetLogLevel": {"directive": 5}}, Reason.BAD_TYPE, "SetLogLevel.directive"),
        ({"Sessions": {"include_archived": 0}}, Reason.BAD_TYPE, "Sessions.include_archived"),
        ({"Append": {"session": 1, "span": [1, 2, 3, -1]}}, Reason.OUT_OF_RANGE, "Append.span[3]"),
        ({"Append": {"session": 1, "span": {"0": 1}}}, Reason.BAD_TYPE, "Append.span"),
        ({"Append": {"session": 1}}, Reason.MISSING_FIELD, "Append.span"),
        ({"PutMedia": {"bytes": [256], "mime": ""}}, Reason.OUT_OF_RANGE, "PutMedia.bytes[0]"),
        ({"PutMedia": {"bytes": "ab", "mime": ""}}, Reason.BAD_TYPE, "PutMedia.bytes"),
        (
            {"Rebase": {"session": 1, "edits": [{"Drop": {"from": 1}}]}},
            Reason.MISSING_FIELD,
            "Rebase.edits[0].Drop.to",
        ),
        (
            {"Purge": {"session": 1, "expected_generation": 1, "mode": "CASCADE"}},
            Reason.BAD_ENUM,
            "Purge.mode",
        ),
        (
            {"Purge": {"session": 1, "expected_generation": 1, "mode": {"Cascade": 1}}},
            Reason.BAD_TYPE,
            "Purge.mode.Cascade",
        ),
        (
            {"With": {"op_id": "a", "request": {"With": {"op_id": "b", "request": "List"}}}},
            Reason.NOT_NESTABLE,
            "With.request.With",
        ),
    ],
)
def test_requests_that_are_refused(obj, reason, path):
    assert refusal(Request, obj) == (reason, path)


@pytest.mark.parametrize(
    ("obj", "reason", "path"),
    [
        ([1, None], Reason.BAD_LENGTH, ""),
        ([1, None, 3, 4], Reason.BAD_LENGTH, ""),
        ([1, "x", 3], Reason.BAD_TYPE, "[1]"),
        ("abc", Reason.BAD_TYPE, ""),
        (None, Reason.BAD_TYPE, ""),
    ],
)
def test_tuples_that_are_refused(obj, reason, path):
    assert refusal(tuple[U64, U64 | None, U64], obj) == (reason, path)


def test_the_text_names_the_place_and_not_the_content():
    with pytest.raises(DecodeError, match=r"^wrong type in Cancel\.session$"):
        from_json(Request, {"Cancel": {"session": "secret"}})
    with pytest.raises(DecodeError, match=r"^unknown field in Cancel$"):
        from_json(Request, {"Cancel": {"session": 1, "secret": 2}})
    with pytest.raises(DecodeError, match=r"^wrong type in the value$"):
        from_json(Request, ["secret"])


def test_enum_members_by_themselves():
    assert to_json(PurgeMode.CASCADE) == "Cascade"
    assert from_json(PurgeMode, {"Reroot": None}) is PurgeMode.REROOT


def _nested(levels):
    obj = "EpochBump"
    for _ in range(levels - 1):
        obj = {"Rerooted": {"purged_parent": 0, "prefix": [[0, obj]]}}
    return obj


def test_nesting_is_bounded_both_ways():
    deepest = from_json(EventBody, _nested(MAX_DEPTH))
    deeper = event.Rerooted(purged_parent=0, prefix=((0, deepest),))

    assert to_json(deepest) == _nested(MAX_DEPTH)
    assert refusal(EventBody, _nested(MAX_DEPTH + 1))[0] is Reason.TOO_DEEP
    assert refusal(EventBody, _nested(300))[0] is Reason.TOO_DEEP
    with pytest.raises(EncodeError, match="nested too deep"):
        to_json(deeper)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("type_", [F32, F64], ids=["f32", "f64"])
def test_json_has_no_word_for_some_floats(value, type_):
    with pytest.raises(EncodeError, match="not a finite number"):
        to_json(value, type_)
    with pytest.raises(DecodeError, match="not a finite number"):
        from_json(type_, value)


def test_a_float_that_takes_every_digit_gets_them():
    value = struct.unpack("<f", bytes.fromhex("446fcec2"))[0]

    assert to_json(value, F32) == -103.217316

    # Eight digits would be another float.
    assert {struct.pack("<f", float(text)) for text in ("-103.21731", "-103.21732")}.isdisjoint(
        {struct.pack("<f", value)}
    )


def test_the_sign_of_zero_is_kept():
    assert math.copysign(1.0, to_json(-0.0, F32)) == -1.0
    assert math.copysign(1.0, to_json(0.0, F32)) == 1.0


@pytest.mark.parametrize("exponent", range(-149, 128))
def test_powers_of_two_are_shortest(exponent):
    """Below a power of two the f32 are twice as dense, so the nearest decimal need not be the shortest."""
    value = 2.0**exponent
    written = to_json(value, F32)
    _, digits, scale = Decimal(repr(written)).normalize().as_tuple()

    def reads_back(candidate):
        return struct.pack("<f", float(candidate)) == struct.pack("<f", value)

    assert reads_back(written)
    if len(digits) > 1:
        # No decimal of one digit less reads back: try the ones around it.
        coarse = Decimal(repr(written)).scaleb(-scale - 1).to_integral_value()
        for step in range(-2, 3):
            assert not reads_back((coarse + step).scaleb(scale + 1))
