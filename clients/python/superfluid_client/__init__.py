"""The Python client of superfluid, over the daemon's Unix socket.

``Client`` blocks; ``AsyncClient`` is the same for trio, and imports it only when it is used::

    from superfluid_client import Client

    with Client.connect() as client:
        session = client.create_session(system="You answer in one sentence.")
        session.user("What is a session?")
        for piece in session.stream(max_tokens=64):
            print(piece, end="", flush=True)
"""

from typing import TYPE_CHECKING

from superfluid_client.errors import (
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    ContextFull,
    NoSuchSession,
    NothingInFlight,
    NotSupported,
    OutcomeUnknown,
    ProtocolError,
    RequestRefused,
    ServerFailed,
    SessionBusy,
    ShuttingDown,
    SuperfluidError,
    WorkerLost,
)
from superfluid_client.operations import Node
from superfluid_client.params import sampling
from superfluid_client.replies import Reply
from superfluid_client.sync import Client, Session, Stream
from superfluid_protocol import EventMsg, GenParams, Inspection, ModelInfo, SessionSummary
from superfluid_protocol.numbers import Finish, Qos, Role

if TYPE_CHECKING:
    from superfluid_client.aio import AsyncClient, AsyncSession, AsyncStream

_NEEDS_TRIO = ("AsyncClient", "AsyncSession", "AsyncStream")


def __getattr__(name: str) -> object:
    """The trio client is loaded when it is asked for, so that the other one works without trio."""
    if name in _NEEDS_TRIO:
        from superfluid_client import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "ContextFull",
    "EventMsg",
    "Finish",
    "GenParams",
    "Inspection",
    "ModelInfo",
    "NoSuchSession",
    "Node",
    "NotSupported",
    "NothingInFlight",
    "OutcomeUnknown",
    "ProtocolError",
    "Qos",
    "Reply",
    "RequestRefused",
    "Role",
    "ServerFailed",
    "Session",
    "SessionBusy",
    "SessionSummary",
    "ShuttingDown",
    "Stream",
    "SuperfluidError",
    "WorkerLost",
    "sampling",
]
