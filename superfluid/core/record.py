"""Records and commands: what the frames of the session log carry (``core.frame`` has the format around it).

The payload of a data frame is CBOR, an array of commands; everything is an array, its fields in this order:

* command: ``[operation id or null, request digest or null, request id or null, [record, …]]``
* record: ``[session, event_id, epoch, ts_unix_ms, body]``
* body: the event's plain form, ``[variant index, field, …]``; token spans are packed u32, little-endian.

A command is what one request commits: all of its records or none of them. Commands are encoded one by one,
so that an encoding error fails only its command, and a batch is the array's head and their bytes behind
each other. Reading is strict about the form: a field of another type, a missing one or one too many, and bytes behind the
array are refused. Which of CBOR's ways to write a number was taken is left to the frame's checksum.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO  # noqa: TID251 - bytes in memory, read by nobody else
from typing import Final

import cbor2

from superfluid.core.errors import BadRequest, CommandTooLarge, EventTooLarge, LogCorrupt
from superfluid.core.limits import MAX_COMMAND_BYTES
from superfluid_protocol import EventBody, EventMsg, encode, from_plain, to_plain
from superfluid_protocol.framing import MAX_FRAME

MAX_EVENT_BYTES: Final = MAX_FRAME - 64
"""Wire bytes of one event: alone in a reply, with the reply's own fields, it still fits a frame."""

_U64_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One committed event of one session. ``ts_unix_ms`` is milliseconds since 1970 and orders nothing."""

    session: int
    event_id: int
    epoch: int
    ts_unix_ms: int
    body: EventBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What one request committed.

    Args:
        op_id: The client's name for the operation, by which a repeated command is recognised, or None.
        digest: Keyed digest of the request's content: the same ``op_id`` with another digest is a conflict.
        request_id: The generation attempt that made this, which log lines and request records carry too.
        records: The events, in order.
    """

    op_id: str | None
    digest: bytes | None
    request_id: str | None
    records: tuple[Record, ...]


def encode_command(command: Command) -> bytes:
    """The CBOR of one command.

    Raises:
        EventTooLarge: An event would not fit a frame of the wire protocol, so no client could ever read it.
        CommandTooLarge: The records together pass ``MAX_COMMAND_BYTES``.
        BadRequest: A value has no encoding: a number out of its range, text with a lone surrogate.
    """
    try:
        records = [[r.session, r.event_id, r.epoch, r.ts_unix_ms, to_plain(r.body)] for r in command.records]
        encoded = cbor2.dumps([command.op_id, command.digest, command.request_id, records])
    except ValueError as error:
        raise BadRequest(f"a value of this request cannot be stored: {_kind(error)}") from error
    _check_sizes(command, len(encoded))
    return encoded


def _kind(error: ValueError) -> str:
    """What is wrong, without the text it is wrong in: a Unicode error's own message quotes the content."""
    return "text that is not valid Unicode" if isinstance(error, UnicodeError) else str(error)


def _check_sizes(command: Command, size: int) -> None:
    # No value takes more than twice the bytes on the wire that it takes here (the worst is a present option,
    # one byte here and two there), so only what comes near the limit is encoded once more to be measured.
    if 2 * size > MAX_EVENT_BYTES:
        for r in command.records:
            message = EventMsg(event_id=r.event_id, epoch=r.epoch, ts_unix_ms=r.ts_unix_ms, body=r.body)
            if (wire := len(encode(message))) > MAX_EVENT_BYTES:
                raise EventTooLarge(f"an event of {wire} bytes passes the limit of {MAX_EVENT_BYTES}")
    if size > MAX_COMMAND_BYTES:
        raise CommandTooLarge(f"a command of {size} bytes passes the limit of {MAX_COMMAND_BYTES}")


def encode_batch(encoded: Sequence[bytes]) -> bytes:
    """The payload of a data frame: these commands, each from ``encode_command``, in this order."""
    return b"".join((_array_head(len(encoded)), *encoded))


def _array_head(count: int) -> bytes:
    """CBOR's head of an array (RFC 8949, section 3): major type 4 and the count in its shortest form."""
    if count < 24:
        return bytes((0x80 | count,))
    for code, width in ((0x98, 1), (0x99, 2)):
        if count < 1 << 8 * width:
            return bytes((code,)) + count.to_bytes(width, "big")
    return b"\x9a" + count.to_bytes(4, "big")


def decode_batch(payload: bytes) -> Iterator[Command]:
    """The commands in a data frame's payload.

    Raises:
        LogCorrupt: The bytes are no batch; the text says what is wrong, and the caller where.
    """
    stream = BytesIO(payload)
    try:
        batch = cbor2.CBORDecoder(stream).decode()
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise LogCorrupt("the payload is no CBOR") from error
    if stream.tell() != len(payload):
        raise LogCorrupt("the payload has bytes behind its array of commands")
    if not isinstance(batch, list):
        raise LogCorrupt("the payload is no array of commands")
    return map(_command, batch)


def _command(plain: object) -> Command:
    match plain:
        case [str() | None as op_id, bytes() | None as digest, str() | None as request_id, list() as records]:
            return Command(
                op_id=op_id, digest=digest, request_id=request_id, records=tuple(_records(records))
            )
    raise LogCorrupt("a command in the payload does not have the form of one")


def _records(plain: Iterable[object]) -> Iterator[Record]:
    for item in plain:
        match item:
            case [int(session), int(event_id), int(epoch), int(ts_unix_ms), body] if (
                _is_u64(session) and _is_u64(event_id) and _is_u64(epoch) and _is_u64(ts_unix_ms)
            ):
                try:
                    event = from_plain(EventBody, body)
                except ValueError as error:
                    raise LogCorrupt(f"a record's event does not decode: {error}") from error
                yield Record(
                    session=session, event_id=event_id, epoch=epoch, ts_unix_ms=ts_unix_ms, body=event
                )
            case _:
                raise LogCorrupt("a record in the payload does not have the form of one")


def _is_u64(value: int) -> bool:
    return type(value) is int and 0 <= value <= _U64_MAX
