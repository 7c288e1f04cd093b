"""
Whether a series is flat: its median in the last quarter, compared with that in the second one.

The first quarter is left to whatever fills once: heaps, caches, streams with limits, Spark's
records of finished batches. To shrink is no fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final


@dataclass(frozen=True, slots=True)
class Rule:
    """By how much the last quarter may be above the second one."""

    series: str
    """A pattern of whole names; the first rule that matches holds."""
    share: float
    """Of the second quarter,"""
    more: float
    """and so much more in any case."""

    def __str__(self) -> str:
        parts = [f"{self.share:.0%}"] if self.share else []
        return " + ".join([*parts, f"{self.more:g}"])


SPARK: Final = r"jvm|source|worker|other|driver"

RULES: Final = (
    Rule(rf"({SPARK})\.pss_mib", 0.05, 8),
    Rule(r"server\.pss_mib", 0.20, 16),
    Rule(r"jvm\.live_heap_mib", 0.05, 4),
    Rule(r"jvm\.(non_heap|direct)_mib", 0.10, 8),
    Rule(rf"({SPARK}|server)\.processes", 0, 1),
    Rule(r"jvm\.threads", 0.25, 0),
    Rule(rf"({SPARK}|server)\.(threads|fds)", 0.05, 4),
    Rule(r"nats\.(streams|consumers)", 0, 0),
    Rule(r"nats\.(connections|subscriptions)", 0, 2),
    Rule(r"nats\.stored_mib", 0.05, 8),
    Rule(r"stream\.KV_.*\.messages", 0, 4),
    Rule(r"stream\..*\.messages", 0.01, 0),
    Rule(r"checkpoint\.files", 0.05, 8),
)
"""
What is judged; the other series are only shown. Memory is PSS: pages that processes share count
once. The server's moves with Go's collections, what it keeps of its files and the ids of the
duplicate window; the JVM's threads move with Spark's pools, which shrink after a minute.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """One series."""

    name: str
    second: float
    """Its median in the second quarter,"""
    last: float
    """and in the last one."""
    highest: float
    rule: Rule

    @property
    def is_flat(self) -> bool:
        """Whether it stayed within its bound."""
        return self.last <= self.second * (1 + self.rule.share) + self.rule.more

    def __str__(self) -> str:
        return (
            f"{self.name:32} {self.second:>11,.1f} {self.last:>10,.1f} {self.highest:>10,.1f}"
            f"   {self.rule!s:>8}   {'flat' if self.is_flat else 'GROWS'}"
        )


def judge(samples: Sequence[Mapping[str, float]], rules: Iterable[Rule] = RULES) -> list[Judged]:
    """
    Every series that has a rule, in the order of the rules.

    Args:
        samples: each with its `seconds`. One without a series that others have counts as 0 for it:
            what is not there holds nothing. That does not go for `jvm.live_heap_mib`, which is
            not looked at every time.
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    found, end = [], samples[-1]["seconds"] if samples else 0.0
    taken: set[str] = set()
    for rule in rules:
        for name in names:
            if name in taken or not re.fullmatch(rule.series, name):
                continue
            taken.add(name)
            second = _values(samples, name, end / 4, end / 2)
            last = _values(samples, name, end * 3 / 4, end)
            if second and last:
                highest = max(sample.get(name, 0.0) for sample in samples)
                found.append(Judged(name, median(second), median(last), highest, rule))
    return found


def _values(
    samples: Sequence[Mapping[str, float]], name: str, low: float, high: float
) -> list[float]:
    among = [sample for sample in samples if low <= sample["seconds"] <= high]
    if name == "jvm.live_heap_mib":
        return [sample[name] for sample in among if name in sample]
    return [sample.get(name, 0.0) for sample in among]
