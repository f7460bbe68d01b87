"""The frames of one connection as a client sees them, sans-I/O: requests to bytes, bytes to responses.

Both clients are shells around this module, ``operations`` and ``replies``: they move bytes, and decide nothing.
"""

from typing import Final, TypeVar

from superfluid_client.errors import ConnectionLost, ProtocolError, refusal
from superfluid_protocol import (
    DecodeError,
    EncodeError,
    FrameDecoder,
    FrameTooLarge,
    Request,
    Response,
    decode,
    encode,
    encode_frame,
    request,
    response,
)

READ_BYTES: Final = 64 * 1024

R = TypeVar("R", bound=Response)


class Exchange:
    """The frames of one connection.

    ``busy`` says whether a reply is awaited; a connection that ends while it is not can be replaced without a loss.
    """

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self.busy = False

    def send(self, req: Request) -> bytes:
        """The bytes of a request. The next responses are its reply.

        Raises:
            ValueError: The request has no encoding (a number out of range, half a surrogate pair, more than a frame
                holds), or it is a subscription.
        """
        assert not self.busy, "one connection runs one request at a time"
        if isinstance(req, request.Subscribe | request.Unsubscribe):
            # A value error all the same: the type is that of a request, and a later client may offer it.
            raise ValueError(  # noqa: TRY004
                "subscriptions need a connection of their own, which this client does not offer"
            )
        try:
            frame = encode_frame(encode(req))
        except (EncodeError, FrameTooLarge) as error:
            raise ValueError(f"this {type(req).__name__} request cannot be sent: {error}") from error
        self.busy = True
        return frame

    def receive(self, data: bytes) -> None:
        """Take received bytes; empty ones are the end of the stream.

        Raises:
            ConnectionLost: It ended.
            ProtocolError: The bytes are no frames.
        """
        if not data:
            raise lost("it closed the connection")
        try:
            self._decoder.feed(data)
        except FrameTooLarge as error:
            raise ProtocolError(f"the server sent a {error}") from error

    def next_response(self) -> Response | None:
        """The next response, or None while it is incomplete. Bytes behind it are a newer server's additions.

        Raises:
            ProtocolError: It is no response.
        """
        try:
            payload = self._decoder.next_frame()
            if payload is None:
                return None
            value, _consumed = decode(Response, payload)
        except FrameTooLarge as error:
            raise ProtocolError(f"the server sent a {error}") from error
        except DecodeError as error:
            raise ProtocolError(f"the server sent a reply that does not decode: {error}") from error
        if not isinstance(value, response.Delta):
            self.busy = False
        return value

    @property
    def in_step(self) -> bool:
        """Whether the connection is between two requests, with nothing left over."""
        return not self.busy and self._decoder.buffered == 0


def lost(what: str) -> ConnectionLost:
    """The error for a connection that ended under a request."""
    return ConnectionLost(
        f"the connection to the daemon was lost ({what}); whether the request was carried out is not known, "
        "and everything that was received is committed"
    )


def expect(kind: type[R], reply: Response, *, under_way: bool = False) -> R:
    """*reply*, which has to be a *kind*.

    Args:
        under_way: As for ``refusal``.

    Raises:
        SuperfluidError: It is a refusal; its class is the kind of it.
        ProtocolError: It is another reply.
    """
    if isinstance(reply, response.Err):
        raise refusal(reply.message, under_way=under_way)
    if not isinstance(reply, kind):
        raise ProtocolError(f"the server answered with {type(reply).__name__} where {kind.__name__} belongs")
    return reply
