"""The package stands on the standard library alone, and uses none of it that does I/O."""

import subprocess
import sys

PROBE = """
import sys
before = set(sys.modules)
import superfluid_protocol
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(tops - set(sys.stdlib_module_names) - {"superfluid_protocol"}))
print(*sorted(tops & {"asyncio", "socket", "ssl", "subprocess", "selectors", "http", "logging", "random"}))
"""


def test_nothing_third_party_and_no_io_is_imported():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)

    assert done.stdout == "\n\n"
