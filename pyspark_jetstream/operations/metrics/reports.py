"""
Metrics that writers publish on `metricsSubject`, and their sum.

Rule 1: no I/O and no clock; callers pass `now` (UNIX time).
Rule 2: no count is taken twice, and none is ever taken back.

A *producer* is one attempt of a task. Each of its reports has all it has counted so far, so a lost
one is made up for by the next, and only the one with the highest `sequence` counts; the `final` one
is the last. Its `producer_id` is drawn anew for every attempt.

- Producers are summed by **query**: its name, else its id if that is one of Spark's, a UUID. Ids of
  batch writes come only once, so all of them that have no name are one, "".
- Of a producer that has **ended** its counts stay; its gauges go. One that has **said nothing for a
  time** (`silent_s`) keeps its counts, and its gauges come back if it does.
- **Who may publish there can forge reports**, but not make the sum grow without end: of more series
  than are told apart the labels are `UNKNOWN`, and the query, where it is a new one.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, NamedTuple

from ...publish.metrics import METRICS, UNKNOWN, Labels, MetricsReport, MetricsSnapshot
from ...worker import MAX_NAME

_MAX_SERIES: Final = 50_000
"""Series of all queries that are told apart."""

_MAX_HELD: Final = 500_000
"""Series of producers that have not ended; the one silent for longest is taken for ended."""

_MAX_ENDED: Final = 100_000
"""Ended producers that are remembered, so reports that arrive late or twice are not counted."""

_MAX_LABEL: Final = 4096
"""Characters; the longest are filters of subjects."""

_QUERY: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

Series = tuple[str, str, Labels]
"""Query, metric, labels."""


class _LastReport(NamedTuple):
    query: str
    sequence: int
    snapshot: MetricsSnapshot
    seen_at: float


class Reports:
    """
    The sum over all producers that were heard of.

    Args:
        silent_s: after so long without a report a producer's gauges do not count.
    """

    def __init__(self, silent_s: float = 30.0) -> None:
        self._silent_s = silent_s
        self._producers: OrderedDict[int, _LastReport] = OrderedDict()  # the last heard of last
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._of_ended: dict[str, MetricsSnapshot] = {}
        self._held = 0
        self._queries: set[str] = set()
        self.since: dict[Series, float] = {}
        """When each series was first heard of: it was 0 before."""

    def take(self, report: MetricsReport, now: float) -> bool:
        """
        Takes a report; False if it says nothing new: it came twice, or late.

        Raises:
            ValueError: It takes counts back. It is not taken.
        """
        key = report.producer_id
        known = self._producers.get(key)
        if key in self._ended or (known is not None and report.sequence <= known.sequence):
            return False
        query = report.query_name[:MAX_NAME]
        if not query and _QUERY.fullmatch(report.query_id):
            query = report.query_id
        if known is not None:
            query = known.query
        elif len(self.since) >= _MAX_SERIES and query not in self._queries:
            query = UNKNOWN
        self._queries.add(query)
        snapshot = self._bounded(query, report.snapshot, now)
        if known is not None and not snapshot.follows(known.snapshot):
            raise ValueError(f"producer {report.producer_id}: its counts became less")
        self._held += snapshot.size + 1 - (known.snapshot.size + 1 if known is not None else 0)
        self._producers[key] = _LastReport(query, report.sequence, snapshot, now)
        self._producers.move_to_end(key)
        if report.final:
            self._end(key)
        while self._held > _MAX_HELD and len(self._producers) > 1:
            self._end(next(iter(self._producers)))
        return True

    def totals(self, now: float) -> dict[str, MetricsSnapshot]:
        """Counts of all, and gauges of those that live, by query."""
        since = now - self._silent_s
        snapshots = {query: [snapshot] for query, snapshot in self._of_ended.items()}
        for producer in self._producers.values():
            last = producer.snapshot
            if producer.seen_at < since:
                last = last.ended()
            snapshots.setdefault(producer.query, []).append(last)
        return {query: MetricsSnapshot.merged(each) for query, each in snapshots.items()}

    def _bounded(self, query: str, snapshot: MetricsSnapshot, now: float) -> MetricsSnapshot:
        """The snapshot with no more series than are told apart."""

        def kept(name: str, labels: Labels) -> Labels:
            if (query, name, labels) not in self.since and len(self.since) >= _MAX_SERIES:
                labels = (UNKNOWN,) * len(labels)
            self.since.setdefault((query, name, labels), now)
            return labels

        open_ = dict.fromkeys(("subject", "stream", "partition", "query"), _short)
        return MetricsSnapshot.of(
            (name, kept(name, labels), values)
            for name, labels, values in snapshot.bounded(**open_)
            if name in METRICS
        )

    def _end(self, key: int) -> None:
        query, _, last, _ = self._producers.pop(key)
        self._held -= last.size + 1
        before = self._of_ended.get(query, MetricsSnapshot({}))
        self._of_ended[query] = MetricsSnapshot.merged([before, last.ended()])
        self._ended[key] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)


def _short(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else UNKNOWN
