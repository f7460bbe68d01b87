import pytest

from superfluid.core.schedule import Options
from superfluid.sched import engine as engine_module
from superfluid.sched.engine import Engine
from superfluid.worker.messages import Load
from tests.sched.simulated_worker import N_CTX, SimulatedWorkers


@pytest.fixture
def workers(monkeypatch):
    workers = SimulatedWorkers()
    monkeypatch.setattr(engine_module, "WorkerLink", workers)
    return workers


@pytest.fixture
def engine(workers):
    return Engine(Load(model_path="/model", n_ctx=N_CTX, n_seq=4), Options(lanes=2, kept=2))
