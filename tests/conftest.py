"""What tests of several folders share: a model, daemons, and how Hypothesis runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose greedy reply only a limit ends."""
    from tests.tiny_gguf import write_tiny_gguf  # most tests need no model, nor what writes one

    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny-endless.gguf", endless=True)


@pytest.fixture
def make_daemon() -> Iterator[Any]:
    """Make daemons; they are gone after the test."""
    from tests.daemon import daemons

    with daemons() as make:
        yield make
