"""
What mapping costs: nanoseconds a row by rule, over columns as a writer gets them.

Needs neither a server nor Spark. The subjects of a column are all different, or 3,000 in random
order. The best of many runs counts, because whatever else the machine does only adds.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any, Final

import pyarrow as pa

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping

_ROWS: Final = 10_000
_DISTINCT: Final = 3_000

RULES: Final[dict[str, dict[str, Any]]] = {
    "wildcard": {"orders.*.*": "new.{{wildcard(1)}}.{{wildcard(2)}}"},
    "partition": {"orders.*.*": "orders.{{partition(8,1)}}.$1.$2"},
    "left": {"orders.*.*": "orders.{{left(1,10)}}.$2"},
    "sliceFromLeft": {"orders.*.*": "orders.{{sliceFromLeft(1,8)}}.$2"},
    "split": {"orders.*.*": "orders.{{split(1,-)}}.$2"},
    "loss of a half": {"orders.>": [{"destination": "orders.>", "weight": 50}]},
    "1,000 wildcard rules": {
        f"orders.customer-{n}.*": f"c{n % 7}.{{{{partition(8,1)}}}}.$1" for n in range(1000)
    },
}


def mapping_costs(seconds: float) -> dict[str, Any]:
    """Each rule over both kinds of columns, so long each."""
    chance = random.Random(1)
    different = [f"orders.customer-{n}.{chance.randrange(10**6)}" for n in range(_ROWS)]
    few = chance.choices(different[:_DISTINCT], k=_ROWS)
    rows = []
    for name, rules in RULES.items():
        mapping = SubjectMapping.parse(json.dumps(rules))
        best = [_best(mapping, subjects, seconds) for subjects in (different, few)]
        rows.append([name, *(f"{each / _ROWS * 1e9:,.0f}" for each in best)])
    heads = ["ns a row, all different", f"ns a row, {_DISTINCT:,} different"]
    return {"columns": ["mapping rule", *heads], "rows": rows}


def _best(mapping: SubjectMapping, subjects: list[str], seconds: float) -> float:
    """Seconds of the fastest of many calls, by a mapping that has not met the subjects before."""
    column = pa.array(subjects).dictionary_encode()
    identities = pa.array([b"7c9e6679-%d" % row for row in range(_ROWS)], pa.binary())
    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        fresh = SubjectMapping(mapping.routes)
        began = time.perf_counter()
        fresh.map_rows(column, identities if fresh.needs_identity else None)
        best = min(best, time.perf_counter() - began)
    return best
