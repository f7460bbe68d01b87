import pytest

from tests.daemon import daemons


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory, endless_model):
    """The first start compiles every module; those that follow are measured."""
    with daemons() as make:
        make(tmp_path_factory.mktemp("first"), endless_model).start().ready()
