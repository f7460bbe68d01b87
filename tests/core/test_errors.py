"""The tree's shape: a shell decides by the branch, so every error hangs under exactly one."""

import inspect

import pytest

from superfluid.core import errors

BRANCHES = [
    errors.ClientError,
    errors.CapacityError,
    errors.LostError,
    errors.StartError,
    errors.CorruptError,
    errors.InternalError,
]
ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("cls", [cls for cls in ALL if cls is not errors.SuperfluidError])
def test_every_error_is_somebodys(cls):
    assert sum(issubclass(cls, branch) for branch in BRANCHES) == 1
    assert inspect.getdoc(cls)


def test_what_a_shell_may_ask_of_an_error():
    assert errors.ModelError("no such file", kind="missing").kind == "missing"
    assert errors.ModelError("broken").kind == "engine"
    assert errors.WorkerStartFailed("memory", "too little").kind == "memory"
    assert str(errors.WorkerStartFailed("memory", "too little")) == "too little"
    assert errors.AlreadyServed("taken", pid=42).pid == 42
    assert errors.AlreadyServed("taken").pid is None
    for cls in (errors.NoSuchSession, errors.SessionBusy, errors.NothingToCancel):
        assert cls(7).session == 7
