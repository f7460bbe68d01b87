"""The import law, so that plain pytest shows a breach as well as the linter does."""

import subprocess
import sys
import tomllib

import pytest

from tests.gates.repository import ROOT, imported, python_files, tree_of

LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.mark.slow
def test_the_contracts_hold():
    done = subprocess.run([sys.executable, "-c", LINT], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


def test_every_package_has_its_layer():
    (law,) = [contract for contract in CONTRACTS if contract["type"] == "layers"]
    named = {name.strip() for layer in law["layers"] for name in layer.split("|")}
    packages = {path.parent.name for path in python_files("superfluid") if path.parts[2:] == ("__init__.py",)}

    assert named == {f"superfluid.{name}" for name in packages} | {"superfluid_protocol"}


def test_only_the_workers_wrappers_import_the_bindings():
    importers = {
        path
        for path in python_files("superfluid", "protocol", "clients")
        if any(name.partition(".")[0] == "llama_cpp" for name in imported(tree_of(path)))
    }

    assert importers, "somebody imports them"
    assert all(path.is_relative_to("superfluid/worker/llama") for path in importers)


def test_the_protocol_and_the_client_know_nothing_of_the_daemon():
    for path in python_files("protocol", "clients/python/superfluid_client"):
        tops = {name.partition(".")[0] for name in imported(tree_of(path))}
        assert "superfluid" not in tops, path
