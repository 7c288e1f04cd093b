"""Listing subjects in pages, while subjects come and go."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pyspark_jetstream.client.jetstream import SubjectPage
from pyspark_jetstream.read import subjectindex
from pyspark_jetstream.read.subjectindex import Lookups

from ...kits.seeds import fresh

SEEDS = [1, 2, 3, *fresh(__name__)]


@dataclass
class Listed:
    """What of JetStream's API a listing uses, over subjects that change with every question."""

    there: set[str]
    page: int
    rng: random.Random
    stayed: set[str] = field(default_factory=set)
    last_seq: int = 7

    def __post_init__(self) -> None:
        self.stayed = set(self.there)
        self.client = self
        self.options = self
        self.request_timeout_s = 1.0
        self.stream = "S"

    def subject_pages(self, stream: str, wanted: list[tuple[str, int]]) -> list[SubjectPage]:
        """Pages as the server makes them: cut by number from what is sorted at that moment."""
        pages = []
        for _, offset in wanted:
            cut = sorted(self.there)[offset : offset + self.page]
            pages.append(SubjectPage(self.last_seq, offset, len(self.there), dict.fromkeys(cut, 1)))
            for _ in range(self.rng.randrange(8)):
                if self.rng.random() < 0.7 and self.there:
                    gone = self.rng.choice(sorted(self.there))
                    self.there.discard(gone)
                    self.stayed.discard(gone)
                else:
                    self.there.add(f"S.{self.rng.randrange(10**6):06d}")
            self.last_seq += 1
        return pages


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_hide_no_subject(monkeypatch, seed):
    """
    Every subject that is there all the time is listed, however many come and go between pages; the
    sequence is that of the first page.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(subjectindex, "_IN_COMMON", 3)
    for _ in range(200):
        names = {f"S.{rng.randrange(10**6):06d}" for _ in range(rng.randrange(120))}
        listed = Listed(names, rng.choice([10, 17, 200]), rng)
        pin, counts = Lookups(listed, listed).listing([">"])

        assert listed.stayed <= set(counts)
        assert pin == 7
