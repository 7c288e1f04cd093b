"""
The executors' half of `failOnDataLoss`: did messages leave a stream before they were read?

Asked once after a read, and only when it found fewer messages than were counted when the batch was
planned.
"""

from __future__ import annotations

import logging
from typing import Protocol

from ..client.jetstream import JetStream
from ..errors import DataLossError

__all__ = ["check_loss"]

logger = logging.getLogger(__name__)


class Counted(Protocol):
    """What a read says of itself."""

    @property
    def stream(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def expected(self) -> int | None: ...
    @property
    def fail_on_data_loss(self) -> bool: ...


def check_loss(js: JetStream, read: Counted, partition: int, rows: int) -> None:
    """
    Passes over a read that found what it should, and over gaps that are no loss.

    Raises:
        DataLossError: Messages are gone, and `failOnDataLoss` is on.
    """
    if read.expected is None or rows >= read.expected:
        return
    info = js.stream_info(read.stream)
    # What only leaves a stream when our consumer settles it has no other reason to be gone.
    if info.retention == "limits" and not (info.keeps_history and info.first_seq > read.start + 1):
        return
    message = (
        f"{read.expected - rows} of {read.expected} messages in ({read.start}, {read.end}] left the"
        f" stream before they were read; it now begins at {info.first_seq}: raise its limits or"
        " read more often; with failOnDataLoss=false the query goes on without them"
    )
    if read.fail_on_data_loss:
        raise DataLossError(read.stream, partition, message)
    logger.warning("stream=%s partition=%d %s", read.stream, partition, message)
