"""Properties over the whole catalogue, with values made from the declarations."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import values

from superfluid_protocol import (
    F32,
    DecodeError,
    EventBody,
    EventMsg,
    Inspection,
    LedgerEntry,
    PurgeMode,
    RebaseEdit,
    Request,
    Response,
    SessionSummary,
    Tier,
    decode,
    encode,
    from_json,
    from_plain,
    to_json,
    to_plain,
)

TYPES = (
    EventBody,
    EventMsg,
    Inspection,
    LedgerEntry,
    PurgeMode,
    RebaseEdit,
    Request,
    Response,
    SessionSummary,
    Tier,
)

pytestmark = pytest.mark.slow

each_type = pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.__name__)


def attempt(read, *arguments):
    """What a reader returns, and its refusal; any other exception is a failure of the test."""
    try:
        return read(*arguments), None
    except DecodeError as refusal:
        return None, refusal


@each_type
@settings(deadline=None)
@given(data=st.data())
def test_every_form_gives_the_value_back(type_, data):
    value = data.draw(values(type_))
    encoded = encode(value)

    assert decode(type_, encoded) == (value, len(encoded))
    assert from_plain(type_, to_plain(value)) == value
    text = json.dumps(to_json(value), allow_nan=False)
    assert from_json(type_, json.loads(text)) == value


@each_type
@settings(deadline=None)
@given(data=st.data())
def test_no_float_changes_its_bits(type_, data):
    """NaN payloads and infinities too, in the binary forms."""
    encoded = encode(data.draw(values(type_, finite=False)))

    value, _ = decode(type_, encoded)

    assert encode(value) == encoded
    assert encode(from_plain(type_, to_plain(value))) == encoded


@each_type
@settings(deadline=None, max_examples=300)
@given(garbage=st.binary(max_size=80))
def test_garbage_is_a_value_or_a_decode_error(type_, garbage):
    read, refusal = attempt(decode, type_, garbage)

    if refusal is not None:
        assert 0 <= refusal.offset <= len(garbage)
    else:
        value, consumed = read
        assert consumed <= len(garbage)
        assert encode(decode(type_, encode(value))[0]) == encode(value)


@each_type
@settings(deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_a_value_or_a_decode_error(type_, data):
    encoded = bytearray(encode(data.draw(values(type_))))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))

    read, refusal = attempt(decode, type_, encoded)

    if refusal is not None:
        assert 0 <= refusal.offset <= len(encoded)
    else:
        value, consumed = read
        assert consumed <= len(encoded)
        assert encode(decode(type_, encode(value))[0]) == encode(value)


objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@each_type
@settings(deadline=None)
@given(obj=objects)
def test_any_object_is_a_value_or_a_decode_error(type_, obj):
    for read in (from_json, from_plain):
        value, refusal = attempt(read, type_, obj)
        if refusal is not None:
            assert refusal.offset is None  # objects have places, not offsets
        else:
            assert from_plain(type_, to_plain(value)) == value


@each_type
@settings(deadline=None)
@given(data=st.data())
def test_a_changed_object_is_a_value_or_a_decode_error(type_, data):
    """One leaf of a good object replaced by anything."""
    value = data.draw(values(type_))
    for write, read in ((to_json, from_json), (to_plain, from_plain)):
        obj = json.loads(json.dumps(write(value))) if write is to_json else write(value)
        changed = _replace_somewhere(data, obj)
        other, refusal = attempt(read, type_, changed)
        if refusal is not None:
            assert refusal.offset is None
        else:
            encoded = encode(other)  # whatever was read can be sent on
            assert encode(decode(type_, encoded)[0]) == encoded


def _replace_somewhere(data, obj):
    if isinstance(obj, dict) and obj and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(obj)))
        return {**obj, key: _replace_somewhere(data, obj[key])}
    if isinstance(obj, list) and obj and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(obj) - 1))
        return [*obj[:at], _replace_somewhere(data, obj[at]), *obj[at + 1 :]]
    return data.draw(objects)


@settings(deadline=None, max_examples=500)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_f32_in_json_is_shortest_and_exact(value):
    written = to_json(value, F32)
    digits = len(f"{written:e}".split("e")[0].replace("-", "").replace(".", "").rstrip("0"))

    assert struct.pack("<f", written) == struct.pack("<f", value)
    assert digits <= 9
    assert from_json(F32, written) == value
