"""Cases: bytes and how they come; as files that anybody can run again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark_jetstream.errors import JetStreamError


class Fault(AssertionError):
    """The package and the reference differ, or something must not be."""


def same(what: str, ours: Any, theirs: Any) -> None:
    """
    Raises:
        Fault: The package has something else than the reference.
    """
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

    def write(self, path: Path, why: str) -> None:
        """As a file of text."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = {
            "why": why, "kind": self.kind, "cut": self.cut, "flags": self.flags,
            "stream": [
                line.decode("latin-1") for line in self.stream.splitlines(keepends=True)
            ],
        }  # fmt: skip
        path.write_text(json.dumps(text, indent=1, ensure_ascii=True) + "\n")

    @staticmethod
    def load(path: Path) -> Case:
        """From a file."""
        text = json.loads(path.read_text())
        stream = "".join(text["stream"]).encode("latin-1")
        return Case(text["kind"], stream, text["cut"], text["flags"])


class Sound(NamedTuple):
    """A case whose answer is known before."""

    case: Case
    frames: int
    check: Callable[[], object]


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


def shrunk(case: Case, fails: Callable[[Case], bool], rounds: int = 500) -> Case:
    """A smaller case that fails as well: pieces are left out, larger ones first."""
    if case.cut and fails(replace(case, cut=0)):
        case = replace(case, cut=0)
    size = len(case.stream) // 2
    while size and rounds > 0:
        at = 0
        while at < len(case.stream) and rounds > 0:
            rounds -= 1
            less = replace(case, stream=case.stream[:at] + case.stream[at + size :])
            if fails(less):
                case = less
            else:
                at += size
        size //= 2
    return case


TYPED: Final = JetStreamError
"""What the package may raise."""
