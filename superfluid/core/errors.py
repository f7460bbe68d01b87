"""The one tree of errors, cut by whose fault it was.

A shell decides what to do by the branch, never by the leaf:

* ``ClientError``: the request cannot be granted as asked; nothing was changed; the text goes to the client.
* ``CapacityError``: the request was good, but something with a bound is full; a later try may work.
* ``LostError``: a resource went away (worker, log, connection); what was acknowledged is safe.
* ``StartError``: the daemon or a worker cannot start as configured; a person has to act.
* ``CorruptError``: acknowledged bytes are damaged; the daemon refuses to guess.
* ``InternalError``: our own bug.

Every text says what happened and, where the reader can act, what to do. No text carries message
content, token ids or keys. Some phrases are part of the protocol, because its ``Err`` carries text only, and clients
tell the kinds of errors apart by them. A text that says one of these things has to keep its words (N is any number):

* begins with ``session N is generating;``, or is ``session N has no generation in flight`` or
  ``session N does not exist``;
* begins with ``session N has metadata version`` or ``session N is being appended to from elsewhere``;
* begins with ``session N fills the context``, or with ``session N holds N tokens``, ``session N would put N tokens``
  or ``a prompt of N tokens`` and names the context;
* begins with ``… is not supported yet``, ``inspecting session N is not supported:``, ``exact replies are not supported
  here:``, ``the model's file has no chat template:`` or ``the model's chat template cannot be used:``;
* begins with ``the daemon is ending;`` or ``the worker was lost (``;
* has ``: whether this was stored is unknown`` or ``: whether it was stored is known after``;
* begins with ``the worker``, ``the engine``, ``model file``, ``too little memory``, ``the reply could not be recorded``,
  ``the daemon failed to``, ``the daemon wrote a record that`` or ``internal error;``: the request was in order.

Any other text has to mean that nothing was changed, unless it closes a reply of which events were sent.
"""


class SuperfluidError(Exception):
    """Base of all errors of this project. ``str(error)`` may be shown to the client that caused it."""


# -- the client's -----------------------------------------------------------------------------------


class ClientError(SuperfluidError):
    """The request cannot be granted as asked. Nothing was changed."""


class BadRequest(ClientError):
    """A value in the request is out of its range or shape."""


class NoSuchSession(ClientError):
    """The named session does not exist (or was purged)."""

    def __init__(self, session: int) -> None:
        super().__init__(f"session {session} does not exist")
        self.session = session


class SessionBusy(ClientError):
    """The session has a generation in flight, so its log may not grow from elsewhere."""

    def __init__(self, session: int) -> None:
        super().__init__(f"session {session} is generating; wait for the reply or cancel it")
        self.session = session


class NothingToCancel(ClientError):
    """Cancel was asked for a session that is not generating."""

    def __init__(self, session: int) -> None:
        super().__init__(f"session {session} has no generation in flight")
        self.session = session


class Conflict(ClientError):
    """A guard (expected version, operation id) does not match what is committed."""


class NotSupported(ClientError):
    """The request is known, and this server or model cannot do it; the text says why."""


class NoChatTemplate(ClientError):
    """The model has no usable chat template: it takes raw ``Append`` only."""


class BadConversation(ClientError):
    """The model's template refuses this order or role of messages."""


class EventTooLarge(ClientError):
    """An event's wire form would pass the protocol's frame limit; nothing was written."""


class CommandTooLarge(ClientError):
    """A command's records together pass the log's limit; nothing was written."""


# -- full -------------------------------------------------------------------------------------------


class CapacityError(SuperfluidError):
    """Something with a bound is full. Nothing was changed; a later try may work."""


class LogRefused(CapacityError):
    """The log could not take the write (disk full, failed write) and was cut back: nothing of it remains."""


class ContextFull(CapacityError):
    """The session's tokens fill the model's context."""


class PinBudget(CapacityError):
    """A pin is larger than what all pins together may hold. One that merely finds others in its place does not fail:
    those yield."""

    def __init__(self, tokens: int, budget: int) -> None:
        super().__init__(
            f"a pin of {tokens} tokens is larger than the {budget} that all pins together may hold; pin a fork of an "
            "earlier event, or serve with a larger --pin-budget-pct or --max-context"
        )
        self.tokens = tokens
        self.budget = budget


class TooManyInFlight(CapacityError):
    """A queue with a named bound is full."""


# -- lost -------------------------------------------------------------------------------------------


class LostError(SuperfluidError):
    """A resource went away under the request. What was acknowledged before is safe."""


class WorkerLost(LostError):
    """The worker died, hung or answered garbage; it is respawned, and the session can be continued."""


class LogUnknown(LostError):
    """The outcome of a write is unknown (a failed fsync or cut-back); the log is read-only until a restart."""


class LogReadOnly(LostError):
    """The log takes no writes now; the text says since when and why."""


class ShuttingDown(LostError):
    """The daemon is ending; the request was not carried out."""


# -- cannot start -----------------------------------------------------------------------------------


class StartError(SuperfluidError):
    """The daemon or a worker cannot start as configured; the text names what to change."""


class EngineMissing(StartError):
    """llama-cpp-python is not installed (or cannot be loaded)."""


class ModelError(StartError):
    """The model file is missing, unreadable, damaged or not a GGUF.

    Args:
        kind: as in ``WorkerStartFailed``.
    """

    def __init__(self, reason: str, *, kind: str = "engine") -> None:
        super().__init__(reason)
        self.kind = kind


class WorkerStartFailed(StartError):
    """The worker could not load the model. The first one's failure ends the daemon; a later one's refuses generations
    until a start works, which is tried by itself.

    Args:
        kind: ``missing``, ``not-a-file``, ``empty``, ``truncated``, ``not-gguf``, ``pointer``, ``permission``,
            ``memory``, ``timeout`` or ``engine``.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class AlreadyServed(StartError):
    """Another server holds the sessions directory, the socket or the port."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


# -- corrupt ----------------------------------------------------------------------------------------


class CorruptError(SuperfluidError):
    """Acknowledged bytes are damaged."""


class LogCorrupt(CorruptError):
    """The log is damaged below what was acknowledged; the daemon does not start rather than guess."""


# -- ours -------------------------------------------------------------------------------------------


class InternalError(SuperfluidError):
    """A bug of ours. The text is safe to show; the daemon's log has the details."""
