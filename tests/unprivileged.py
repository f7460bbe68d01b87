"""Tests of what permissions forbid: CI runs as root, whom they stop nowhere.

The interpreter itself may lie where only root can reach it, so changing the user would end such a test before it began.
What makes root pass by permissions is two capabilities; without them it is a user like any other, and owns its files.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

NOBODY: Final = 65534

_DROP: Final = (
    "import ctypes, os, sys\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH\n"
    "    if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP\n"
    "        sys.exit(f'capability {capability} cannot be dropped: {os.strerror(ctypes.get_errno())}')\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


class Unprivileged:
    """Runs programs that permissions do stop."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put in front of a command; nothing when we are no root."""
        return (sys.executable, "-c", _DROP) if os.getuid() == 0 else ()

    def python(self, code: str) -> "subprocess.CompletedProcess[str]":
        """Run some Python."""
        command = [*self.prefix, sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


UNPRIVILEGED: Final = Unprivileged()


def run_as_nobody(action: Callable[[], None]) -> None:
    """Run *action* in a child process of another user; raises what went wrong there as an exit code."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            action()
        except OSError as failure:
            os._exit(failure.errno or 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, os.strerror(os.waitstatus_to_exitcode(status))
