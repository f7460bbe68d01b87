import pytest

from tests.daemon import daemons


@pytest.fixture(scope="session")
def daemon(tmp_path_factory, endless_model):
    """One daemon for all tests here; each talks in sessions of its own."""
    with daemons() as make:
        yield make(tmp_path_factory.mktemp("api"), endless_model, context=2048).start().ready()


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client
