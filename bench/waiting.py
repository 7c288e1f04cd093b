"""Waiting for what comes by itself, with a deadline."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_NOT_STARTED: Final = "Python worker failed to connect back"
_STARTS: Final = 5


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
