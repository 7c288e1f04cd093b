"""Waiting for what comes by itself, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
