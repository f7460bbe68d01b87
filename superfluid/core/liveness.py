"""Whether a process that owes an answer still shows signs of life.

A fixed time a step would be wrong: beside another busy program a step of the engine can take fifty times longer. So a
hang is judged by what the kernel says of the process: that it is stopped, or that it has used no CPU time for long
although nothing explains it.
"""

from dataclasses import dataclass, replace

from superfluid.core.limits import WORKER_SILENT_SECONDS, WORKER_STOPPED_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a process.

    Args:
        at: seconds on any monotonic clock.
        state: the state letter of ``proc(5)``: R running, S sleeping, D waiting for a disk, T stopped, Z dead, …
        cpu_ticks: user and system time of all its threads together, in clock ticks.
    """

    at: float
    state: str
    cpu_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is remembered between samples. A new one is made whenever the process begins to owe an answer."""

    stopped: int = 0
    cpu_ticks: int = -1
    busy_at: float = 0.0


def judge(watch: Watch, sample: Sample) -> tuple[Watch, str | None]:
    """Take one sample into account.

    Returns:
        the watch to use with the next sample, and the reason why the process counts as hung (None: it lives).
    """
    # A process that has ended (Z, X) is not hung, only silent: its last answer may still lie in the link, and the
    # link's end comes after it.
    stopped = watch.stopped + 1 if sample.state == "T" else 0
    # R may be starved of CPU by its neighbours, and D waits for a disk: neither is a hang by itself.
    advanced = sample.cpu_ticks != watch.cpu_ticks or sample.state in {"R", "D"}
    watch = replace(
        watch,
        stopped=stopped,
        cpu_ticks=sample.cpu_ticks,
        busy_at=sample.at if advanced else watch.busy_at,
    )
    if stopped >= WORKER_STOPPED_SAMPLES:
        return watch, "is stopped (by a signal such as SIGSTOP)"
    if sample.at - watch.busy_at >= WORKER_SILENT_SECONDS:
        return watch, f"used no CPU time for {WORKER_SILENT_SECONDS:.0f} s"
    return watch, None


def parse_stat(text: str, *, at: float) -> Sample:
    """Read ``/proc/<pid>/stat``.

    The second field is the command's name in parentheses and may itself hold spaces and parentheses, so the fields are
    counted from the last closing one.

    Raises:
        ValueError: the text is not of that form.
    """
    _, closing, rest = text.rpartition(")")
    fields = rest.split()
    if not closing or len(fields) < 13:
        raise ValueError("not the text of /proc/<pid>/stat")
    return Sample(at=at, state=fields[0], cpu_ticks=int(fields[11]) + int(fields[12]))
