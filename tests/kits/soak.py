"""Which tests `make test` leaves to `make soak`: those that `tests/soak.txt` lists."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

from .places import ROOT

_SOAK = ROOT / "tests" / "soak.txt"

_COLLECTED: Final = pytest.StashKey[list[str]]()


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


def note(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the ids of a run that has collected all tests."""
    if [Path(config.rootpath, each) for each in config.args] == [ROOT / "tests"]:
        config.stash[_COLLECTED] = [item.nodeid for item in items]


def collected(config: pytest.Config) -> list[str]:
    """The ids of all tests: this run's, where it has collected them."""
    if _COLLECTED in config.stash:
        return config.stash[_COLLECTED]
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--soak"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return [line for line in done.stdout.splitlines() if "::" in line]
