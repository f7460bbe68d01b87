"""The catalogue as declared: indices, fields and manners. The vectors pin most of it; this pins the rest."""

import dataclasses
import enum
import pickle
from typing import Annotated

import pytest

from superfluid_protocol import (
    EventBody,
    EventMsg,
    Inspection,
    PurgeMode,
    RebaseEdit,
    Request,
    Response,
    Sealed,
    Tier,
    decode,
    encode,
    event,
    from_json,
    from_plain,
    numbers,
    request,
    response,
    to_json,
    to_plain,
    types,
    variants,
)
from superfluid_protocol.schema import (
    U8,
    SumType,
    WireType,
    fields,
    is_recursive,
    struct,
    type_of,
    variant,
    variant_index,
    wire_type,
)

NAMES = {
    Request: "Create Append AppendMessage Generate Read AppendToolResult OpenToolCalls List Cancel Subscribe "
    "Unsubscribe Fork Tree Sessions SetMeta Rebase Purge SetQos SetBackgroundRate Inspect SetLogLevel Metrics "
    "AppendBlock RequestPermission RespondPermission RequestToolCancel AppendToolOutcome Ledger PutMedia "
    "AppendImage GcMedia Complete Trim Pin AppendSystem",
    Response: "Created Delta Cancelling Committed Generated Events Sessions ToolCalls Subscribed SubEvent "
    "SubProvisional SubEnded Unsubscribed Err Tree SessionList Meta Purged Ack Inspection Text Ledger Media Gc "
    "Completion Pinned Throttled",
    EventBody: "Created Appended Message GenerationPrompt Generated ToolUse ToolResult EpochBump "
    "GenerationFingerprint ToolParseFailure Forked MetaUpdated Rebased ToolExpired Purged Rerooted QosSet Block "
    "PermissionRequest PermissionResponse ToolCancelRequested ToolOutcome ToolReconciliation ToolLease Pinned",
    RebaseEdit: "Drop Replace",
    Tier: "Resident Parked Cold",
}
EXTENSIONS = {Request: {1024: "With", 1025: "Models"}, Response: {1024: "ModelList"}}


@pytest.mark.parametrize("base", NAMES, ids=lambda base: base.__name__)
def test_variants_and_their_indices(base):
    expected = dict(enumerate(NAMES[base].split())) | EXTENSIONS.get(base, {})

    assert {index: cls.__name__ for index, cls in variants(base).items()} == expected
    assert all(variant_index(cls) == index for index, cls in variants(base).items())


def test_fields_that_no_vector_pins():
    assert [field.wire_name for field in fields(Inspection)] == [
        "summary",
        "params",
        "epoch",
        "last_finish",
        "qos_class",
        "batch_invariant",
        "pin_deadline_unix_ms",
        "behavior_fingerprint",
        "open_tool_calls",
        "tier",
        "tokens",
        "events",
        "wal_version",
        "store_id",
    ]
    assert [field.wire_name for field in fields(types.Parked)] == ["covered", "encoding"]
    assert [field.wire_name for field in fields(request.With)] == ["op_id", "request"]
    assert [(mode.value, mode.name) for mode in PurgeMode] == [(0, "CASCADE"), (1, "REROOT")]


def test_only_bodies_nest():
    assert [base.__name__ for base in NAMES if is_recursive(base)] == ["EventBody"]


def test_values_are_frozen_slotted_and_keyword_only():
    value = request.Cancel(session=1)

    with pytest.raises(dataclasses.FrozenInstanceError):
        value.session = 2
    with pytest.raises(TypeError):
        request.Cancel(1)
    assert not hasattr(value, "__dict__")
    assert value == dataclasses.replace(value) == pickle.loads(pickle.dumps(value))
    assert hash(value) == hash(request.Cancel(session=1))
    assert value != request.Inspect(session=1)
    assert repr(value) == "Cancel(session=1)"
    assert repr(event.Message(role=1, text="a", span=(1,))) == "Message(role=1, text='a', span=(1,))"


@pytest.mark.parametrize("base", NAMES, ids=lambda base: base.__name__)
def test_sealed_bases_cannot_be_built(base):
    with pytest.raises(TypeError, match="abstract"):
        base()


def test_every_variant_and_field_is_documented():
    undocumented = [
        f"{base.__name__}.{cls.__name__}"
        for base in NAMES
        for cls in variants(base).values()
        if not cls.__doc__ or cls.__doc__.startswith(f"{cls.__name__}(")
    ]

    assert undocumented == []


def test_numbers_are_the_specifications():
    assert [list(map(int, numbers_)) for numbers_ in (numbers.Role, numbers.Channel, numbers.Finish)] == [
        [0, 1, 2, 3],
        [0, 1, 2],
        [0, 1, 2, 3, 4, 5],
    ]
    assert (numbers.Qos.AGENT, numbers.Outcome.FAILED, numbers.BlockKind.IMAGE) == (2, 1, 7)
    assert (numbers.LedgerState.CANCELLED_WITH_LATE_EFFECT, numbers.CompleteMode.SUFFIX_PREFIX_MIDDLE) == (
        6,
        1,
    )


def test_what_declares_nothing_is_refused():
    @dataclasses.dataclass
    class Struct:
        number: int

    class Plain:
        pass

    for declared in (int, str, Plain, U8 | bool | None, list[U8], "U8", Annotated[int, "note"]):
        with pytest.raises(TypeError, match="does not declare a wire type"):
            wire_type(declared)
    with pytest.raises(TypeError, match="does not declare a wire type"):
        fields(Struct)
    with pytest.raises(TypeError, match="is a variant; the wire type is Request"):
        wire_type(request.Cancel)


def test_types_of_values():
    assert type_of(request.List()) == SumType(Request)
    assert type_of(response.Ack()) == SumType(Response)
    assert type_of(EventMsg(event_id=0, epoch=0, ts_unix_ms=0, body=event.EpochBump())) == wire_type(EventMsg)
    assert type_of(PurgeMode.CASCADE) == wire_type(PurgeMode)
    with pytest.raises(TypeError, match="name it"):
        type_of(1)


def test_a_variant_has_one_sealed_base_and_an_index_of_its_own():
    class Base(Sealed):
        __slots__ = ()

    @variant(0)
    class First(Base):
        """The first."""

    with pytest.raises(TypeError, match="two variants 0"):

        @variant(0)
        class Second(Base):
            """Another first."""

    with pytest.raises(TypeError, match="must derive from a Sealed class"):

        @variant(1)
        class Third(First):
            """A variant of a variant."""

    assert dict(variants(Base)) == {0: First}


def test_a_new_wire_type_must_be_taught_to_every_form():
    """Nothing falls through: a type that a form does not know is an error, not silence."""

    class Novel(WireType):
        pass

    novel = Annotated[int, Novel()]
    for use in (
        lambda: decode(novel, b"\x00"),
        lambda: encode(0, novel),
        lambda: to_json(0, novel),
        lambda: from_json(novel, 0),
        lambda: to_plain(0, novel),
        lambda: from_plain(novel, 0),
    ):
        with pytest.raises(TypeError, match=r"for <.*Novel"):
            use()


def test_a_struct_with_an_enum_of_several_words():
    class Colour(enum.Enum):
        DARK_RED = 0

    @struct
    class Paint:
        """Something painted."""

        colour: Colour

    assert to_json(Paint(colour=Colour.DARK_RED)) == {"colour": "DarkRed"}
    assert from_json(Paint, {"colour": "DarkRed"}) == Paint(colour=Colour.DARK_RED)
