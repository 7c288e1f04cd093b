"""
Metrics that writers and readers publish on `metricsSubject`, and their sum.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
Rule 2: no count is taken twice, and none is ever taken back.
Rule 3: counts begin at 0, in what is shown, too (`Beginnings`).

    {"type":"metrics","producer_id":7,"run":"5f0c…","query_id":"…","batch_id":12,
     "sequence":3,"final":false,
     "metrics":{"jetstream_publish_outcomes_total":[[["success",""],[900]]],…}}

A *producer* is one attempt of a task, or the driver of a streaming read. Each of its reports has
all it has counted so far, so a lost one is made up for by the next, and only the one with the
highest `sequence` counts; the `final` one is the last. `run` is drawn anew for every attempt: a
`producer_id` may come again when a query is started again from its checkpoint. Unknown fields and
metrics are ignored.

- Writers are summed by **query**: its name (`query_name`, left out where there is none), else
  `query_id` if it is one of Spark's, a UUID. Ids of batch writes come only once, so all of them
  that have no name are one, "". Metrics of reads have a label for it: the option `queryName`, else
  a consumer's name, as Spark does not tell a source its query's.
- Of a producer that has **ended** its counts stay; its gauges go.
- One that has **said nothing for a time** (`silent_s`) is taken for killed, or waits for Spark:
  its counts stay, its gauges go, and come back if it does.
- **Who may publish there can forge reports**, but not make the sum grow without end: of the labels
  `subject`, `stream`, `partition` and `query` a bounded number is told apart, of the others those
  that a producer has, and of all series together `_MAX_SERIES`. What is beyond counts as `UNKNOWN`.
- Gauges are added up, but for those that are said by one producer at a time (`Metric.alone`): of a
  query that was killed and started again, the last word counts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..publish.metrics import EXPORTED, UNKNOWN, Bounded, Labels, MetricsSnapshot, Report
from ..worker import MAX_NAME

_MAX_SUBJECTS: Final = 1_000
"""Upper bound for all producers together; later subjects are `UNKNOWN`."""

_MAX_QUERIES: Final = 1_000
"""Upper bound for all producers together; later queries are `UNKNOWN`."""

_MAX_STREAMS: Final = 1_000
_MAX_PARTITIONS: Final = 10_000
"""Upper bound for all producers together; later partitions are `UNKNOWN`."""

_MAX_SERIES: Final = 50_000
"""Upper bound for all queries together; the open labels of later series are `UNKNOWN`."""

_MAX_HELD: Final = 500_000
"""Series of all producers that have not ended; the one silent for longest is taken for ended."""

_QUERY: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

_MAX_PRODUCERS: Final = 10_000
"""Producers that have not ended; of more, the one silent for longest is taken for ended."""

_MAX_ENDED: Final = 100_000
"""Ended producers that are remembered, so reports that arrive late or twice are not counted."""


Key = tuple[int, str]


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
        self._producers: OrderedDict[Key, _LastReport] = OrderedDict()  # the last heard of last
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._of_ended: dict[str, MetricsSnapshot] = {}
        self._held = 0
        self._open = {
            "subject": Bounded(_MAX_SUBJECTS),
            "stream": Bounded(_MAX_STREAMS),
            "partition": Bounded(_MAX_PARTITIONS),
            "query": Bounded(_MAX_QUERIES),
        }
        self._series: set[tuple[str, str, Labels]] = set()

    def __repr__(self) -> str:
        return f"<Reports {len(self._producers)} producers, {len(self._ended)} ended>"

    def take(self, report: Report, now: float) -> bool:
        """
        Takes a report; False if it says nothing new: it came twice, or late.

        Raises:
            ValueError: It takes counts back. It is not taken.
        """
        key = report.producer_id, report.run
        known = self._producers.get(key)
        if key in self._ended or (known is not None and report.sequence <= known.sequence):
            return False
        query = report.query_name[:MAX_NAME]
        if not query and _QUERY.fullmatch(report.query_id):
            query = report.query_id
        query = self._open["query"](query) if query else ""
        snapshot = self._bounded(query, report.snapshot)
        if known is not None and not snapshot.follows(known.snapshot):
            raise ValueError(f"producer {report.producer_id}: its counts became less")
        self._held += snapshot.size - (known.snapshot.size if known is not None else 0)
        self._producers[key] = _LastReport(query, report.sequence, snapshot, now)
        self._producers.move_to_end(key)
        if report.final:
            self._end(key)
        while len(self._producers) > _MAX_PRODUCERS or self._is_heavy:
            self._end(next(iter(self._producers)))
        return True

    @property
    def _is_heavy(self) -> bool:
        return self._held > _MAX_HELD and len(self._producers) > 1

    def _bounded(self, query: str, snapshot: MetricsSnapshot) -> MetricsSnapshot:
        """With the labels, and no more series, than are told apart."""

        def kept(name: str, labels: Labels) -> Labels:
            key = query, name, labels
            if key not in self._series and len(self._series) >= _MAX_SERIES:
                pairs = zip(EXPORTED[name].labels, labels, strict=True)
                return tuple(UNKNOWN if each in self._open else label for each, label in pairs)
            self._series.add(key)
            return labels

        bounded = snapshot.bounded(**self._open)
        return MetricsSnapshot.of(
            (name, kept(name, labels), values) for name, labels, values in bounded
        )

    def totals(self, now: float) -> dict[str, MetricsSnapshot]:
        """Counts of all, and gauges of those that live, by query."""
        since = now - self._silent_s
        snapshots = {query: [snapshot] for query, snapshot in self._of_ended.items()}
        for producer in self._producers.values():
            last = producer.snapshot
            if producer.seen_at < since:
                last = last.ended()
            snapshots.setdefault(producer.query, []).append(last)
        return {query: _together(of_query) for query, of_query in snapshots.items()}

    def _end(self, key: Key) -> None:
        query, _, last, _ = self._producers.pop(key)
        self._held -= last.size
        before = self._of_ended.get(query, MetricsSnapshot({}))
        self._of_ended[query] = MetricsSnapshot.merged([before, last.ended()])
        self._ended[key] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)


def _together(snapshots: Sequence[MetricsSnapshot]) -> MetricsSnapshot:
    """Their sum, of gauges that one says at a time the last word."""
    series = [entry for snapshot in snapshots for entry in snapshot]
    newest = {(name, labels): values for name, labels, values in series if EXPORTED[name].alone}
    summed = (entry for entry in series if not EXPORTED[entry[0]].alone)
    return MetricsSnapshot.of([*summed, *((*key, values) for key, values in newest.items())])


class Beginnings:
    """
    Counts as they are shown: each series begins at 0, the first time, whatever it has by then.

    Prometheus sees what a counter has become more than it was; of one that is there all at once,
    with the first rows that were shed, it would see nothing.
    """

    def __init__(self) -> None:
        self._shown: set[tuple[str, str, Labels]] = set()

    def __repr__(self) -> str:
        return f"<Beginnings of {len(self._shown)} series>"

    def of(self, totals: Mapping[str, MetricsSnapshot]) -> dict[str, MetricsSnapshot]:
        """The series of these totals to show, by query."""
        return {
            query: MetricsSnapshot.of(
                (name, labels, series if self._is_known(query, name, labels) else [0] * len(series))
                for name, labels, series in total
            )
            for query, total in totals.items()
        }

    def _is_known(self, query: str, name: str, labels: Labels) -> bool:
        key = query, name, labels
        is_known = key in self._shown or EXPORTED[name].kind == "gauge"
        self._shown.add(key)
        return is_known
