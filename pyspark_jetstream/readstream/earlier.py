"""
`spark.readStream.format("jetstream")` as Spark 4.1 asks: it names neither a start nor a limit.

A reader that is pickled to the tasks has no driver: all state of a run is there, which is made on
first use, in the source process. So Spark's plan, which only pickles a reader, imports no driver.

A batch begins where the last one ended. Of a run that goes on from a checkpoint Spark tells the end
of its log before it asks for a batch: by `partitions` of an empty range.

Limits: `availableNow` is one batch within the limits of the options, and progress has no lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..errors import OptionError
from ..tasks.rows import SentAsRows, TaskRows
from .options import SourceOptions

if TYPE_CHECKING:
    from .driver import Driver


class EarlierReader(SentAsRows, DataSourceStreamReader):
    """
    Spark's side of a streaming read, micro-batch by micro-batch.

    One instance lives in the driver's source process for a whole run of the query; its `rows`,
    which see nothing of its state, read in the tasks.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options)
        self._driver: Driver | None = None
        self._end: dict[str, Any] | None = None
        """End of the last batch; None before the first one of a query."""

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

    def initialOffset(self) -> dict[str, Any]:
        """The symbolic start: it is asked for more than once and must not change."""
        from .offsets import INITIAL

        return dict(INITIAL)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """End of the batch after the last one; that of the last one when nothing has come."""
        self._end = self.driver.latest(self._end or self.initialOffset(), unlimited=False)
        return self._end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """
        The tasks of the batch; which rows they give depends on the offsets alone.

        Raises:
            OptionError: Spark asked for a batch before it told the end of its log.
        """
        if start != end:
            return self.driver.tasks(start, end)
        if self._end not in (None, end):
            raise OptionError(
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled",
                "Spark 4.1 plans a batch before it reads the checkpoint with it: set false",
            )
        self._end = end
        return []

    def commit(self, end: dict[str, Any]) -> None:
        """
        Settles a batch that Spark has checkpointed, where `latest` of the next one has not done so:
        Spark asks for that first. Never raises.
        """
        self.driver.commit(end)

    def stop(self) -> None:
        """Closes the connections. Spark often ends the process without this call."""
        if self._driver is not None:
            self._driver.close()
