"""Chance of random tests: `JETSTREAM_TEST_SEED=N make test` repeats the run that printed N."""

from __future__ import annotations

import os
import random
from typing import Final

from hypothesis import HealthCheck, settings

RUN: Final = "JETSTREAM_TEST_SEED"

os.environ.setdefault(RUN, str(random.SystemRandom().randrange(2**32)))


def fresh(module: str, count: int = 1) -> list[int]:
    """So many seeds of this run, for the tests of one module."""
    chance = random.Random(f"{os.environ[RUN]} {module}")
    return [chance.randrange(2**32) for _ in range(count)]


TIMES: Final = int(os.environ.get("FUZZ_TIMES", "1"))
"""How many times as many examples of hypothesis there are."""

settings.register_profile(
    "tests",
    max_examples=100 * TIMES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("tests")


def examples(count: int) -> settings:
    """So many examples of a test, and not 100."""
    return settings(max_examples=count * TIMES)
