"""
`spark.readStream.format("jetstream")`: Spark's calls on the driver and in the tasks.

A reader that is pickled to the tasks has no driver: all state of a run is there, which is made on
first use, in the source process. So Spark's plan, which only pickles a reader, imports no driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ..tasks.rows import SentAsRows, TaskRows
from .options import MAX_CLAIMS, SourceOptions

if TYPE_CHECKING:
    from .driver import Driver


class StreamReader(SentAsRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Spark's side of a streaming read, micro-batch by micro-batch.

    One instance lives in the driver's source process for a whole run of the query; its `rows`,
    which see nothing of its state, read in the tasks.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options)
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        """The state of this run of the query, made on first use."""
        if self._driver is None:
            if self._options.sharing is not None:
                from .shared.claimdriver import ClaimDriver

                self._driver = ClaimDriver(self._options)
            else:
                from .rangedriver import RangeDriver

                self._driver = RangeDriver(self._options)
        return self._driver

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are limited; the limits are applied together in ours."""
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.sharing is not None:
            return ReadMaxRows(MAX_CLAIMS)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_records is not None:
            return ReadMinRows(options.min_records)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        """The symbolic start: it is asked for more than once and must not change."""
        from .offsets import INITIAL

        return dict(INITIAL)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        End of the batch after `start`; `start` itself when there is nothing to read yet.

        Raises:
            OffsetError: The checkpoint belongs to another layout or policy.
            OptionError: The trigger is `once`, and the consumer is shared.
            DataLossError: A stream was recreated, or messages left unread, or the shared consumer
                is gone (`failOnDataLoss`).
        """
        return self.driver.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:
        """Freezes what this run reads: what is there by now, nothing that comes later."""
        self.driver.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The figures behind the last plan; the driver's `reported` describes them."""
        return self.driver.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch; which rows they give depends on the offsets alone."""
        return self.driver.tasks(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Settles a batch that Spark has checkpointed; never raises, the next commit covers it."""
        self.driver.commit(end)

    def stop(self) -> None:
        """Closes the connections. Spark often ends the process without this call."""
        if self._driver is not None:
            self._driver.close()
