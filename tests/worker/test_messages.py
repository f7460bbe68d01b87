import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core.limits import MAX_LINK_MESSAGE_BYTES, MAX_LINK_TEXT_BYTES
from superfluid.core.plan import JobResult, JobState, Move, MoveKind, Plan, Result
from superfluid.worker import codec, messages
from superfluid.worker.messages import (
    Cancel,
    Failed,
    Fetch,
    Filed,
    Interrupt,
    Load,
    MessageError,
    Probed,
    Progress,
    Ready,
    Seal,
    Shutdown,
)
from tests.worker.builders import admit, clear, copy, pack

TO_WORKER = [
    Load(model_path="/models/a b.gguf", n_ctx=4096, n_seq=24),
    Load(model_path="m", n_ctx=0, n_seq=1, exact_rows=8, probe="exact", kv_type="q8_0", flash_attn="auto"),
    Plan(id=1),
    Plan(
        id=2**64 - 1,
        moves=(copy(0, 5, 12), clear(2)),
        admit=(admit(2**64 - 1, 4, [0, 1, 2**32 - 1], start=7, temperature=0.75, seed=2**64 - 1, top_k=40),),
        prefill=((9, 512), (2**64 - 1, 1)),
        decode_rounds=12,
        retire=(1, 2, 3),
        hold=(9, 2**64 - 1),
    ),
    Plan(
        id=2,
        moves=(
            Move(kind=MoveKind.SAVE, seq=1, n=12, entry=2**64 - 1),
            Move(kind=MoveKind.LOAD, seq=2, n=12, entry=7),
            Move(kind=MoveKind.DROP, entry=7),
        ),
        admit=(admit(3, 2, [5], start=2, exact=True, draft=True, history=pack([8, 9])),),
    ),
    Seal(
        ticket=2**64 - 1, entry=7, path="/p/a.park", identity="m", digest=b"d" * 32, positions=9, lossy=True
    ),
    Fetch(ticket=1, entry=8, path="/p/a.park", identity="m", digest=b"d" * 32, positions=9),
    Cancel(job=2**63),
    Interrupt(plan_id=0),
    Shutdown(),
]
FROM_WORKER = [
    Progress(fraction=0.25),
    Ready(
        n_vocab=49152,
        n_ctx=4096,
        n_ctx_train=8192,
        n_seq=24,
        bytes_per_token=23040,
        description="llama 135M Q4_1",
        library="llama.cpp",
        threads=2,
        cuts="free",
        settings="none",
        bytes_per_sequence=2**33,
        lossy_refusal="recurrent",
    ),
    Failed(kind="missing", reason="model file /x does not exist"),
    Result(plan_id=1, jobs=(), positions=()),
    Result(
        plan_id=2,
        jobs=(
            JobResult(job=9, prefilled=512, tokens=pack([1, 2, 3]), state=JobState.RUNNING),
            JobResult(job=2**64 - 1, prefilled=0, tokens=b"", state=JobState.COLD, detail="gone"),
        ),
        positions=((0, 512), (23, 0)),
        prefill_rows=512,
        prefill_us=70_000,
        decode_steps=3,
        decode_rows=24,
        decode_us=2**40,
        interrupted=True,
        saved=((2**64 - 1, 512, 2**33), (7, 0, 0)),
        drafted=9,
        accepted=4,
    ),
    Filed(ticket=2**64 - 1, ok=True, size=2**33),
    Filed(ticket=1, ok=False, size=0, detail="no space left"),
    Probed(record='{"batch_invariant": true}'),
]


def body(message):
    frame = codec.encode(message)
    head, rest = frame[: codec.HEADER.size], frame[codec.HEADER.size :]
    assert codec.decode_length(head) == len(rest)
    return rest


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda m: type(m).__name__)
def test_the_daemons_messages_come_back_equal(message):
    assert codec.decode_to_worker(body(message)) == message


@pytest.mark.parametrize("message", FROM_WORKER, ids=lambda m: type(m).__name__)
def test_the_workers_messages_come_back_equal(message):
    assert codec.decode_from_worker(body(message)) == message


@pytest.mark.parametrize("message", TO_WORKER)
def test_a_message_of_the_wrong_direction_is_refused(message):
    with pytest.raises(MessageError, match="direction"):
        codec.decode_from_worker(body(message))


@pytest.mark.parametrize(
    "data", [b"\0\0\0\0", b"\xff\xff\xff\xff", codec.HEADER.pack(MAX_LINK_MESSAGE_BYTES + 1)]
)
def test_a_length_that_no_message_has_is_refused(data):
    with pytest.raises(MessageError, match="limit"):
        codec.decode_length(data)


def test_a_message_over_the_limit_is_not_sent():
    plan = Plan(id=1, admit=(admit(1, 0, [0]),))
    huge = admit(1, 0, [0])
    object.__setattr__(huge, "tokens", bytes(MAX_LINK_MESSAGE_BYTES))
    object.__setattr__(plan, "admit", (huge,))

    with pytest.raises(MessageError, match="limit"):
        codec.encode(plan)


READY = [17, 10, 10, 10, 10, 10, "d", "l", 1, "free", "s", 9, ""]
LINE = [1, 0, b"", 0, ""]
RESULT = [19, 1, [LINE], [[0, 1]], 0, 0, 0, 0, 0, False, [[7, 12, 99]], 0, 0]
FILED = [20, 3, True, 9, ""]


def changed(array, path, value):
    """A deep copy of *array* with one element replaced."""
    head, *rest = path
    copied = list(array)
    copied[head] = changed(copied[head], rest, value) if rest else value
    return copied


def test_the_unchanged_arrays_are_messages():
    for array in (READY, RESULT, FILED):
        codec.decode_from_worker(cbor2.dumps(array))


@pytest.mark.parametrize(
    "array",
    [
        None,
        [],
        {},
        "text",
        [20],
        [True],
        ["17"],
        [16],
        [16, 1],
        [16, 0.5, 0.5],
        [18, "missing"],
        [18, "missing", "x" * (MAX_LINK_TEXT_BYTES + 1)],
        [18, b"missing", "x"],
        changed(READY, [1], -1),
        changed(READY, [1], 2**31),
        changed(READY, [1], 1.0),
        changed(READY, [1], True),
        changed(READY, [1], 2**200),
        changed(READY, [6], None),
        changed(READY, [9], "often"),
        changed(RESULT, [2], None),
        changed(RESULT, [2, 0], {}),
        changed(RESULT, [2, 0], [*LINE, 1]),
        changed(RESULT, [2, 0, 2], b"123"),
        changed(RESULT, [2, 0, 2], "1234"),
        changed(RESULT, [2, 0, 3], 99),
        changed(RESULT, [3, 0], [1]),
        changed(RESULT, [3, 0, 1], -5),
        changed(RESULT, [9], 1),
        changed(RESULT, [10], None),
        changed(RESULT, [10, 0], [7, 12]),
        changed(RESULT, [10, 0, 1], 2**31),
        changed(RESULT, [10, 0, 2], -1),
        changed(RESULT, [11], -1),
        changed(FILED, [2], 1),
        changed(FILED, [4], b""),
    ],
)
def test_a_field_of_another_type_or_range_is_refused(array):
    with pytest.raises(MessageError):
        codec.decode_from_worker(cbor2.dumps(array))


@pytest.mark.parametrize(
    "array",
    [
        [0, "/m", 1, 1, 1, 1, 1, "sometimes", "f16", 1, ""],
        [0, "/m", 1, 1, 1, 1, 1, "off", "q2", 1, ""],
        [0, "/m", 1, 1, 1, 1, 1, "off", "f16", 1, "everything"],
        [1, 1, [[9, 0, 0, 0, 0]], [], [], 0, [], []],
        [1, 1, [], [], [], 0, [-1], []],
        [1, 1, [], [], [], 0, [], [-1]],
        [5, 1, 2, "/p", "i", "digest", 3, False],
        [5, 1, 2, "/p", "i", b"digest", 3, 0],
        [6, 1, 2, b"/p", "i", b"digest", 3],
    ],
)
def test_a_message_of_the_daemon_with_unknown_words_or_types_is_refused(array):
    with pytest.raises(MessageError, match=r"not|no such"):
        codec.decode_to_worker(cbor2.dumps(array))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x9b\x00\x00\x00\x7f\xff\xff\xff\xff",  # an array of 2**39 elements
        b"\x5b\x00\x00\x00\x7f\xff\xff\xff\xff",  # as many bytes
        b"\x81" * 100_000 + b"\x00",  # nested
        b"\xd8\x23\x63(((",  # a regular expression that is none
        b"\xc0\x61x",  # a date that is none
        b"\xd8\x1d\x00",  # a reference to nothing
    ],
)
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(MessageError):
        codec.decode_from_worker(data)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
        lambda inner: st.lists(inner, max_size=10),
        max_leaves=20,
    ).map(lambda value: cbor2.dumps([19, value, value]))
)
def test_anything_at_all_is_a_message_or_the_one_error(data):
    for decode in (codec.decode_to_worker, codec.decode_from_worker):
        try:
            message = decode(data)
        except MessageError:
            continue
        assert decode(body(message)) == message


def test_clip_cuts_between_characters():
    assert messages.clip("é" * MAX_LINK_TEXT_BYTES) == "é" * (MAX_LINK_TEXT_BYTES // 2)
    assert messages.clip("x" + "é" * MAX_LINK_TEXT_BYTES).encode()[-2:] == "é".encode()
    assert messages.clip("short") == "short"
