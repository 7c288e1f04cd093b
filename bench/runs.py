"""One run of something, what takes turns with it, and waiting for a quiet machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

T = TypeVar("T")

BUSY: Final = 3.0
"""A run that begins at a higher load does not count."""

_QUIET_TIMEOUT_S: Final = 30.0
_NOT_STARTED: Final = "Python worker failed to connect back"
_STARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Run:
    """What moved, in which time, and what that took."""

    rows: int
    seconds: float
    """Of a streaming query Spark's triggerExecution over all batches; else from start to end."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """By role."""
    note: str = ""
    latencies_s: Sequence[float] = ()
    """Of each message, where they were timed."""
    load: float = 0.0
    """Processes that wanted a core in the minute before."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def counts(self) -> bool:
        """Whether the machine was quiet enough."""
        return self.load <= BUSY


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: this package's run, and what takes turns with it."""

    name: str
    ours: Callable[[], Run]
    references: Mapping[str, Callable[[], Run]] = field(default_factory=dict)
    warm_up: bool = False
    """Whether runs without a clock come first."""


def until(found: Callable[[], T], timeout_s: float, what: str, poll_s: float = 0.02) -> T:
    """
    What is found, as soon as something is.

    Raises:
        TimeoutError: Nothing is in time; it says `what` was waited for.
    """
    deadline = time.monotonic() + timeout_s
    while not (it := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f}s")
        time.sleep(poll_s)
    return it


def quiet(waits: bool) -> float:
    """The load of the machine; it is waited for half a minute until a run would count."""
    deadline = time.monotonic() + (_QUIET_TIMEOUT_S if waits else 0.0)
    while (load := os.getloadavg()[0]) > BUSY and time.monotonic() < deadline:
        time.sleep(1.0)
    return load


def started(run: Callable[[], T]) -> T:
    """
    What a run finds. It is made again, four times at most, where Spark did not wait for one of its
    Python processes: on a busy machine they may take longer than its ten seconds.
    """
    for _ in range(_STARTS - 1):
        try:
            return run()
        except Exception as error:
            if _NOT_STARTED not in str(error):
                raise
            print(f"made again: {_NOT_STARTED}", file=sys.stderr)
    return run()
