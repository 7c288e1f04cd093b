"""Which tests `make test` leaves to `make soak`: those that `tests/soak.txt` lists."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache

from .places import ROOT

__all__ = ["collected", "is_soak", "soak_patterns"]

_SOAK = ROOT / "tests" / "soak.txt"


@lru_cache
def soak_patterns() -> tuple[re.Pattern[str], ...]:
    """Of the ids of tests that only `make soak` runs."""
    lines = _SOAK.read_text().splitlines()
    return tuple(re.compile(line) for line in lines if line and not line.startswith("#"))


def is_soak(id: str) -> bool:
    """Whether `make test` leaves this test out."""
    return any(pattern.match(id.removeprefix("tests/")) for pattern in soak_patterns())


def collected() -> list[str]:
    """The ids of all tests, as pytest finds them."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--soak", "-p", "no:xdist"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return [line for line in done.stdout.splitlines() if "::" in line]
