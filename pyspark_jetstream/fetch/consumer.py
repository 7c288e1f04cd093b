"""One partition of one batch, as a task reads it through its pinned consumer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .layout import Slice
from .owner import Owner

if TYPE_CHECKING:
    import pyarrow as pa

    from ..client.connection import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRead(Slice):
    """A slice of one partition, by its consumer."""

    partition: int
    consumer: str
    group: str
    priority_timeout_s: float | None = None
    retention: str = "limits"
    owner: Owner | None = None
    """The run of the query that made it; its driver hears of pins."""
    pin: str = ""
    """The pin that an attempt of this run had last, "" where none is known."""

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """
        The messages of the range, in order, each exactly once.

        Raises:
            ConsumerFencedError: Another attempt took over.
            ForeignClientError: Another client did, or was pinned as long as `requestTimeout`.
            ReadTimeoutError: No message came within `requestTimeout`, although some should.
            DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
            ReadError: The server refuses the pulls.
        """
        from .pulling.pinned import Pinned  # what plans reads nothing
        from .pulling.pulls import Attempt

        return Attempt(client, self, Pinned(client, self)).batches()
