"""Which tests `make test` leaves to `make soak`: those that `tests/soak.txt` lists."""

from __future__ import annotations

import re
from functools import lru_cache

from .places import ROOT

_SOAK = ROOT / "tests" / "soak.txt"


@lru_cache
def soak_patterns() -> tuple[str, ...]:
    """Of the ids of tests that only `make soak` runs."""
    lines = _SOAK.read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@lru_cache
def _any_pattern() -> re.Pattern[str]:
    """All of them as one, as each process asks it for every test."""
    return re.compile("|".join(f"(?:{each})" for each in soak_patterns()))


def is_soak(id: str) -> bool:
    """Whether `make test` leaves this test out."""
    return _any_pattern().match(id.removeprefix("tests/")) is not None
