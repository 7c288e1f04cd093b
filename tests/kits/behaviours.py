"""
What all tests together show: of each test its name, and how many cases it has.

`tests/behaviours.txt` has the list, so that a test or a case that goes is seen to go; written by
`python -m tests.kits.behaviours`. What of it `make test` leaves to `make soak` is in
`tests/soak.txt`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import lru_cache

from .places import ROOT

__all__ = ["LIST", "collected", "is_soak", "listed", "soak_patterns"]

LIST = ROOT / "tests" / "behaviours.txt"
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


def listed(ids: list[str]) -> str:
    """The list for these tests."""
    counts = Counter(id.partition("[")[0] for id in ids)
    names = Counter[str]()
    for id, count in counts.items():
        path, _, name = id.rpartition("::")
        names[f"{path.rpartition('/')[2].removesuffix('.py')}::{name}"] += count
    return "".join(f"{name} {count}\n" for name, count in sorted(names.items()))


if __name__ == "__main__":
    LIST.write_text(listed(collected()))
