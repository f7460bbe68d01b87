import pytest

from tests.daemon import daemons

CONTEXT = 16_384


@pytest.fixture(scope="session")
def daemon(tmp_path_factory, endless_model):
    """One daemon for all tests that leave it as they found it; each talks in sessions of its own."""
    with daemons() as make:
        yield make(tmp_path_factory.mktemp("daemon"), endless_model, context=CONTEXT).start().ready()


@pytest.fixture
def client(daemon):
    with daemon.client() as client:
        yield client
