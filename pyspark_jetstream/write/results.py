"""Results of a write's tasks: what each tells the commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from ..publish.metrics import MetricsSnapshot
from .exactlyonce.changes import FoundStream


class Written(NamedTuple):
    """The outcome of a task's rows."""

    rows: int
    acked: int
    duplicates: int
    """Of the acked: those a stream had already, by their `Nats-Msg-Id`."""
    retries: int
    """Publishes sent again."""
    lost: int
    """Rows that the mapping loses, as its weights say."""
    stored: int
    """Rows that an earlier attempt had stored; they were not published again."""
    dead_letters: int = 0
    """Rows that were shed or rejected and are stored elsewhere (`deadLetterSubject`)."""
    dropped: int = 0
    """Rows that were shed and are gone (`overloadPolicy=drop`)."""
    parked: int = 0
    """Rows of paused subjects that wait in the parking stream (`throttleParkStream`)."""

    @property
    def adds_up(self) -> bool:
        """Whether the place of every row is known."""
        elsewhere = self.dead_letters + self.dropped + self.parked
        return self.rows == self.acked + self.lost + self.stored + elsewhere


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """The result of one task's write."""

    partition: int
    write_id: str
    """The query's id, or that of a `df.write`."""
    written: Written | None
    """None when the ledger says that the batch was written before."""
    metrics: MetricsSnapshot = MetricsSnapshot({})
    """The counts of the task."""
    streams: tuple[FoundStream, ...] = ()
    """Its target streams as it found them, as far as it looked them up."""
    run: str = ""
    """Of a streaming query: from its start to its end."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Names of headers that did not go out, and of how many of its rows."""
    sequenced: int = 0
    """Rows that have a sequence of their own in these streams, as far as known."""
