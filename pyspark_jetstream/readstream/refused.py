"""
A streaming read that cannot be: it says so when Spark first asks it something.

Spark's source process puts an `UnboundLocalError` of its own behind whatever `streamReader()`
raises, so nothing is raised there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ..errors import OptionError

__all__ = ["RefusedReader"]


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers every question with what is wrong with the options."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"<RefusedReader {self._error}>"

    def getDefaultReadLimit(self) -> NoReturn:
        """Raises what is wrong, as all others do."""
        raise self._error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        raise self._error
