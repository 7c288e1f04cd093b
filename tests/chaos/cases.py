"""The matrix: layouts, retentions, servers and write modes, and queries that share or stand by."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

PARTITIONS: Final = 2
TARGET: Final = "B"
_KEYS: Final = 6


@dataclass(frozen=True)
class Case:
    """A cell of the matrix."""

    layout: str
    retention: str
    servers: int
    sharing: str = ""
    """How two queries read the source: `overflow`, `standby`; one query without."""

    @property
    def name(self) -> str:
        words = [self.layout, self.retention, str(self.servers), self.sharing]
        return "-".join(word for word in words if word)

    @property
    def queries(self) -> int:
        return 2 if self.sharing else 1

    @property
    def subjects(self) -> list[str]:
        """What is published on."""
        return [f"in.{p}.k{key}" for p in range(PARTITIONS) for key in range(_KEYS)]

    @property
    def _taken(self) -> list[str]:
        return [f"in.{p}.>" for p in range(PARTITIONS)]

    def stream_of(self, partition: int) -> str:
        """The stream that is read for a partition."""
        return "A" if self.layout == "filtered" else f"A-{partition}"

    def sources(self) -> list[dict[str, Any]]:
        """Configurations of the streams that are read."""
        if self.layout == "filtered":
            return [{"name": "A", "subjects": self._taken, **self._kept()}]
        return [
            {"name": self.stream_of(p), "subjects": [self._taken[p]], **self._kept()}
            for p in range(PARTITIONS)
        ]

    def target(self, window_s: float) -> dict[str, Any]:
        """Configuration of the stream that is written."""
        return {
            "name": TARGET, "subjects": ["out.>"], "discard": "new",
            "duplicate_window": int(window_s * 1e9), **self._kept(),
            "retention": "limits", "num_replicas": self.servers,
        }  # fmt: skip

    def _kept(self) -> dict[str, Any]:
        return {
            "retention": self.retention, "storage": "file", "allow_direct": True,
            "num_replicas": self.servers,
        }  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What a run's seed decides beside the faults."""

    window_s: float
    """The target's duplicate window."""
    order: str
    """`publishOrder` of the write."""
    direct_below: int | None = None
    """`directBelow` of the read; its default if None."""

    @classmethod
    def draw(cls, case: Case, rng: random.Random) -> Settings:
        order = "subject" if rng.random() < 0.25 else "strict"
        window_s = 600.0 if case.sharing == "standby" else rng.choice([20.0, 40.0, 120.0])
        return cls(window_s, order, rng.choice([None, 0]))

    def source(self, case: Case, servers: str, number: int) -> dict[str, str]:
        """Options of the read of query `number`."""
        options = {
            "servers": servers, "partitions": str(PARTITIONS), "consumer": "chaos",
            "maxRecordsPerTrigger": "1000", "requestTimeout": "30s",
        }  # fmt: skip
        if case.layout == "filtered":
            options |= {"stream": "A", "partitionSubject": "in.{partition}.>"}
        else:
            options |= {"stream": "A-{partition}"}
        if self.direct_below is not None and case.retention == "limits":
            options |= {"directBelow": str(self.direct_below)}
        if case.sharing == "overflow":
            options |= {"priorityPolicy": "overflow", "ackWait": "60s"}
            options |= {"minPending": "200"} if number else {}
        if case.sharing == "standby":
            options |= {"standby": "true", "priorityTimeout": "9s"}
        return options

    def sink(self, case: Case, servers: str) -> dict[str, str]:
        """Options of the write."""
        return {
            "servers": servers, "publishOrder": self.order,
            "ackTimeout": "1s", "publishTimeout": "60s", "requestTimeout": "30s",
        }  # fmt: skip


def _matrix() -> dict[str, Case]:
    layouts, counts = ("filtered", "streams"), (1, 3)
    retentions = ("limits", "interest", "workqueue")
    cells: list[Iterable[Any]] = [
        *product(layouts, retentions, counts),
        *product(layouts, ("workqueue",), counts, ("overflow",)),
        *product(layouts, ("limits",), counts, ("standby",)),
    ]
    return {case.name: case for case in (Case(*cell) for cell in cells)}


MATRIX: Final = _matrix()


def find(words: str) -> list[Case]:
    """The cells whose names have all these words, of a comma list."""
    wanted = {word for word in words.split(",") if word}
    return [case for case in MATRIX.values() if wanted <= set(case.name.split("-"))]
