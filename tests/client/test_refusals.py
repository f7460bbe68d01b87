"""Every text that the daemon can refuse with is given the class whose promise is true of it.

The texts are read off the daemon's source, so that a new one is looked at without being listed here.
"""

import ast
import re
from collections.abc import Iterator

import pytest

import superfluid_client.errors as told
from superfluid.core import errors
from superfluid_client.errors import refusal
from tests.gates.repository import ROOT, python_files, tree_of

KIND_OF = {
    errors.BadRequest: told.RequestRefused,
    errors.NoSuchSession: told.NoSuchSession,
    errors.SessionBusy: told.SessionBusy,
    errors.NothingToCancel: told.NothingInFlight,
    errors.Conflict: told.Conflict,
    errors.NotSupported: told.NotSupported,
    errors.NoChatTemplate: told.NotSupported,
    errors.BadConversation: told.RequestRefused,
    errors.EventTooLarge: told.RequestRefused,
    errors.CommandTooLarge: told.RequestRefused,
    errors.LogRefused: told.RequestRefused,
    errors.ContextFull: told.ContextFull,
    errors.TooManyInFlight: told.RequestRefused,
    errors.PinBudget: told.RequestRefused,
    errors.WorkerLost: told.ServerFailed,
    errors.LogUnknown: told.OutcomeUnknown,
    errors.LogReadOnly: told.RequestRefused,
    errors.ShuttingDown: told.ShuttingDown,
    errors.EngineMissing: told.ServerFailed,
    errors.ModelError: told.ServerFailed,
    errors.WorkerStartFailed: told.ServerFailed,
    errors.InternalError: told.ServerFailed,
}

NEVER_SENT = {errors.AlreadyServed, errors.LogCorrupt}
"""These end a start, and answer no request."""

REQUEST_PATH = (
    "superfluid/core",
    "superfluid/chat",
    "superfluid/store",
    "superfluid/sched",
    "superfluid/api",
)
"""What is raised elsewhere reaches a client in the words of one of these."""


def branches(cls: type[Exception]) -> Iterator[type[Exception]]:
    """The errors without subclasses."""
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    if not below:
        yield cls
    for sub in below:
        yield from branches(sub)


def sample(node: ast.expr) -> str | None:
    """The text an expression makes, with 7 for whatever is filled in; None where nothing of it is written there."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(sample(part) or "7" for part in parts)
        case ast.BoolOp(values=[*_, last]):
            return sample(last)
    return None


def raised() -> Iterator[tuple[str, type[Exception], str]]:
    """Each place that makes an error with a text of its own: where, which, and the text."""
    for path in [*python_files(*REQUEST_PATH), *python_files("superfluid/wal/append.py")]:
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[argument, *_]):
                    cls = getattr(errors, name, None)
                    if cls is errors.WorkerStartFailed:
                        continue  # its text is another process's; the table below has what those begin with
                    if cls in KIND_OF and (text := sample(argument)) is not None:
                        yield f"{path}:{node.lineno}", cls, text


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        pytest.param(cls, text, id=where)
        for where, cls, text in raised()
        # The one in template.py is the reason that another text quotes.
        if not (cls is errors.NoChatTemplate and text.startswith("it does not compile"))
    ],
)
def test_a_text_of_the_daemon_has_the_kind_of_its_error(cls: type[Exception], text: str):
    assert type(refusal(text)) is KIND_OF[cls]


def test_every_kind_of_error_is_looked_at():
    assert set(branches(errors.SuperfluidError)) == KIND_OF.keys() | NEVER_SENT


@pytest.mark.parametrize(
    "text",
    [str(error(7)) for error in (errors.NoSuchSession, errors.SessionBusy, errors.NothingToCancel)],
)
def test_the_errors_that_make_their_own_text_are_told_apart(text: str):
    assert type(refusal(text)) is not told.RequestRefused


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "the worker was lost (the worker was killed by signal 9); what it made is recorded",
            told.WorkerLost,
        ),
        ("the worker cannot start: model file /m.gguf does not exist", told.ServerFailed),
        ("model file /m.gguf does not exist", told.ServerFailed),
        ("model file /the daemon is ending; no/m.gguf is empty (0 bytes)", told.ServerFailed),
        ("the engine failed on this job: session 3 does not exist", told.ServerFailed),
        ("the engine's logits are not finite", told.ServerFailed),
        ("internal error; the daemon's log has the details", told.ServerFailed),
        ("the model's chat template refuses: session 3 is generating; or not", told.RequestRefused),
        ("the request does not decode: session 3 does not exist", told.RequestRefused),
    ],
)
def test_a_text_that_quotes_another_keeps_its_own_kind(text: str, kind: type[Exception]):
    assert type(refusal(text)) is kind


def test_a_reply_under_way_is_never_said_to_have_changed_nothing():
    assert type(refusal("the log could not be written (x); …", under_way=True)) is told.ServerFailed
    assert type(refusal("the daemon is ending; …", under_way=True)) is told.ShuttingDown
    assert type(refusal("the worker was lost (x)", under_way=True)) is told.WorkerLost


def test_the_phrases_that_are_documented_are_the_ones_that_count():
    text = (ROOT / "docs" / "errors.md").read_text()
    table = text.split("| kind | text |\n|---|---|\n")[1].split("\n\n")[0]
    documented = [
        (getattr(told, row.split("`")[1]), phrase.replace("N", "7").replace("…", "x"))
        for row in table.splitlines()
        for phrase in re.findall(r"`([^`]+)`", row)[1:]
    ]

    assert len(documented) > 20
    for kind, phrase in documented:
        assert type(refusal(phrase)) is kind, phrase
