import pytest

from tests.daemon import daemons
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory):
    """A model whose greedy reply only a limit ends."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny-endless.gguf", endless=True)


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory, endless_model):
    """The first start compiles every module; those that follow are measured."""
    with daemons() as make:
        make(tmp_path_factory.mktemp("first"), endless_model).start().ready()


@pytest.fixture
def make_daemon():
    """Make daemons; they are gone after the test."""
    with daemons() as make:
        yield make
