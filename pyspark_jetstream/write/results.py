"""Results of a write's tasks: what each tells the commit."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ..publish.metrics import MetricsSnapshot
from ..publish.outcome import Written
from .exactlyonce.targetstate import FoundStream


@dataclass(frozen=True)
class Published(WriterCommitMessage):
    """The result of one task's write."""

    write_id: str
    """The query's id, or that of a `df.write`."""
    written: Written | None
    """None when the ledger says that the batch was written before."""
    metrics: MetricsSnapshot = MetricsSnapshot({})
    """The counts of the task."""
    streams: tuple[FoundStream, ...] = ()
    """Its target streams as it found them, as far as it looked them up."""
