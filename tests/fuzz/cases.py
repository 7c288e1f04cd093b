"""Cases: bytes, and how they come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_jetstream.errors import JetStreamError


class Fault(AssertionError):
    """The package and the reference differ, or something must not be."""


def same(what: str, ours: Any, theirs: Any) -> None:
    """A `Fault` where the package has something else than the reference."""
    if ours != theirs:
        raise Fault(f"{what}: the package has {ours!r:.400}, the reference {theirs!r:.400}")


@dataclass(frozen=True)
class Case:
    """The bytes of one connection."""

    kind: str
    stream: bytes
    cut: int = 0
    """The seed of where it is cut into what comes at one time; 0 for not at all."""
    flags: dict[str, Any] = field(default_factory=dict)
    """What else the kind wants to know."""

    def chunks(self) -> Iterator[bytes]:
        """What comes at one time."""
        return chunks(self.stream, self.cut)


_STEPS: Final = ((1, 7, 50, 500), (50, 500, 5000), (1 << 18,), (1 << 21,))


def chunks(stream: bytes, cut: int) -> Iterator[bytes]:
    """The stream in pieces of sizes that this seed decides."""
    if not cut:
        yield stream
        return
    rng = random.Random(cut)
    steps = _STEPS[rng.randrange(4) if len(stream) < 50_000 else rng.choice((2, 3, 3, 3))]
    at = 0
    while at < len(stream):
        step = rng.randrange(1, rng.choice(steps) + 1)
        yield stream[at : at + step]
        at += step


TYPED: Final = JetStreamError
"""What the package may raise."""
