"""The plain form: its shapes, which logs on disk depend on, and everything that it refuses."""

import math

import pytest

from superfluid_protocol import (
    F32,
    F64,
    MAX_DEPTH,
    U8,
    U64,
    Bytes16,
    DecodeError,
    EncodeError,
    EventBody,
    EventMsg,
    GenParams,
    PurgeMode,
    Reason,
    Request,
    Span,
    Str,
    event,
    from_plain,
    numbers,
    request,
    to_plain,
    types,
)

PARAMS = GenParams(temperature=0.7, top_p=1.0, min_p=0.0, top_k=40, seed=7)
PLAIN_PARAMS = [0.7, 1.0, 0.0, 40, 7]


def refusal(type_, obj):
    with pytest.raises(DecodeError) as caught:
        from_plain(type_, obj)
    return caught.value.reason, caught.value.path


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        (event.EpochBump(), [7]),
        (event.Created(parent=None, params=PARAMS), [0, None, PLAIN_PARAMS]),
        (event.Message(role=1, text="hé", span=(1, 256)), [2, 1, "hé", bytes.fromhex("01000000 00010000")]),
        (event.Appended(text=None, span=()), [1, None, b""]),
        (event.Purged(generation=3, descendants=PurgeMode.REROOT), [14, 3, 1]),
        (
            event.Rebased(parent=1, fork_at=2, params=PARAMS, edits=(types.Drop(from_=1, to=2),)),
            [12, 1, 2, PLAIN_PARAMS, [[0, 1, 2]]],
        ),
        (event.Rerooted(purged_parent=4, prefix=((0, event.EpochBump()),)), [15, 4, [[0, [7]]]]),
        (event.QosSet(class_=2, batch_invariant=True), [16, 2, True]),
    ],
)
def test_shapes(body, plain):
    assert to_plain(body) == plain
    assert from_plain(EventBody, plain) == body


def test_tuples_are_as_good_as_lists():
    assert from_plain(EventBody, (15, 4, ((0, (7,)),))) == from_plain(EventBody, [15, 4, [[0, [7]]]])


def test_structs_bytes_and_extensions():
    message = EventMsg(event_id=1, epoch=2, ts_unix_ms=3, body=event.EpochBump())

    assert to_plain(message) == [1, 2, 3, [7]]
    assert to_plain(request.PutMedia(bytes=b"ab", mime="x")) == [28, b"ab", "x"]
    assert to_plain(request.With(op_id="k", request=request.List())) == [1024, "k", [7]]
    assert from_plain(Request, [1024, "k", [7]]) == request.With(op_id="k", request=request.List())
    assert to_plain(bytes(16), Bytes16) == bytes(16)
    assert from_plain(Bytes16, bytes(16)) == bytes(16)
    assert to_plain(PurgeMode.CASCADE) == 0


def test_enum_members_become_plain_numbers():
    written = to_plain(event.Message(role=numbers.Role.USER, text="", span=()))

    assert type(written[1]) is int


def test_floats_keep_every_value():
    """The log stores what the session holds, not its f32: state after a replay equals the state before."""
    assert from_plain(F32, to_plain(0.7, F32)) == 0.7
    assert to_plain(1, F32) == 1.0
    assert math.isnan(from_plain(F32, math.nan))
    assert from_plain(F32, -math.inf) == -math.inf
    assert from_plain(F64, 1e300) == 1e300


@pytest.mark.parametrize(
    ("obj", "reason", "path"),
    [
        (None, Reason.BAD_TYPE, "EventBody"),
        ("EpochBump", Reason.BAD_TYPE, "EventBody"),
        ([], Reason.BAD_LENGTH, "EventBody"),
        ([25], Reason.BAD_ENUM, "EventBody"),
        ([-1], Reason.BAD_ENUM, "EventBody"),
        ([True], Reason.BAD_TYPE, "EventBody"),
        ([[7]], Reason.BAD_TYPE, "EventBody"),
        ([7, 1], Reason.BAD_LENGTH, "EpochBump"),
        ([8], Reason.BAD_LENGTH, "GenerationFingerprint"),
        ([8, -1], Reason.OUT_OF_RANGE, "GenerationFingerprint.digest"),
        ([8, 2**64], Reason.OUT_OF_RANGE, "GenerationFingerprint.digest"),
        ([8, True], Reason.BAD_TYPE, "GenerationFingerprint.digest"),
        ([8, 1.0], Reason.BAD_TYPE, "GenerationFingerprint.digest"),
        ([9, b"raw"], Reason.BAD_TYPE, "ToolParseFailure.raw"),
        ([9, "\ud83d"], Reason.BAD_UTF8, "ToolParseFailure.raw"),
        ([3, [1, 2]], Reason.BAD_TYPE, "GenerationPrompt.span"),
        ([3, b"12345"], Reason.BAD_LENGTH, "GenerationPrompt.span"),
        ([16, 256, True], Reason.OUT_OF_RANGE, "QosSet.class"),
        ([16, 2, 1], Reason.BAD_TYPE, "QosSet.batch_invariant"),
        ([14, 1, 2], Reason.BAD_ENUM, "Purged.descendants"),
        ([14, 1, True], Reason.BAD_TYPE, "Purged.descendants"),
        ([0, None, 5], Reason.BAD_TYPE, "GenParams"),
        ([0, None, PLAIN_PARAMS[:4]], Reason.BAD_LENGTH, "GenParams"),
        ([0, None, ["0.7", 1.0, 0.0, 40, 7]], Reason.BAD_TYPE, "GenParams.temperature"),
        ([0, None, [1e39, 1.0, 0.0, 40, 7]], Reason.OUT_OF_RANGE, "GenParams.temperature"),
        ([0, None, [10**400, 1.0, 0.0, 40, 7]], Reason.OUT_OF_RANGE, "GenParams.temperature"),
        ([15, 4, 5], Reason.BAD_TYPE, "Rerooted.prefix"),
        ([15, 4, [5]], Reason.BAD_TYPE, "Rerooted.prefix"),
        ([15, 4, [[5]]], Reason.BAD_LENGTH, "Rerooted.prefix"),
    ],
)
def test_bodies_that_are_refused(obj, reason, path):
    assert refusal(EventBody, obj) == (reason, path)


def test_other_refusals():
    assert refusal(Bytes16, bytes(15)) == (Reason.BAD_LENGTH, "")
    assert refusal(Bytes16, "x" * 16) == (Reason.BAD_TYPE, "")
    assert refusal(Request, [1024, "k", [1024, "k", [7]]]) == (Reason.NOT_NESTABLE, "Request")
    assert refusal(Request, [1024, "k", [35]]) == (Reason.BAD_ENUM, "Request")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (event.GenerationFingerprint(digest=2**64), "GenerationFingerprint.digest: out of range"),
        (event.GenerationFingerprint(digest=True), "GenerationFingerprint.digest: wrong type"),
        (event.ToolParseFailure(raw="\udc00"), "ToolParseFailure.raw: bad UTF-8"),
        (event.ToolParseFailure(raw=None), "ToolParseFailure.raw: wrong type"),
        (event.GenerationPrompt(span=(1, 2**32)), "GenerationPrompt.span[1]: out of range"),
        (event.GenerationPrompt(span=(1, "x")), "GenerationPrompt.span[1]: wrong type"),
        (event.GenerationPrompt(span=[1]), "GenerationPrompt.span: wrong type"),
        (event.QosSet(class_=1, batch_invariant=None), "QosSet.batch_invariant: wrong type"),
        (event.Created(parent=None, params=None), "Created.params: wrong type"),
        (event.Rerooted(purged_parent=1, prefix=((1, PARAMS),)), "Rerooted.prefix[0][1]: wrong type"),
        (event.Rerooted(purged_parent=1, prefix=((1,),)), "Rerooted.prefix[0]: wrong length"),
        (GenParams(temperature=1e39, top_p=1.0, min_p=0.0, top_k=0, seed=0), "temperature: out of range"),
        (GenParams(temperature=None, top_p=1.0, min_p=0.0, top_k=0, seed=0), "temperature: wrong type"),
        (request.PutMedia(bytes=bytearray(2), mime=""), "PutMedia.bytes: wrong type"),
    ],
)
def test_values_that_are_refused(value, text):
    """What could not be read back must not get into a log."""
    with pytest.raises(EncodeError) as caught:
        to_plain(value)

    assert str(caught.value).endswith(text)


def test_primitives_that_are_refused():
    for value, type_ in [(256, U8), (-1, U64), ("x", Span), (1, Str), (b"short", Bytes16)]:
        with pytest.raises(EncodeError):
            to_plain(value, type_)
    with pytest.raises(TypeError, match="name it"):
        to_plain(5)


def test_nesting_is_bounded_both_ways():
    plain, body = [7], event.EpochBump()
    for _ in range(MAX_DEPTH - 1):
        plain, body = [15, 0, [[0, plain]]], event.Rerooted(purged_parent=0, prefix=((0, body),))

    assert to_plain(body) == plain
    assert from_plain(EventBody, plain) == body
    assert refusal(EventBody, [15, 0, [[0, plain]]]) == (Reason.TOO_DEEP, "EventBody")
    with pytest.raises(EncodeError, match="nested"):
        to_plain(event.Rerooted(purged_parent=0, prefix=((0, body),)))
