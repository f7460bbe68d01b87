import pytest

from tests.daemon import daemons
from tests.tiny_gguf import write_tiny_gguf

CONTEXT = 16_384


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory):
    """A model whose greedy reply only a limit ends."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny-endless.gguf", endless=True)


@pytest.fixture
def make_daemon():
    """Make daemons; they are gone after the test."""
    with daemons() as make:
        yield make


@pytest.fixture(scope="session")
def daemon(tmp_path_factory, endless_model):
    """One daemon for all tests that leave it as they found it; each talks in sessions of its own."""
    with daemons() as make:
        yield make(tmp_path_factory.mktemp("daemon"), endless_model, context=CONTEXT).start().ready()


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client
