import pytest

from tests.daemon import daemons
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    """One daemon for all tests here; each talks in sessions of its own."""
    folder = tmp_path_factory.mktemp("api")
    model = write_tiny_gguf(folder / "tiny-endless.gguf", endless=True)
    with daemons() as make:
        yield make(folder / "home", model, context=2048).start().ready()


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client
