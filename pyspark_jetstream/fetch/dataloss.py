"""
`failOnDataLoss`: what happens when messages left a stream before they were read.

`lost` is its one gate, for drivers and tasks. A task asks once after a read, and only when it found
fewer messages than were counted when the batch was planned (`check_loss`).
"""

from __future__ import annotations

import logging
from typing import Protocol

from ..client.jetstream import JetStream
from ..errors import DataLossError

__all__ = ["check_loss", "lost"]

logger = logging.getLogger(__name__)


def lost(loss: DataLossError, fail_on_data_loss: bool) -> None:
    """Raises `loss`, or logs it where the query is to go on with what is there."""
    if fail_on_data_loss:
        raise loss
    logger.warning("data loss: %s", loss)


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
    what = (
        f"{read.expected - rows} of {read.expected} messages in ({read.start}, {read.end}] left the"
        f" stream before they were read; it now begins at {info.first_seq}: raise its limits or"
        " read more often; with failOnDataLoss=false the query goes on without them"
    )
    lost(DataLossError(read.stream, partition, what), read.fail_on_data_loss)
