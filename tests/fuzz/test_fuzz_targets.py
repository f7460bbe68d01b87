"""The fuzz targets hold on a fixed number of inputs: seeds that are in order, and what small changes make of them."""

import json
import random
from collections.abc import Callable, Iterator

import pytest

from fuzz import fuzz_frame, fuzz_record
from superfluid.core.frame import HEAD_BYTES, Kind, Position, build_frame
from superfluid.core.record import Command, Record, encode_batch, encode_command
from superfluid_protocol import encode_frame, event
from tests.gates.repository import ROOT

ROUNDS = 400

NASTY = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x80",
    b"\x9f",
    b"\xf9\x7e\x00",
    b"SFB3",
)


def wire_seeds() -> list[bytes]:
    """Every published message as a frame, and some frames behind each other."""
    lines = (ROOT / "protocol/vectors/vectors.jsonl").read_text().splitlines()
    frames = [encode_frame(bytes.fromhex(json.loads(line)["hex"])) for line in lines]
    return [*(frame for frame in frames if len(frame) < 600), b"".join(frames[:5])]


def batches() -> list[bytes]:
    """Payloads of data frames."""
    bodies = [
        event.Appended(text="hi \N{SNOWMAN}", span=(1, 2, 70_000)),
        event.Message(role=1, text="", span=()),
        event.Generated(span=(7,), text="x" * 300, channel=0, finish=1),
        event.MetaUpdated(version=1, title="t", archived=None),
    ]
    made = [
        encode_command(
            Command(
                op_id=op_id,
                digest=b"d" * 8 if op_id else None,
                request_id="1-2",
                records=tuple(
                    Record(session=1, event_id=i, epoch=1, ts_unix_ms=2**40, body=body)
                    for i, body in enumerate(bodies[:count])
                ),
            )
        )
        for op_id, count in ((None, 1), ("op", 4), (None, 0))
    ]
    return [encode_batch(made[:1]), encode_batch(made), encode_batch([])]


def log_seeds() -> list[bytes]:
    """Logs without their head: one frame, many, one torn, one with zeros behind it; and the payloads alone."""
    head, logs = fuzz_record.HEAD, b""
    at = Position(offset=HEAD_BYTES, previous=head.checksum, epoch=0)
    for kind, raw in [(Kind.START, b"\xa0"), *((Kind.DATA, raw) for raw in batches()), (Kind.CLOSE, b"\xa0")]:
        built = build_frame(
            kind,
            raw,
            at=Position(offset=at.offset, previous=at.previous, epoch=1),
            durable=at.offset,
            key=head.key,
        )
        logs += built.data
        at = built.after
    return [logs, logs[:-40], logs + bytes(200), logs[:96], *batches()]


def mutations(seeds: list[bytes], rounds: int, seed: int) -> Iterator[bytes]:
    """The seeds, then copies with up to four changes each; the same ones at every run."""
    yield b""
    yield from seeds
    draw = random.Random(seed)
    for _ in range(rounds):
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.randint(1, 4)):
            change(data, draw, seeds)
        yield bytes(data)


def change(data: bytearray, draw: random.Random, seeds: list[bytes]) -> None:
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.randint(1, 16))
    match draw.randrange(5):
        case 0:
            if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = draw.choice(NASTY)
        case 3:
            data[at:end] = draw.choice(NASTY)
        case 4:
            other = draw.choice(seeds)
            data[at:] = other[draw.randrange(len(other) + 1) :]


@pytest.mark.parametrize(
    ("one_input", "seeds"),
    [(fuzz_frame.one_input, wire_seeds()), (fuzz_record.one_input, log_seeds())],
    ids=["frame", "record"],
)
def test_the_invariant_holds(one_input: Callable[[bytes], None], seeds: list[bytes]):
    for data in mutations(seeds, ROUNDS, seed=20):
        try:
            one_input(data)
        except BaseException as fault:
            fault.add_note(f"the input was {data.hex()}")
            raise


def test_the_seeds_reach_what_they_are_for():
    found, end = fuzz_record.walk(log_seeds()[0], 7)

    assert [frame.kind for frame in found] == [Kind.START, Kind.DATA, Kind.DATA, Kind.DATA, Kind.CLOSE]
    assert end.__class__.__name__ == "CleanEnd"
    assert [len(fuzz_record.commands(batch)) for batch in batches()] == [1, 3, 0]
    assert len(fuzz_frame.frames(wire_seeds()[-1], 3)[0]) == 5


@pytest.mark.parametrize("target", [fuzz_frame, fuzz_record])
def test_each_target_opens_with_its_invariant(target):
    assert target.__doc__.splitlines()[0].startswith("Whatever ")
