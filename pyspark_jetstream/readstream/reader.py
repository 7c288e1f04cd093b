"""
`spark.readStream.format("jetstream")`: Spark's calls on the driver and in the tasks.

A reader that is pickled to the tasks has no driver: all state of a run is there, which is made on
first use, in the source process. So Spark's plan, which only pickles a reader, imports no driver.

Spark's source process puts an `UnboundLocalError` of its own behind whatever `streamReader()`
raises. So nothing is raised there: a read that cannot be says so when Spark first asks something.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ..errors import OptionError
from ..tasks.rows import SentAsRows, TaskRows
from .options import MAX_CLAIMS, SourceOptions

if TYPE_CHECKING:
    from .driver import Driver
    from .rangedriver import RangeDriver
    from .shared.claimdriver import ClaimDriver

D = TypeVar("D", bound="Driver")


class StreamReader(SentAsRows, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[D]):
    """
    Spark's side of a streaming read.

    One instance lives in the driver's source process for a whole run of the query; its `rows`,
    which see nothing of its state, read in the tasks.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options)
        self._driver: D | None = None

    @abstractmethod
    def _begin(self) -> D:
        """The state of a new run."""

    @property
    def driver(self) -> D:
        """The state of this run of the query, made on first use."""
        if self._driver is None:
            self._driver = self._begin()
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """The symbolic start: it is asked for more than once and must not change."""
        from .offsets import INITIAL

        return dict(INITIAL)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freezes what this run reads: what is there by now, nothing that comes later."""
        self.driver.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:
        """The figures behind the last plan; the driver's `reported` describes them."""
        return self.driver.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch; which rows they give depends on the offsets alone."""
        return self.driver.counted(self.driver.tasks(start, end))

    def stop(self) -> None:
        """Closes the connections. Spark often ends the process without this call."""
        if self._driver is not None:
            self._driver.close()


class JetStreamStreamReader(StreamReader["RangeDriver"]):
    """Reads the subject partitions of a stream, micro-batch by micro-batch."""

    def _begin(self) -> RangeDriver:
        from .rangedriver import RangeDriver

        return RangeDriver(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are limited; the limits are applied together in ours."""
        options = self._options
        if options.max_records is not None:
            return ReadMaxRows(options.max_records)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_records is not None:
            return ReadMinRows(options.min_records)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        Where the batch after `start` ends; `start` itself when there is nothing to read yet.

        Raises:
            OffsetError: The checkpoint belongs to another layout.
            DataLossError: A stream was recreated, or messages left unread (`failOnDataLoss`).
        """
        return self.driver.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def commit(self, end: dict[str, Any]) -> None:
        """Settles a batch that Spark has checkpointed; never raises, the next commit covers it."""
        self.driver.commit(end)


class SharedStreamReader(StreamReader["ClaimDriver"]):
    """Reads what this query claims of shared consumers, micro-batch by micro-batch."""

    def _begin(self) -> ClaimDriver:
        from .shared.claimdriver import ClaimDriver

        return ClaimDriver(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are limited."""
        return ReadMaxRows(self._options.max_records or MAX_CLAIMS)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        What is claimed for the batch after `start`, which is acknowledged; `start` itself when
        the server has nothing for this query.

        Raises:
            OffsetError: The checkpoint belongs to another layout or policy.
            OptionError: The trigger is `once`.
            DataLossError: The shared consumer, or a stream, is gone (`failOnDataLoss`).
        """
        if isinstance(limit, ReadAllAvailable):
            raise OptionError(
                "priorityPolicy",
                f"{self._options.sharing.policy if self._options.sharing else ''} does not go with"
                " trigger(once=True), which ends before its batch is acknowledged, so that others"
                " would have it as well; use trigger(availableNow=True)",
            )
        return self.driver.latest(start)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: what Spark tells here, `latestOffset` knew a batch earlier."""


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers every question with what is wrong with the options."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"<RefusedReader {self._error}>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    getDefaultReadLimit = initialOffset = latestOffset = _refuse
    prepareForTriggerAvailableNow = partitions = read = _refuse
