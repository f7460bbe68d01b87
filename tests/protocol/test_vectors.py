"""Every line of the reference crate's vectors and of our own, in every direction."""

import json
import re

import pytest

from superfluid_protocol import DecodeError, Reason, decode, encode, from_json, from_plain, to_json, to_plain
from vectors import load, type_named, type_of_line

CRATE_ERRORS = {
    "DeserializeUnexpectedEnd": Reason.UNEXPECTED_END,
    "DeserializeBadVarint": Reason.BAD_VARINT,
    "DeserializeBadBool": Reason.BAD_BOOL,
    "DeserializeBadOption": Reason.BAD_OPTION,
    "DeserializeBadUtf8": Reason.BAD_UTF8,
    "SerdeDeCustom": Reason.BAD_ENUM,
}

VECTORS = load("vectors.jsonl")
OURS = load("extensions.jsonl")
"""Of what stands from 1024 up, made by hand; the reference crate knows none of it."""
REJECTS = load("rejects.jsonl")
LENIENT = load("lenient.jsonl")
OBSERVATIONS = load("observations.jsonl")


def named(lines):
    return [pytest.param(line, id=f"{line['type']}-{line['name']}") for line in lines]


def test_the_files_are_all_there():
    assert [len(lines) for lines in (VECTORS, OURS, REJECTS, LENIENT, OBSERVATIONS)] == [
        922,
        6,
        391,
        97,
        39,
    ]


@pytest.mark.parametrize("line", named(VECTORS + OURS))
def test_value_to_bytes_and_back(line):
    type_, expected = type_of_line(line), bytes.fromhex(line["hex"])

    value = from_json(type_, line["json"])

    assert encode(value, type_) == expected
    assert decode(type_, expected) == (value, len(expected))
    assert json.dumps(to_json(value, type_)) == json.dumps(line["json"])  # as text, so that -0.0 is not 0.0


@pytest.mark.parametrize("line", named(VECTORS + OURS))
def test_plain_form_keeps_the_value(line):
    type_ = type_of_line(line)
    value, _ = decode(type_, bytes.fromhex(line["hex"]))

    assert from_plain(type_, to_plain(value, type_)) == value


@pytest.mark.parametrize("line", named(VECTORS + OURS))
def test_bytes_around_the_value_are_left_alone(line):
    type_, body = type_of_line(line), bytes.fromhex(line["hex"])

    value, consumed = decode(type_, b"\xff\x00" + body + b"\x00\xff\x01", offset=2)

    assert (encode(value, type_), consumed) == (body, len(body))


@pytest.mark.parametrize("line", named(line for line in VECTORS + OURS if len(line["hex"]) < 600))
def test_every_cut_is_an_unexpected_end(line):
    """The JSON unit of the crate's vectors is the one value with no byte to cut."""
    type_, body = type_of_line(line), bytes.fromhex(line["hex"])

    for end in range(len(body)):
        with pytest.raises(DecodeError) as refusal:
            decode(type_, body[:end])
        assert (refusal.value.reason, refusal.value.offset) == (Reason.UNEXPECTED_END, end)


@pytest.mark.parametrize("line", named(REJECTS))
def test_rejects_are_refused_for_the_crates_reason(line):
    data = bytes.fromhex(line["hex"])

    with pytest.raises(DecodeError) as refusal:
        decode(type_of_line(line), data)

    assert refusal.value.reason is CRATE_ERRORS[line["error"]]
    assert 0 <= refusal.value.offset <= len(data)


@pytest.mark.parametrize("line", named(LENIENT))
def test_lenient_forms_are_read_and_written_canonically(line):
    type_, data = type_of_line(line), bytes.fromhex(line["hex"])

    value, consumed = decode(type_, data)

    assert to_json(value, type_) == line["json"]
    assert (consumed, data[consumed:].hex()) == (line["consumed"], line["trailing_hex"])
    assert encode(value, type_).hex() == line["canonical_hex"]


@pytest.mark.parametrize("line", [pytest.param(line, id=line["what"]) for line in OBSERVATIONS])
def test_observations(line):
    type_, data = type_named(line["rust"]), bytes.fromhex(line["hex"])

    if error := re.fullmatch(r"Err: (\w+)", line["observed"]):
        with pytest.raises(DecodeError) as refusal:
            decode(type_, data)
        assert refusal.value.reason is CRATE_ERRORS[error[1]]
    else:
        left, again = re.search(r"bytes left over: (\d+); re-encoded: (\w*)$", line["observed"]).groups()
        value, consumed = decode(type_, data)
        assert len(data) - consumed == int(left)
        assert encode(value, type_).hex() == again
