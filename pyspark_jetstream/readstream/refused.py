"""
A streaming read that cannot be, for any version of Spark.

Spark's source process puts an `UnboundLocalError` of its own behind whatever `streamReader()`
raises. So nothing is raised there: a read that cannot be says so when Spark first asks something.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from ..errors import JetStreamError


class RefusedReader(DataSourceStreamReader):
    """Answers every question with why there is no read."""

    def __init__(self, error: JetStreamError) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    getDefaultReadLimit = initialOffset = latestOffset = _refuse
    prepareForTriggerAvailableNow = partitions = read = _refuse
