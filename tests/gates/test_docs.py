"""The documents say what the code does: every option, metric, request and error, and nothing that is gone."""

import ast
import importlib
import inspect
import re
import runpy

import click
import pytest

import superfluid_client.errors
import superfluid_protocol
from superfluid.api import service
from superfluid.cli.main import cli
from superfluid.core import errors, limits
from superfluid.observe.metrics import DaemonCollector
from superfluid_protocol import EventBody, Request, Response, address, framing, request, types
from superfluid_protocol.schema import (
    BoolType,
    BytesType,
    FloatType,
    IntType,
    OptionType,
    StructType,
    SumType,
    TextType,
    TupleType,
    UnitSumType,
    VecType,
    fields,
    variants,
)
from tests.gates.repository import ROOT, python_files, tracked, tree_of


def document(name):
    return (ROOT / "docs" / name).read_text()


def section(text, heading):
    """What stands below a heading, up to the next of its level."""
    level = heading.split()[0]
    return re.split(rf"^{level} ", text.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text):
    """The cells of all table rows in a text."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]


# -- command line -----------------------------------------------------------------------------------


def commands(group, path=("superfluid",)):
    """(path, command) of every command, groups left out."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(cli))


def section_of(path):
    """Where a command is described: below its own heading, or below that of its group."""
    text = document("cli.md")
    for words in (path, path[:2]):
        heading = f"## `{' '.join(words)}`"
        if f"{heading}\n" in text:
            return section(text, heading)
    raise AssertionError(f"{' '.join(path)} has no section in docs/cli.md")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_described_with_its_default(path):
    described = {}
    for first, *rest in rows(section_of(path)):
        for name in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", first):
            described[name] = " ".join(rest)

    for option in COMMANDS[path].params:
        if not isinstance(option, click.Option):
            continue
        for name in [*option.opts, *option.secondary_opts]:
            assert name in described, f"{name} of {' '.join(path)}"
        if isinstance(option.default, int | float | str) and not option.is_flag:
            assert str(option.default) in described[option.opts[-1]], option.name


def test_no_option_is_described_that_is_gone():
    known = {"--help", "--version"}
    for command in COMMANDS.values():
        for option in command.params:
            known.update(option.opts, option.secondary_opts)
    first_cells = [row[0] for row in rows(document("cli.md"))]

    assert {name for cell in first_cells for name in re.findall(r"--[a-z][a-z-]*", cell)} <= known


def test_the_commands_are_those_of_the_program():
    assert {path[1] for path in COMMANDS} == {"serve", "chat", "session", "models", "top"}
    for path in COMMANDS:
        assert f"`{' '.join(path)}" in document("cli.md")


def test_every_environment_variable_is_described():
    read = {
        name
        for path in python_files("superfluid", "protocol", "clients/python/superfluid_client")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"\bSUPERFLUID_[A-Z_]+", node.value)
    }

    assert read
    for name in read:
        assert f"| `{name}` |" in document("cli.md")


# -- metrics ----------------------------------------------------------------------------------------


class Anything:
    """Whatever part of the daemon a metric is read from."""

    def __getattr__(self, _name):
        return self

    def __call__(self, *_args):
        return self

    def __getitem__(self, _key):
        return self

    def __len__(self):
        return 0

    def __iter__(self):
        return iter(())

    def __float__(self):
        return 0.0


def test_every_metric_is_described_as_it_is_exposed():
    exposed = {
        # A counter's one sample is what a query names; a histogram has many.
        (metric.samples[0].name if metric.type == "counter" else metric.name, metric.type)
        for metric in DaemonCollector(Anything(), Anything()).collect()
    }
    described = {(row[0].strip("`"), row[1]) for row in rows(document("metrics.md"))[1:]}

    assert described == exposed
    assert len(exposed) > 10


# -- protocol ---------------------------------------------------------------------------------------


def written(node):
    """A wire type as the documents write it."""
    match node:
        case IntType(bits=bits):
            return f"u{bits}"
        case FloatType(bits=bits):
            return f"f{bits}"
        case BoolType():
            return "bool"
        case TextType():
            return "text"
        case BytesType(size=size):
            return "bytes" if size is None else f"[u8; {size}]"
        case OptionType(item):
            return f"{written(item)}?"
        case VecType(item):
            return f"[{written(item)}]"
        case TupleType(items):
            return f"({', '.join(map(written, items))})"
        case StructType(cls) | UnitSumType(cls):
            return cls.__name__
        case SumType(base):
            return base.__name__
        case _:
            raise TypeError(node)


def signature(cls):
    return ", ".join(f"{field.wire_name} {written(field.type)}" for field in fields(cls))


@pytest.mark.parametrize(
    ("heading", "base"), [("## Requests", Request), ("## Responses", Response), ("## Events", EventBody)]
)
def test_every_variant_is_listed_with_its_fields(heading, base):
    table = rows(section(document("protocol.md"), heading))[1:]
    listed = {int(row[0]): (row[1].strip("`"), row[2].strip("`")) for row in table}

    assert listed == {index: (cls.__name__, signature(cls)) for index, cls in variants(base).items()}


def test_the_structures_are_listed_with_their_fields():
    table = rows(section(document("protocol.md"), "## Structures"))[1:]

    for name, listed in table:
        assert listed.strip("`") == signature(getattr(types, name.strip("`")))
    assert {"`GenParams`", "`EventMsg`", "`SessionSummary`", "`Inspection`"} <= {row[0] for row in table}


def test_every_request_says_whether_it_is_supported():
    table = rows(section(document("protocol.md"), "## Requests"))[1:]
    said = {row[1].strip("`"): row[-1] for row in table}
    supported = {*service._HANDLERS, request.Generate}

    assert said == {
        cls.__name__: "yes" if cls in supported else "not yet" for cls in variants(Request).values()
    }


def test_every_reply_that_is_named_exists():
    names = {cls.__name__ for cls in variants(Response).values()}
    for row in rows(section(document("protocol.md"), "## Requests"))[1:]:
        for name in re.findall(r"`(\w+)`", row[4]):
            assert name in names


@pytest.mark.parametrize("kind", ["role", "channel", "finish", "QoS class"])
def test_the_numbers_are_those_of_the_protocol(kind):
    members = superfluid_protocol.numbers.__dict__["Qos" if kind.startswith("QoS") else kind.capitalize()]
    said = dict(rows(section(document("protocol.md"), "## Numbers")))[kind]

    assert [int(n) for n in re.findall(r"\b\d+\b", said)] == [int(member) for member in members]


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [errors, superfluid_client.errors], ids=lambda module: module.__name__)
def test_every_error_has_its_meaning(module):
    defined = {
        name
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Exception) and cls.__module__ == module.__name__
    }
    text = document("errors.md")
    told = {row[0].strip("`") for row in rows(text) if row[0].startswith("`")}
    branches = set(re.findall(r"^## .*\(`(\w+)`\)$", text, re.MULTILINE))
    tree = {"SuperfluidError"}

    assert defined - told - branches - tree == set()


def test_no_error_is_described_that_is_gone():
    known = {name for module in (errors, superfluid_client.errors) for name in dir(module)}
    for row in rows(document("errors.md")):
        for name in re.findall(r"^`([A-Z]\w+)`$", row[0]):
            assert name in known


def test_each_error_is_told_under_its_branch():
    text = document("errors.md")
    for branch in (errors.ClientError, errors.CapacityError, errors.LostError, errors.StartError):
        (heading,) = re.findall(rf"^## .*\(`{branch.__name__}`\)$", text, re.MULTILINE)
        told = {row[0].strip("`") for row in rows(section(text, heading))[1:]}
        assert told == {cls.__name__ for cls in branch.__subclasses__()}


# -- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("docs/protocol.md", f"At most {framing.MAX_FRAME // limits.MIB} MiB a message."),
        ("docs/protocol.md", f"A path of {address.SUN_PATH_BYTES} bytes or more"),
        (
            "docs/protocol.md",
            f"it has {limits.FRAME_READ_SECONDS:g} s, and {limits.FRAME_READ_SECONDS:g} s more for each MiB.",
        ),
        (
            "docs/protocol.md",
            f"{limits.SEND_SECONDS:g} s, and {limits.SEND_SECONDS:g} s more for each MiB taken",
        ),
        ("docs/protocol.md", f"a request of more than {limits.SMALL_REQUEST_BYTES // limits.MIB} MiB"),
        ("docs/protocol.md", f"`max_tokens` is 1 to {limits.MAX_TOKENS_PER_GENERATE:,}"),
        ("docs/protocol.md", f"A title takes {limits.MAX_TITLE_BYTES // limits.KIB} KiB at most."),
        ("docs/errors.md", f"one message of the protocol ({framing.MAX_FRAME // limits.MIB} MiB)"),
        ("protocol/README.md", f"At most {framing.MAX_FRAME // limits.MIB} MiB;"),
    ],
)
def test_a_number_is_the_one_in_the_code(name, sentence):
    assert sentence in " ".join((ROOT / name).read_text().split())


# -- all of them ------------------------------------------------------------------------------------


def test_what_is_read_off_the_code_is_current():
    render = runpy.run_path(str(ROOT / "docs" / "generate.py"))["render"]

    assert document("limits.md") == render(), "run: python docs/generate.py"


def test_every_limit_is_in_the_table():
    names = [name for name, value in vars(limits).items() if name.isupper() and name not in ("KIB", "MIB")]
    told = {row[0].strip("`") for row in rows(document("limits.md"))}

    assert len(names) > 20
    assert set(names) - told == set()


def test_every_module_named_in_the_documents_exists():
    for path in tracked():
        if path.suffix != ".md":
            continue
        for name in re.findall(r"`(superfluid(?:_\w+)?(?:\.\w+)+)`", (ROOT / path).read_text()):
            module, _, attribute = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), attribute), f"{path} names {name}"


def test_every_link_within_the_repository_leads_somewhere():
    broken = [
        f"{path} -> {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / path).read_text())
        if "://" not in target and not (ROOT / path.parent / target).exists()
    ]

    assert broken == []
