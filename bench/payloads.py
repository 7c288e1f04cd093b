"""
Rows of one payload of so many bytes, on a thousand subjects in turn, or on others in random order.

Nothing between Spark and the stream's file looks into a payload, so one serves all rows. Must not
know servers or Spark.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.publish.lanes.frames import Publishes
from pyspark_jetstream.publish.lanes.lane import framed
from pyspark_jetstream.write.rows import MessageBuilder

SUBJECTS: Final = 1_000

WINDOW_BYTES: Final = parse_sink({}).window.max_in_flight_bytes
"""Bytes of a publisher without a PubAck; the sink's default."""

_FLOW: Final = 500
"""What the server acknowledges at one time at most."""

_ATOMIC_ROWS: Final = 1_000
"""The server's default limit of an atomic batch."""

_BLOCK_ROWS: Final = 10_000
_BLOCK_BYTES: Final = 64 << 20
"""As large as the batches that Spark hands to a sink."""


class Payloads:
    """
    `rows` rows of `size` bytes; row i goes to the subject `payloads.<i mod 1,000>`.

    With `subjects`, each of these has as many rows as any other, give or take one, and they are
    shuffled: the last row of a subject may be anywhere.
    """

    def __init__(self, size: int, rows: int, subjects: int | None = None) -> None:
        self.rows = rows
        chance = random.Random(size)
        self.data = chance.randbytes(size)
        self._numbers: Sequence[int] = range(rows)
        self._subjects = subjects or SUBJECTS
        if subjects is not None:
            self._numbers = chance.sample(range(rows), rows)

    def __repr__(self) -> str:
        return f"<Payloads {self.rows} rows of {len(self.data)} bytes>"

    def frames(self, first: int, last: int, inbox: str, ids: str | None) -> Iterator[Publishes]:
        """
        The rows `[first, last)` as our writer puts them on the wire, a PubAck for each.

        Args:
            inbox: PubAcks go to `<inbox>.<row>`.
            ids: prefix of the `Nats-Msg-Id` of each; None for publishes without headers.
        """
        row = 0
        for messages in self._messages(first, last, ids):
            yield _whole(framed(messages, row, inbox))
            row += len(messages)

    def rows_between(self, first: int, last: int) -> list[tuple[str, bytes]]:
        """Subject and payload of the rows `[first, last)`."""
        return [(subject, self.data) for subject in self._names(first, last)]

    def _messages(self, first: int, last: int, ids: str | None) -> Iterator[Messages]:
        builder = MessageBuilder(id_prefix=ids)
        maximum = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // len(self.data)))
        for low in range(first, last, maximum):
            subjects = self._names(low, min(low + maximum, last))
            data = pa.repeat(pa.scalar(self.data), len(subjects))
            yield builder.build(pa.record_batch({"subject": pa.array(subjects), "data": data}))

    def _names(self, first: int, last: int) -> list[str]:
        return [f"payloads.{number % self._subjects}" for number in self._numbers[first:last]]


def _whole(block: Publishes) -> Publishes:
    """The same with payloads and all in one piece, which is not to be made under a clock."""
    frames = block.slice(block.first, block.end)
    if isinstance(frames, memoryview):
        return block
    return block._replace(wire=memoryview(b"".join(frames)), apart=None)
