"""
Reading a range in sessions: whatever ends one, the next goes on behind what was handed on.

What a session is says whoever reads: a consumer's life, or direct gets one behind the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import NotConnectedError, ReadTimeoutError, RequestTimeoutError
from ..sanitize import get_logger
from .dataloss import check_begin, check_loss
from .decoding.rows import Builder, RowBuilder
from .layout import Slice
from .pace import appetite_of

logger = get_logger(__name__)

_FIRST_PAUSE_S: Final = 0.0001
_LONGEST_PAUSE_S: Final = 0.05
"""Between two sessions: a replica that lags does so for milliseconds."""


class Superseded(Exception):
    """A session cannot go on; another one of the same attempt may."""


class Attempt(ABC):
    """
    The messages of a range, in order, each exactly once.

    Args:
        builder: makes something else of them than rows of the slice's partition.
    """

    def __init__(self, client: Client, read: Slice, builder: Builder | None = None) -> None:
        self.last = read.start
        """All up to here was handed on, or is not there."""
        self.rows = 0
        """Number of rows so far."""
        self._client = client
        self._js = JetStream(client)
        self._read = read
        self._builder = builder or RowBuilder.of(read)
        self._appetite = appetite_of(client.options)

    @abstractmethod
    def _session(self, patience: Patience) -> Iterator[pa.RecordBatch]:
        """
        Rows behind `last`, up to the range's end or to what ends the session.

        Raises:
            Superseded: Something has ended it.
        """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        The rows.

        Raises:
            ReadTimeoutError: No progress within `requestTimeout`.
            DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
            ReadError: The server refuses to answer.
        """
        read = self._read
        timeout_s = self._client.options.request_timeout_s
        patience = Patience(timeout_s, self.last, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        check_begin(self._js, read)
        while self.last < read.end:
            why = "the answers end before the range"
            try:
                yield from self._session(patience)
            except Superseded as reason:
                why = str(reason)
            except (NotConnectedError, RequestTimeoutError) as error:
                self._client.drop()
                why = str(error)
                if not error.retryable:
                    raise
            if self.last >= read.end:
                break
            if not patience.progress(self.last) and patience.over:
                raise ReadTimeoutError(
                    read.stream,
                    read.partition or 0,
                    f"no progress beyond sequence {self.last} of ({read.start}, {read.end}] within"
                    f" {timeout_s:.0f}s (requestTimeout): {why}",
                )
            logger.info(
                "reading on stream=%s partition=%d last=%d why=%s",
                read.stream, read.partition or 0, self.last, why,
            )  # fmt: skip
            patience.pause()
        check_loss(self._js, read, self.rows)
