"""
Filters of a query, as Spark hands them to a reader before it plans.

A reader that has `pushFilters` cannot be read at all while
`spark.sql.python.filterPushdown.enabled` is false, which is Spark's default. So readers come in
two kinds, and `pushes_filters` tells which one Spark wants: the process that asks for filters is
another than the one that does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader

from .narrowing import Narrowing, Operation

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_OPERATIONS: Final[dict[str, Operation]] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "In": "in",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "StringStartsWith": "prefix",
}
"""The filters that can leave messages out, by the names of their classes (new in Spark 4.1)."""


def pushes_filters() -> bool:
    """Whether this process is the one in which Spark hands filters to a reader."""
    return any("data_source_pushdown_filters" in argument for argument in sys.argv)


def narrowing_of(filters: Iterable[Filter], names: Mapping[str, str] | None = None) -> Narrowing:
    """
    Part of a stream that the filters leave, all of which must hold.

    `names` are the columns' names in a stream's read, where they differ.
    """
    narrowing = Narrowing()
    for filter_ in filters:
        operation = _OPERATIONS.get(type(filter_).__name__)
        if operation is None:
            continue
        column = ".".join(filter_.attribute)  # type: ignore[attr-defined]  # all of these have one
        value = filter_.value  # type: ignore[attr-defined]
        values = [one for one in value if one is not None] if operation == "in" else [value]
        if None not in values:
            column = (names or {}).get(column, column)
            narrowing = narrowing.by(column, operation, values)
    return narrowing


class NarrowedReader(DataSourceReader):
    """A reader that asks the server for less where a query's filters allow it."""

    narrowing = Narrowing()
    """The part of the stream that the filters leave; everything, unless Spark hands some over."""


class TakesFilters(NarrowedReader):
    """Mixed into such a reader where Spark hands filters over."""

    column_names: Mapping[str, str] = {}
    """By column of this read: its name in a stream's read, where that differs."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Notes what they leave. All stay with Spark, which applies them to the rows."""
        self.narrowing = narrowing_of(filters, self.column_names)
        return iter(filters)
