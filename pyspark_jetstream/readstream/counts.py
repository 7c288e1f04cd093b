"""
Counts of a streaming read: rows, lag, batches, pins and claims.

The driver counts for the whole query, each task its own rows; an exporter sums that up. All of it
has the name of the query, its stream and partition, never a subject.

Rule 1: no I/O and no clock; callers pass seconds that they have measured.
Rule 2: what only grows never gets less, and is there from the first report on, as 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sized
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..fetch.layout import Layout, SubjectPartition
from ..publish import metrics
from ..publish.metrics import READ_METRICS, UNKNOWN, Bounded, Counting, Labels, Metric, Report

_UNPINS: Final = ("attempt", "admin", "timeout", "leader")
_REASONS: Final = {
    metrics.READ_UNPINS: _UNPINS,
    metrics.READ_CLAIMS_LEFT: ("open", "committed"),
}
_OF_ANY: Final = (metrics.READ_ROWS, metrics.READ_BYTES, metrics.READ_LEFT_OUT)
"""Counters of partitions that are read without consumers."""

T = TypeVar("T")

MAX_STREAMS: Final = 1_000
"""
Of several streams so many are told apart by one run of a query; later ones are one, `UNKNOWN`. So a
report has no more series than five for each of these.
"""


class _Counts(Counting):
    """What one producer counts, and its reports."""

    def __init__(self, query: str, run: str) -> None:
        super().__init__()
        self._query = query
        self._run = run
        self._sequence = 0

    def report(self, final: bool = False) -> bytes:
        """All of it, as of now; `final` for the last time."""
        self._sequence += 1
        counts = self.snapshot()
        return Report(0, self._run, self._query, 0, self._sequence, final, counts).encode()


class RowCounts(_Counts):
    """
    What one task counts of the rows that it hands to Spark.

    Args:
        query: their label.
        run: unlike that of any other task.
    """

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts rows that are handed over, and those that are left out for their subjects."""
        if not batch.num_rows:
            return
        stream = batch.column("stream")[0].as_py()
        subjects = batch.column("subject")
        if subjects.null_count:
            gone = batch.column("partition").filter(pc.is_null(subjects))
            for each in gone.value_counts().to_pylist():
                labels = (self._query, stream, str(each["values"]))
                self._series(metrics.READ_LEFT_OUT, labels)[0] += each["counts"]
            batch = batch.filter(pc.is_valid(subjects))
        sizes = pc.binary_length(batch.column("data"))
        table = pa.table({"partition": batch.column("partition"), "size": sizes})
        groups = table.group_by("partition", use_threads=False)
        for row in groups.aggregate([([], "count_all"), ("size", "sum")]).to_pylist():
            labels = (self._query, stream, str(row["partition"]))
            self._series(metrics.READ_ROWS, labels)[0] += row["count_all"]
            self._series(metrics.READ_BYTES, labels)[0] += row["size_sum"] or 0

    def add_task(self, seconds: float) -> None:
        """The task is over."""
        self._observe(metrics.READ_TASK_TIME, (self._query,), seconds)


class ReadCounts(_Counts):
    """
    What the driver counts in one run of a query.

    Args:
        query: the label of all of it.
        run: unlike that of any other run.
    """

    def __init__(self, query: str, run: str, layout: Layout) -> None:
        super().__init__(query, run)
        self._stream = Bounded(MAX_STREAMS)
        self._layout: Layout | None = None
        self._partitions: dict[str, Labels] = {}
        """By name (`Layout.names`)."""
        self._doubted: dict[tuple[str, Labels], int] = {}
        self.set_layout(layout)

    def set_layout(self, layout: Layout) -> None:
        """
        Goes on with these partitions: of several streams some come, and some go, and with them what
        stands for the moment.
        """
        if layout == self._layout:
            return
        self._layout = layout
        before = set(self._partitions.values())
        of = [self._labels(p, layout.is_several) for p in layout]
        self._partitions = dict(zip(layout.names, of, strict=True))
        gone = before.difference(self._partitions.values())
        for metric in READ_METRICS.values():
            if metric.kind == "gauge":
                for labels in gone:
                    self._values[metric.name].pop(labels, None)
            elif metric.labels == ("query",) or not layout.is_several or metric in _OF_ANY:
                for labels in self._all_labels(metric):
                    self._series(metric, labels)

    def _labels(self, partition: SubjectPartition, is_several: bool) -> Labels:
        if not is_several:
            return self._query, partition.stream, str(partition.index)
        stream = self._stream(partition.stream)
        return self._query, stream, "0" if stream != UNKNOWN else UNKNOWN

    def __repr__(self) -> str:
        return f"<ReadCounts of {self._query}, {len(self._partitions)} partitions>"

    def set_active(self, reads: bool) -> None:
        """Whether the query reads. One that waits has no lag and no batch under way."""
        self._set(metrics.READ_ACTIVE, (self._query,), int(reads))
        if not reads:
            self._values[metrics.READ_LAG.name].clear()
            self._values[metrics.READ_BATCH.name].clear()

    def set_lag(self, messages: Mapping[str, int]) -> None:
        """By partition, the messages behind the last batch that was planned."""
        self._stand(metrics.READ_LAG, messages)

    def set_under_way(self, messages: Mapping[str, int]) -> None:
        """By partition, the messages of the batch under way; 0 for partitions that are left out."""
        self._stand(metrics.READ_BATCH, dict.fromkeys(self._partitions, 0) | dict(messages))

    def add_batch(self, seconds: float) -> None:
        """A batch that had rows is committed."""
        self._observe(metrics.READ_BATCH_TIME, (self._query,), seconds)

    def set_pins(self, partition: str, report: Mapping[str, Any]) -> None:
        """The pins of one partition, as in `Pins.report`."""
        labels = self._partitions[partition]
        self._set(metrics.READ_PINNED, labels, int(report["pinned"] is not None))
        self._reach(metrics.READ_PINS, labels, report["pins"])
        self._reach(metrics.READ_STRANGERS, labels, report["strangers"])
        for reason in _UNPINS:
            self._reach(metrics.READ_UNPINS, (*labels, reason), report["unpins"][reason])

    def set_paused(self, partition: str, is_paused: bool) -> None:
        """Whether the consumer of a partition is paused."""
        for labels, _ in self._there({partition: is_paused}):
            self._set(metrics.READ_PAUSED, labels, int(is_paused))

    def add_claims(self, deliveries: Mapping[str, Collection[int]]) -> None:
        """By partition, adds claims, of each how often its message was delivered."""
        for labels, counts in self._there(deliveries):
            self._series(metrics.READ_CLAIMS, labels)[0] += len(counts)
            self._series(metrics.READ_REDELIVERED, labels)[0] += sum(count > 1 for count in counts)

    def add_left(self, reason: str, left: Mapping[str, Sized]) -> None:
        """Adds claims that are left: of others' batches that are `open`, or of `committed` ones."""
        for labels, claims in self._there(left):
            self._series(metrics.READ_CLAIMS_LEFT, (*labels, reason))[0] += len(claims)

    def add_lost(self, messages: Mapping[str, int]) -> None:
        """By partition, messages of a batch that was given up while the query was away."""
        for labels, count in self._there(messages):
            self._series(metrics.READ_CLAIMS_LOST, labels)[0] += count

    def set_dead_letters(self, stored: Mapping[str, int]) -> None:
        """Notes the dead letters stored so far, by partition."""
        for labels, count in self._there(stored):
            self._set(metrics.READ_DEAD_LETTERS, labels, count)

    def set_ack_pending(self, messages: Mapping[str, int]) -> None:
        """By partition, claims of all who share the consumer."""
        self._stand(metrics.READ_ACK_PENDING, messages)

    def set_awaiting(self, messages: Mapping[str, int]) -> None:
        """By partition, messages that wait for redelivery."""
        self._stand(metrics.READ_AWAITING, messages)

    # ── how ──────────────────────────────────────────────────────────────────────────────────

    def _there(self, values: Mapping[str, T]) -> Iterator[tuple[Labels, T]]:
        """The labels of partitions, and their values; not of streams that are gone by now."""
        return ((self._partitions[p], v) for p, v in values.items() if p in self._partitions)

    def _all_labels(self, metric: Metric) -> Iterator[Labels]:
        if metric.labels == ("query",):
            yield (self._query,)
        elif metric in _REASONS:
            reasons = _REASONS[metric]
            yield from ((*labels, why) for labels in self._partitions.values() for why in reasons)
        else:
            yield from self._partitions.values()

    def _stand(self, metric: Metric, values: Mapping[str, int]) -> None:
        sums: dict[Labels, int] = {}
        for labels, value in self._there(values):
            sums[labels] = sums.get(labels, 0) + max(0, value)
        for labels, value in sums.items():
            self._set(metric, labels, value)

    def _reach(self, metric: Metric, labels: Labels, value: int) -> None:
        """
        Raises a counter to a value that may still fall, as when an attempt announces late what an
        advisory had shown as a stranger's: it counts what both this look and the last one had.
        """
        key = metric.name, labels
        series = self._series(metric, labels)
        series[0] = max(series[0], min(value, self._doubted.get(key, 0)))
        self._doubted[key] = value
