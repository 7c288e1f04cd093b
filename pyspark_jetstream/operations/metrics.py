"""
What writers and readers say of their metrics on `metricsSubject`, and the sum of it all.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
Rule 2: no count is taken twice, and none is ever taken back.

    {"type":"metrics","producer_id":7,"run":"5f0c…","query_id":"…","batch_id":12,
     "sequence":3,"final":false,"metrics":{"jetstream_publish_outcomes_total":[[["success"],[900]]],…}}

A *producer* is one attempt of a task, or the driver of a streaming read. Each of its reports has
all it has counted so far, so a lost one is made up for by the next, and only the one with the
highest `sequence` counts; the `final` one is the last. `run` is drawn anew for every attempt: a
`producer_id` may come again when a query is started again from its checkpoint. Unknown fields and
metrics are ignored.

- Of a producer that has **ended** its counts stay; its gauges go.
- One that has **said nothing for a time** (`silent_s`) is taken for killed, or waits for Spark:
  its counts stay, its gauges go, and come back if it does.
- Gauges are added up, but for those that are said by one producer at a time (`Metric.alone`): of a
  query that was killed and started again, the last word counts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from ..publish.metrics import EXPORTED, Bounded, Labels, Report, Snapshot

__all__ = ["Reports"]

_MAX_SUBJECTS: Final = 1_000
"""Of all producers together; later ones are `UNKNOWN`."""

_MAX_QUERIES: Final = 1_000
"""That read; likewise."""

_MAX_PRODUCERS: Final = 10_000
"""That have not ended; the one silent for longest is then taken for ended."""

_MAX_ENDED: Final = 100_000
"""That are remembered, so that what arrives late or twice is not counted."""


Key = tuple[int, str]


class _Producer(NamedTuple):
    sequence: int
    snapshot: Snapshot
    seen_at: float


class Reports:
    """
    The sum over all producers that were heard of.

    Args:
        silent_s: after so long without a report a producer's gauges do not count.
    """

    def __init__(self, silent_s: float = 30.0) -> None:
        self._silent_s = silent_s
        self._producers: OrderedDict[Key, _Producer] = OrderedDict()  # the last heard of last
        self._ended: OrderedDict[Key, None] = OrderedDict()
        self._of_ended = Snapshot({})
        self._subject = Bounded(_MAX_SUBJECTS)
        self._query = Bounded(_MAX_QUERIES)

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
        snapshot = report.snapshot.bounded(subject=self._subject, query=self._query)
        if known is not None and not snapshot.follows(known.snapshot):
            raise ValueError(f"producer {report.producer_id}: its counts became less")
        self._producers[key] = _Producer(report.sequence, snapshot, now)
        self._producers.move_to_end(key)
        if report.final:
            self._end(key)
        elif len(self._producers) > _MAX_PRODUCERS:
            self._end(next(iter(self._producers)))
        return True

    def total(self, now: float) -> Snapshot:
        """Counts of all, and gauges of those that live."""
        since = now - self._silent_s
        newest: dict[tuple[str, Labels], tuple[int, ...]] = {}
        others: list[tuple[str, Labels, tuple[int, ...]]] = []
        for each in self._producers.values():
            for name, labels, values in each.snapshot if each.seen_at >= since else ():
                if EXPORTED[name].alone:
                    newest[name, labels] = values
                elif EXPORTED[name].kind == "gauge":
                    others.append((name, labels, values))
        others += ((*key, values) for key, values in newest.items())
        counted = (each.snapshot.ended() for each in self._producers.values())
        return Snapshot.merged([self._of_ended, *counted, Snapshot.of(others)])

    def _end(self, key: Key) -> None:
        last = self._producers.pop(key).snapshot.ended()
        self._of_ended = Snapshot.merged([self._of_ended, last])
        self._ended[key] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
