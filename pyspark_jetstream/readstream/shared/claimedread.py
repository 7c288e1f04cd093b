"""
Reading the messages that a query has claimed, by batched direct get.

Claims lie scattered: others who share the consumer have what is between them. Small gaps are read
and dropped, larger ones make another request. What a direct get of a range promises holds here too
(`directget`); which of the rows are ours is decided by their sequence alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...client.connection import Client
from ...client.jetstream import JetStream
from ...fetch.dataloss import check_loss
from ...fetch.decoding.deliveries import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from ...fetch.decoding.rows import RowBuilder
from ...fetch.directget import read_direct
from ...tasks.ranges import RangeRead, filter_on_server
from .claims import Claims, length, runs, sequences_of

_GAP: Final = 64
"""
Sequences of others that are read along rather than asked around: a request costs about as much as
so many messages (some 300 us against `ranges.DIRECT_COST`).
"""

_FILTERED_GAP: Final = 10_000
"""The same where the server filters, and messages of other partitions are not sent."""


@dataclass(frozen=True, slots=True)
class ClaimedRead(RangeRead):
    """
    Claims of one partition: of the range that covers them, the messages that are expected.
    """

    claims: Claims = field(kw_only=True)
    """By number of deliveries."""

    def __repr__(self) -> str:
        return f"<ClaimedRead {self.expected} of {self.stream}>"

    def of(self, claims: Claims) -> ClaimedRead:
        """The read of these claims of the partition."""
        ranges = runs(claims, 0)
        start, end = ranges[0][0] - 1, ranges[-1][1]
        return replace(self, claims=claims, start=start, end=end, expected=length(ranges))

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """
        The messages claimed, ascending by sequence, with their number of deliveries as last column.

        Raises:
            ReadTimeoutError: No progress within `requestTimeout`.
            DataLossError: A claimed message has left the stream (`failOnDataLoss`).
            StreamNotFoundError: The stream was deleted.
            ReadError: Direct get is off, or the server refuses the request.
        """
        sequences, deliveries = _columns(self.claims)
        gathered: list[pa.RecordBatch] = []
        rows = there = size = 0  # all, and rows and bytes of these
        for batch in _batches(client, self, sequences):
            if len(self.claims) == 1:
                counts = deliveries[: batch.num_rows]
            else:
                counts = deliveries.take(pc.index_in(batch.column("sequence"), sequences))
            rows += batch.num_rows
            gathered.append(batch.append_column(pa.field("deliveries", pa.int32()), counts))
            there, size = there + batch.num_rows, size + gathered[-1].nbytes
            if there >= MAX_BATCH_ROWS or size >= MAX_BATCH_BYTES:
                yield _together(gathered)
                gathered, there, size = [], 0, 0
        if gathered:
            yield _together(gathered)
        check_loss(JetStream(client), self, rows)


def _batches(client: Client, read: ClaimedRead, sequences: pa.Array) -> Iterator[pa.RecordBatch]:
    """The rows claimed; what covers them, messages of others among them, is read along."""
    builder = RowBuilder.of(read, only=sequences)
    by_server = filter_on_server(read.filter, len(sequences), read.end - read.start)
    filter_, gap = (read.filter, _FILTERED_GAP) if by_server else (None, _GAP)
    for first, last in runs(read.claims, gap):
        # They are counted over all of them, above.
        part = replace(read, filter=filter_, start=first - 1, end=last, expected=0)
        yield from read_direct(client, part, builder)


def _columns(claims: Claims) -> tuple[pa.Array, pa.Array]:
    """All claimed sequences, and the deliveries of each."""
    sequences: list[int] = []
    deliveries: list[int] = []
    for count, ranges in claims.items():
        sequences.extend(sequences_of(ranges))
        deliveries.extend([count] * length(ranges))
    return pa.array(sequences, pa.int64()), pa.array(deliveries, pa.int32())


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
