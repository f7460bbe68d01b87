"""What `superfluid serve` was asked for, as plain data with the defaults in one place."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_LANES: Final = 8
DEFAULT_DRAIN_SECONDS: Final = 5.0

KEPT_SEQUENCES: Final = 8
"""Sequences of the pool beyond the lanes, which keep the KV of finished generations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """One daemon.

    Attributes:
        model: Name of the embedded model, or the path of a GGUF file.
        sessions: Directory of the log.
        max_batch: Generations that decode together.
        max_context: Tokens of one session on the model; 0 takes what the model was trained with, within what memory
            allows.
        threads: Of the worker; 0 takes the machine's cores.
        drain_timeout: Seconds that running generations get to finish when the daemon is asked to end.
    """

    model: str
    sessions: Path
    socket: Path
    max_batch: int = DEFAULT_LANES
    max_context: int = 0
    threads: int = 0
    drain_timeout: float = DEFAULT_DRAIN_SECONDS
