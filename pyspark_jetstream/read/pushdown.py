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
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader

from ..subjects import bucket_prefix
from ..tasks.rows import SentAsRows, TaskRows
from .narrowing import Narrowing, Operation

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from ..client.info import StreamInfo
    from .options import RangeOptions, SnapshotOptions

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

_OF_BUCKETS: Final = {"key": "subject", "revision": "sequence"}
"""Columns of a bucket's read by their names in a stream's."""


def pushes_filters() -> bool:
    """Whether this process is the one in which Spark hands filters to a reader."""
    return any("data_source_pushdown_filters" in argument for argument in sys.argv)


def narrowing_of(filters: Iterable[Filter], bucket: str | None = None) -> Narrowing:
    """
    Part of a stream that the filters leave, all of which must hold; of a bucket's they are about
    keys and revisions.
    """
    names = _OF_BUCKETS if bucket is not None else {}
    narrowing = Narrowing()
    for filter_ in filters:
        operation = _OPERATIONS.get(type(filter_).__name__)
        if operation is None:
            continue
        column = ".".join(filter_.attribute)  # type: ignore[attr-defined]  # all of these have one
        value = filter_.value  # type: ignore[attr-defined]
        values = [one for one in value if one is not None] if operation == "in" else [value]
        if None not in values:
            narrowing = narrowing.by(names.get(column, column), operation, values)
    return narrowing if bucket is None else narrowing.below(bucket_prefix(bucket))


class NarrowedReader(SentAsRows, DataSourceReader):
    """A reader that asks the server for less where a query's filters allow it."""

    def __init__(self, options: RangeOptions | SnapshotOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options, options.drop_markers)

    def _forget_keys(self, infos: Mapping[str, StreamInfo]) -> None:
        """The keys of a bucket that is filled from others have subjects that those tell."""
        if self._options.bucket is not None and any(info.is_filled for info in infos.values()):
            self.narrowing = replace(self.narrowing, subjects=None, prefix="")

    narrowing = Narrowing()
    """The part of the stream that the filters leave; everything, unless Spark hands some over."""


class TakesFilters(NarrowedReader):
    """Mixed into such a reader where Spark hands filters over."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Notes what they leave. All stay with Spark, which applies them to the rows."""
        self.narrowing = narrowing_of(filters, self._options.bucket)
        return iter(filters)
