"""What the tests of streaming reads share: types of fixtures, and numbered messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spark.conftest import Run

RunQuery = Callable[..., Run]
NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]


def numbered(name: str, n: int, partitions: int = 1, start: int = 0) -> list[tuple[str, bytes]]:
    """`n` messages dealt out over `<name>.<partition>.x`."""
    return [(f"{name}.{i % partitions}.x", b"m%d" % i) for i in range(start, start + n)]
