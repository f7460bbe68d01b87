"""What follows from a measurement, and that only what was measured here counts as one."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core.capability import (
    PADDINGS,
    SHAPES,
    Capability,
    Exactness,
    Identity,
    KernelTime,
    Tactic,
    Trial,
    choose_attention,
    choose_tactic,
    from_json,
    is_cheap,
    to_json,
)

IDENTITY = Identity(
    model="abc",
    library="lib 1",
    cpu="cpu (f)",
    threads=2,
    n_ubatch=512,
    kernels="fast",
    flash_attn="off",
    kv_type="f16",
)
TIMES = (
    KernelTime(flash_attn="off", depth=500, first_us=10_000, batch_us=40_000, deep_us=12_000),
    KernelTime(flash_attn="on", depth=500, first_us=9_000, batch_us=30_000, deep_us=19_000),
)
PLAIN = Trial(rows=1, outputs=1, mismatch="lone rows, at position 192", step_us=1000)
PADDED = Trial(rows=2, outputs=1, mismatch="", step_us=1600)


def exactness(*trials, unfinished=""):
    return Exactness(positions=448, plain_us=1000, trials=trials, unfinished=unfinished)


def capability(*trials, **fields):
    return Capability(identity=IDENTITY, exactness=exactness(*trials), measured_ms=5, **fields)


# -- attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "chosen"), [(0, "on"), (50, "off"), (100, "off"), (4096, "off")])
def test_the_kernel_is_the_one_that_is_faster_at_the_depth_that_matters(depth, chosen):
    assert choose_attention(TIMES, depth) == chosen


def test_of_kernels_that_are_alike_the_one_is_taken_that_is_more_easily_exact():
    alike = [replace(time, first_us=5, deep_us=5) for time in reversed(TIMES)]

    assert choose_attention(alike, 1000) == "off"


def test_without_times_there_is_nothing_to_choose():
    assert choose_attention((), 1000) == "off"


def test_a_deep_step_that_was_faster_by_luck_does_not_make_deeper_ones_faster_still():
    lucky = KernelTime(flash_attn="on", depth=500, first_us=10, batch_us=10, deep_us=5)

    assert lucky.at(100_000) == 10


# -- exactness --------------------------------------------------------------------------------------


def test_the_first_padding_that_gave_the_same_bits_is_the_tactic():
    found = capability(PLAIN, PADDED)

    assert found.batch_invariant is True
    assert found.tactic == Tactic(kernels="fast", flash_attn="off", kv_type="f16", rows=2, outputs=1)
    assert found.exactness.cost == 1.6
    assert found.exactness.why_not() == ""


def test_without_a_tactic_the_last_difference_says_why():
    found = capability(PLAIN)

    assert found.batch_invariant == (
        "rows of this model depend on what is computed beside them (lone rows, at position 192)"
    )
    assert found.tactic is None
    assert found.exactness.cost == 0


def test_a_measurement_that_did_not_come_to_an_end_says_so():
    unfinished = replace(capability(), exactness=exactness(PLAIN, unfinished="too slow"))

    assert unfinished.batch_invariant == "too slow"
    assert "nothing was tried" in capability().batch_invariant


def test_what_was_not_measured_is_not_claimed():
    nothing = Capability(identity=IDENTITY)

    assert isinstance(nothing.batch_invariant, str)
    assert "not measured yet" in nothing.batch_invariant
    assert replace(nothing, trouble="the probe died").batch_invariant == "the probe died"
    assert nothing.tactic is None


def test_of_several_contexts_the_fastest_exact_one_is_chosen():
    slow = capability(PLAIN, replace(PADDED, step_us=3000))
    fast = capability(PLAIN, replace(PADDED, step_us=2000))

    assert choose_tactic([capability(PLAIN), slow, fast, Capability(identity=IDENTITY)]) is fast
    assert choose_tactic([capability(PLAIN)]) is None


def test_a_tactic_is_cheap_up_to_twice_the_time_of_a_step():
    assert is_cheap(capability(PLAIN, replace(PADDED, step_us=2000)))
    assert not is_cheap(capability(PLAIN, replace(PADDED, step_us=2001)))
    assert not is_cheap(capability(PLAIN))
    assert not is_cheap(Capability(identity=IDENTITY))


# -- records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        Capability(identity=IDENTITY),
        Capability(identity=IDENTITY, attention=TIMES, measured_ms=7, trouble="none"),
        capability(PLAIN, PADDED, attention=TIMES),
        capability(PLAIN),
    ],
)
def test_a_record_comes_back_equal(record):
    assert from_json(to_json(record)) == record


def test_a_record_says_what_people_ask():
    record = json.loads(to_json(capability(PLAIN, PADDED)))

    assert record["batch_invariant"] is True
    assert record["tactic"] == {
        "kernels": "fast",
        "flash_attn": "off",
        "kv_type": "f16",
        "rows": 2,
        "outputs": 1,
    }
    assert record["cost"] == 1.6
    assert record["exactness"]["shapes"] == list(SHAPES)


def change(path, value):
    """A record with one value changed."""
    record = json.loads(to_json(capability(PLAIN, PADDED, attention=TIMES)))
    *parents, last = path
    place = record
    for name in parents:
        place = place[name]
    place[last] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 0),
        (("format",), True),
        (("identity",), None),
        (("identity", "threads"), "2"),
        (("identity", "threads"), -1),
        (("identity", "model"), 3),
        (("attention",), {}),
        (("attention", 0, "depth"), 0),
        (("attention", 0, "flash_attn"), "auto"),
        (("exactness", "shapes"), ["chunks"]),
        (("exactness", "trials", 0, "rows"), 3),
        (("exactness", "trials", 0, "mismatch"), None),
        (("exactness", "trials"), "none"),
        (("exactness",), 5),
        (("measured_ms",), 1.5),
        (("trouble",), None),
    ],
)
def test_a_record_that_is_not_as_it_was_written_is_none(path, value):
    assert from_json(change(path, value)) is None


@given(st.integers(0, 1200), st.binary(min_size=1, max_size=3))
def test_damage_is_seen_or_harmless(offset, bytes_):
    text = to_json(capability(PLAIN, PADDED, attention=TIMES)).encode()

    found = from_json(text[:offset] + bytes_ + text[offset + len(bytes_) :])

    assert found is None or isinstance(found, Capability)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"\xff", b'{"format": 1}', b"[" * 100_000])
def test_what_is_no_record_is_none(text):
    assert from_json(text) is None


def test_every_part_of_an_identity_makes_another_key():
    changed = [
        replace(IDENTITY, **{name: value})
        for name, value in [
            ("model", "x"),
            ("library", "x"),
            ("cpu", "x"),
            ("threads", 3),
            ("n_ubatch", 1),
            ("kernels", "plain"),
            ("flash_attn", "on"),
            ("kv_type", "q8_0"),
        ]
    ]

    keys = {IDENTITY.key("exact"), IDENTITY.key("attention"), *(one.key("exact") for one in changed)}

    assert len(keys) == len(changed) + 2
    assert IDENTITY.key("exact") == replace(IDENTITY).key("exact")


def test_each_padding_has_whole_groups_of_outputs():
    assert all(rows % outputs == 0 for rows, outputs in PADDINGS)
    surest = PADDINGS[-1]
    assert all(surest[0] % rows == 0 and surest[1] % outputs == 0 for rows, outputs in PADDINGS)


def test_lanes_beside_each_other_count_as_they_were_timed():
    alone = KernelTime(flash_attn="off", depth=500, first_us=100, batch_us=800, deep_us=600)
    beside = KernelTime(flash_attn="on", depth=500, first_us=100, batch_us=450, deep_us=600)

    assert [alone.at(0, lanes) for lanes in (1, 8)] == [100, 800]
    assert alone.at(100, 2) == 100 + 100 + 2 * 100
    assert choose_attention((alone, beside), 10, lanes=1) == "off"
    assert choose_attention((alone, beside), 10, lanes=8) == "on"
