"""An alarm, not a law: what has grown past these sizes usually does two jobs.

A module or function that has to be longer is listed with its reason. Test files may be longer than modules: their
cases are read one at a time.
"""

import pytest

from tests.gates.repository import ROOT, functions, python_files, tree_of

MODULE_LINES = 500
TEST_MODULE_LINES = 700
FUNCTION_LINES = 60

LONGER: dict[str, str] = {}
"""``path`` or ``path::function``, and why it is not cut."""


def sizes():
    """(name, lines, allowed) of every module and function."""
    for path in python_files():
        allowed = TEST_MODULE_LINES if path.parts[0] == "tests" else MODULE_LINES
        yield str(path), len((ROOT / path).read_text().splitlines()), allowed
        for function in functions(tree_of(path)):
            yield (
                f"{path}::{function.name}",
                function.end_lineno - function.lineno + 1,
                FUNCTION_LINES,
            )


@pytest.mark.slow
def test_nothing_has_grown_too_large_to_read():
    found = {name: lines for name, lines, allowed in sizes() if lines > allowed}

    assert {name: lines for name, lines in found.items() if name not in LONGER} == {}
    assert LONGER.keys() <= found.keys(), "an exception that is not needed any more"
