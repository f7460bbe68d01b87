import pytest

from superfluid.worker.engine import Engine
from tests.tiny_gguf import write_tiny_gguf
from tests.worker.builders import load


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Plain attention."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny-llama.gguf")


@pytest.fixture(scope="session")
def tiny_window_model(tmp_path_factory):
    """Sliding-window attention."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny-gemma3.gguf", architecture="gemma3")


@pytest.fixture(scope="session")
def tiny_recurrent_model(tmp_path_factory):
    """Recurrent layers."""
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny-mamba.gguf", architecture="mamba")


@pytest.fixture(params=["tiny_model", "tiny_window_model", "tiny_recurrent_model"])
def any_model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def engine(tiny_model):
    engine = Engine.open(load(tiny_model))
    yield engine
    engine.close()


@pytest.fixture
def any_engine(any_model):
    engine = Engine.open(load(any_model))
    yield engine
    engine.close()
