"""What the dashboard asks Prometheus, and whether the answers have data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MOVED: Final = frozenset(
    {
        "jetstream_publish_outcomes_total",
        "jetstream_publish_queue_total",
        "jetstream_publish_rejected_total",
        "jetstream_publish_dropped_total",
        "jetstream_publish_blocked_seconds_total",
        "jetstream_producer_throttled_times_total",
        "jetstream_publish_rate_limit_count_total",
        "jetstream_read_lag_messages",
        "jetstream_read_ack_pending_messages",
    }
)
"""Metrics that a run with a pause and shedding moves: their queries show more than nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    panel: str
    legend: str
    expression: str
    """As the dashboard has it, with Grafana's variables."""

    @property
    def metric(self) -> str:
        """The metric that it is of, by its scraped name without a suffix of histograms."""
        name = re.search(r"jetstream_\w+", self.expression)
        assert name is not None, self.expression
        return re.sub(r"_(bucket|count|sum)$", "", name[0])

    def promql(self, rate_interval_s: float) -> str:
        """As Grafana sends it: for all jobs, queries and streams, a range as long as a rate's."""
        text = re.sub(r"\$__(rate_interval|range)\b", f"{rate_interval_s:g}s", self.expression)
        return re.sub(r"\$(job|query|stream)\b", ".*", text)


@dataclass(frozen=True, slots=True)
class Answer:
    """What Prometheus answered to a target for the whole run."""

    target: Target
    series: int
    samples: int
    """Those that are a number."""
    highest: float


def targets(dashboard: Path) -> list[Target]:
    """All queries of all panels."""
    panels = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    return [
        Target(panel["title"], target["legendFormat"], target["expr"])
        for panel in panels
        for target in panel.get("targets", ())
    ]


def answered(target: Target, result: Sequence[Mapping[str, Any]]) -> Answer:
    """Counts the samples of a matrix, as `query_range` answers it."""
    values = [value for value in _values(result) if math.isfinite(value)]
    return Answer(target, len(result), len(values), max(values, default=math.nan))


def _values(result: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    for series in result:
        for _, value in series["values"]:
            yield float(value)


def faults(answers: Iterable[Answer]) -> list[str]:
    """Panels that show nothing, or nothing but zero where the run must have moved something."""
    found = []
    for answer in answers:
        where = f"{answer.target.panel}: {answer.target.expression}"
        if not answer.samples:
            found.append(f"no sample: {where}")
        elif answer.target.metric in MOVED and not answer.highest > 0:
            found.append(f"nothing moved: {where}")
    return found


def table(answers: Iterable[Answer]) -> str:
    """One row a query, as Markdown."""
    rows = ["| panel | query | series | samples | highest |", "|---|---|---:|---:|---:|"]
    rows += [
        f"| {each.target.panel} | {each.target.legend} of `{each.target.metric}` | {each.series}"
        f" | {each.samples:,} | {each.highest:,.4g} |"
        for each in answers
    ]
    return "\n".join(rows)
