"""What can go wrong with a request, by kind.

The wire carries a refusal as text only, and the phrases that tell the kinds apart are part of the protocol; ``refusal``
turns them into classes, so that a program never has to search for them. The daemon's list of these phrases is in
docs/errors.md. A text may quote a path, or a model's own words, so a phrase counts only where it stands in its own text.
"""

import re
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


class OutcomeUnknown(SuperfluidError):
    """The disk failed under the request: whether it was stored is unknown until the daemon was restarted.

    Read the session then; to ask again without reading may do it twice.
    """


class ServerFailed(SuperfluidError):
    """The daemon or its engine failed at this request, which was in order. What was received is committed, and more may
    be: read the session."""


class ShuttingDown(SuperfluidError):
    """The daemon is ending. What was received is committed; a generation goes on after its restart."""


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


_KINDS: Final[tuple[tuple[re.Pattern[str], type[SuperfluidError]], ...]] = tuple(
    (re.compile(phrase, re.DOTALL), kind)
    for phrase, kind in (
        (r"session \d+ is generating;", SessionBusy),
        (r"session \d+ has no generation in flight$", NothingInFlight),
        (r"session \d+ does not exist$", NoSuchSession),
        (r"session \d+ has metadata version ", Conflict),
        (r"session \d+ is being appended to from elsewhere", Conflict),
        (r"session \d+ fills the context ", ContextFull),
        (r"session \d+ (?:holds|would put) \d+ tokens .*\bcontext\b", ContextFull),
        (r"a prompt of \d+ tokens .*\bcontext\b", ContextFull),
        (r"\w+ is not supported yet ", NotSupported),
        (r"inspecting session \d+ is not supported: ", NotSupported),
        (r"exact replies are not supported here: ", NotSupported),
        (r"the model's (?:file has no chat template|chat template cannot be used): ", NotSupported),
        (r"the daemon is ending;", ShuttingDown),
        (r"the worker was lost \(", WorkerLost),
        (r".*: whether (?:this|it) was stored is (?:un)?known", OutcomeUnknown),
        # Any other text about the worker, its engine or its model file says why there is none.
        (r"the worker ", ServerFailed),
        (r"the engine(?:'s)? ", ServerFailed),
        (r"model file ", ServerFailed),
        (r"too little memory", ServerFailed),
        (r"the reply could not be recorded", ServerFailed),
        (r"the daemon (?:failed to|wrote a record that) ", ServerFailed),
        (r"internal error;", ServerFailed),
    )
)


def refusal(message: str, *, under_way: bool = False) -> SuperfluidError:
    """The daemon's ``Err`` text as an exception of its kind.

    Args:
        message: The text.
        under_way: Events of this very request were received before it, so that it cannot say that nothing was changed.
    """
    kind = next((kind for phrase, kind in _KINDS if phrase.match(message)), RequestRefused)
    return (ServerFailed if under_way and issubclass(kind, RequestRefused) else kind)(message)
