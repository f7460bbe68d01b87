"""Whatever bytes a peer sends, they are frames of values or the one named error, the same whole and byte by byte.

``python fuzz/fuzz_frame.py`` runs it under atheris, which has to be installed; the tests run a fixed number of inputs.
"""

from superfluid_protocol import DecodeError, FrameDecoder, FrameTooLarge, Request, Response, decode, encode

SMALL_FRAME = 4096
"""A limit that inputs of this size pass."""


def one_input(data: bytes) -> None:
    """The invariant, for one input."""
    payloads, refused = frames(data, len(data) or 1)
    assert frames(data, 1) == (payloads, refused)
    for payload in payloads:
        for kind in (Request, Response):
            one_payload(kind, payload)


def frames(data: bytes, step: int) -> tuple[list[bytes], int | None]:
    """The payloads in *data*, fed in pieces of *step* bytes, and the declared length that ended it, if one did."""
    decoder = FrameDecoder(SMALL_FRAME)
    found = []
    try:
        for start in range(0, len(data), step):
            decoder.feed(data[start : start + step])
            while (payload := decoder.next_frame()) is not None:
                found.append(payload)
    except FrameTooLarge as refusal:
        return found, refusal.declared
    assert sum(4 + len(payload) for payload in found) + decoder.buffered == len(data)
    return found, None


def one_payload(kind: type[Request] | type[Response], payload: bytes) -> None:
    """A payload is a value or a decode error; a value says the same once more, and takes nothing of what follows it."""
    try:
        value, consumed = decode(kind, payload)
    except DecodeError:
        return
    assert 0 < consumed <= len(payload)
    written = encode(value)
    again, length = decode(kind, written + b"\xff")
    assert length == len(written)
    assert encode(again) == written


if __name__ == "__main__":
    import sys

    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
