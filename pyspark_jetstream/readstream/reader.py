"""
`spark.readStream.format("jetstream")` as Spark asks since 4.2: each batch with its start and limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .earlier import EarlierReader
from .options import MAX_CLAIMS


class StreamReader(EarlierReader, SupportsTriggerAvailableNow):
    """A streaming read that remembers no batch."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tells Spark that batches are limited; the limits are applied together in ours."""
        of = self._options
        is_limited = of.max_records or of.max_bytes or of.min_records or of.sharing
        return ReadMaxRows(of.max_records or MAX_CLAIMS) if is_limited else ReadAllAvailable()

    def latestOffset(  # type: ignore[override]
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
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
        return self.driver.tasks(start, end) if start != end else []
