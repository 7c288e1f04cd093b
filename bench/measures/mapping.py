"""
What mapping costs: nanoseconds a row by rule, over columns as a writer gets them.

Needs neither a server nor Spark. Columns have 10,000 rows; the subjects are all different, or
3,000 in random order. The best of many runs counts, because whatever else the machine does only
adds.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from rich.table import Table

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping

from ..comparisons import Part
from ..results import Entry

ROWS: Final = 10_000
DISTINCT: Final = 3_000
SEED: Final = 1

_ALIKE: Final = ("v1.$1.$2", "v2.$1.$2")

RULES: Final[dict[str, dict[str, Any]]] = {
    "no rule matches": {"other.*.*": "x.$1.$2"},
    "simple": {"orders.>": "new.>"},
    "wildcard": {"orders.*.*": "new.{{wildcard(1)}}.{{wildcard(2)}}"},
    "reordering": {"orders.*.*": "new.$2.$1"},
    "partition": {"orders.*.*": "orders.{{partition(8,1)}}.$1.$2"},
    "partition, a count that is no power of two": {
        "orders.*.*": "orders.{{partition(10,1)}}.$1.$2"
    },
    "partition, as the last token": {"orders.*.*": "orders.$1.$2.{{partition(8,1)}}"},
    "partition by two tokens": {"orders.*.*": "orders.{{partition(8,1,2)}}.$1.$2"},
    "partition by the whole subject": {"orders.*.*": "orders.{{partition(8)}}.$1.$2"},
    "left": {"orders.*.*": "orders.{{left(1,10)}}.$2"},
    "splitFromLeft": {"orders.*.*": "orders.{{splitFromLeft(1,8)}}.$2"},
    "sliceFromLeft": {"orders.*.*": "orders.{{sliceFromLeft(1,8)}}.$2"},
    "split": {"orders.*.*": "orders.{{split(1,-)}}.$2"},
    "random": {"orders.*.*": "orders.{{random(8)}}.$1.$2"},
    "weights 98/2": {
        "orders.*.*": [
            {"destination": to, "weight": weight}
            for to, weight in zip(_ALIKE, (98, 2), strict=True)
        ]
    },
    "loss of a half": {"orders.>": [{"destination": "orders.>", "weight": 50}]},
    "1,000 wildcard rules": {
        f"orders.customer-{n}.*": f"c{n % 7}.{{{{partition(8,1)}}}}.$1" for n in range(1000)
    },
}


class Cost(NamedTuple):
    """One rule over one kind of column."""

    rule: str
    subjects: str
    nanoseconds: float
    """A row."""


def costs(seconds: float = 0.3) -> Iterator[Cost]:
    """Each rule over both kinds of columns, so long each."""
    chance = random.Random(SEED)
    different = [f"orders.customer-{n}.{chance.randrange(10**6)}" for n in range(ROWS)]
    columns = {
        "all new": different,
        f"{DISTINCT:,} different": chance.choices(different[:DISTINCT], k=ROWS),
    }
    identities = pa.array([b"7c9e6679-%d" % row for row in range(ROWS)], pa.binary())
    literal = {source: f"literal.{n}" for n, source in enumerate(different)}
    for rule, rules in (RULES | {"10,000 rules without wildcards": literal}).items():
        mapping = SubjectMapping.parse(json.dumps(rules))
        for name, subjects in columns.items():
            column = pa.array(subjects).dictionary_encode()
            best = _best(mapping, name == "all new", column, identities, seconds)
            yield Cost(rule, name, best / ROWS * 1e9)


def _best(
    mapping: SubjectMapping,
    is_new: bool,
    column: pa.DictionaryArray,
    identities: pa.Array,
    seconds: float,
) -> float:
    """
    Seconds of the fastest of many calls; the first does not count.

    Args:
        is_new: whether the mapping has not met the subjects before.
    """
    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if is_new:
            mapping = SubjectMapping(mapping.routes)
        began = time.perf_counter()
        if mapping.needs_identity:
            mapping.map_rows(column, identities)
        else:
            mapping.map_subjects(column.dictionary).subjects.take(column.indices)
        best = min(best, time.perf_counter() - began)
    return best


def table(costs: Iterable[Cost]) -> Table:
    """A line a rule, a column a kind of subjects."""
    table = Table("mapping rule")
    rows: dict[str, list[float]] = {}
    for cost in costs:
        if not rows or rows.keys() == {cost.rule}:
            table.add_column(f"ns a row,\n{cost.subjects}", justify="right")
        rows.setdefault(cost.rule, []).append(cost.nanoseconds)
    for rule, figures in rows.items():
        table.add_row(rule, *(f"{nanoseconds:,.0f}" for nanoseconds in figures))
    return table


def part() -> Part:
    """All rules, as figures and as a table."""
    found = list(costs())
    entries = [
        Entry(f"mapping {cost.rule}, {cost.subjects}", round(cost.nanoseconds, 1), "ns/row")
        for cost in found
    ]
    return Part(entries, table(found))
