"""What can go wrong with a request, by kind.

The wire carries a refusal as text only, and a few phrases of those texts are part of the protocol; ``refusal`` turns
them into classes, so that a program never has to search for them.
"""

from typing import Final


class SuperfluidError(Exception):
    """Base of everything this client raises. ``str(error)`` says what happened and what can be done."""


class ConnectionFailed(SuperfluidError):
    """No daemon could be reached; nothing was asked."""


class ConnectionLost(SuperfluidError):
    """The connection ended before the reply was there.

    Whether the request was carried out is unknown: read the session to find out. What was received before is committed.
    """


class ProtocolError(SuperfluidError):
    """The server answered with bytes or a reply that this version of the protocol does not have here."""


class WorkerLost(SuperfluidError):
    """The daemon lost the worker that ran the model. What was received is committed; generate again to go on."""


class RequestRefused(SuperfluidError):
    """The daemon did not carry out the request, and nothing was changed. Its subclasses are the kinds a program can
    act on; the others are told by their text alone."""


class SessionBusy(RequestRefused):
    """The session has a generation in flight: wait for it, or cancel it."""


class NoSuchSession(RequestRefused):
    """There is no session with this id."""


class NothingInFlight(RequestRefused):
    """There is no generation to cancel in this session."""


class Conflict(RequestRefused):
    """What the request took for granted has changed since: read again, decide again."""


class NotSupported(RequestRefused):
    """This daemon, or its model, does not do this."""


class ContextFull(RequestRefused):
    """The session fills the model's context: trim it, or serve with a larger one."""


class ShuttingDown(RequestRefused):
    """The daemon is ending. What was received is committed; a generation goes on after its restart."""


_KINDS: Final[tuple[tuple[str, type[SuperfluidError]], ...]] = (
    (" is generating;", SessionBusy),
    (" has no generation in flight", NothingInFlight),
    (" does not exist", NoSuchSession),
    (" is not supported", NotSupported),
    ("worker was lost", WorkerLost),
    ("the engine failed on this reply", WorkerLost),
    ("the daemon is ending", ShuttingDown),
    (" fills the context ", ContextFull),
    (" tokens and the context ", ContextFull),
    (" has metadata version ", Conflict),
    (" is being appended to from elsewhere", Conflict),
    (" was used for another request", Conflict),
)


def refusal(message: str) -> SuperfluidError:
    """The daemon's ``Err`` text as an exception of its kind."""
    for phrase, kind in _KINDS:
        if phrase in message:
            return kind(message)
    return RequestRefused(message)
