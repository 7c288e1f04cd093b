"""
What a lane of batches has yet to store: rows that wait for a batch, and rows that go one by one.

A batch is an optimistic thing. Where one does not end as it should, `fastlane` and `atomic` do not
argue about its rows: those that may or may not be stored take the `Detour`, a window of their own
with one PubAck a row. It knows all about duplicates, refusals, pauses and deadlines, and nothing
else of the lane goes out before it is empty, so the order of the rows holds.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .lanes import AsyncLane
from .messages import Messages
from .window import Kind

__all__ = ["Backlog", "Detour", "batch_name", "numbered", "pause_s", "sizes"]

_BINARY: Final = pa.binary()
_NOTHING: Final = pa.scalar(b"", _BINARY)

_SERVED_LIMIT: Final = 10_000
"""Subjects a detour takes over as known to have a stream."""

_FRAME_BYTES: Final = 256
"""What a frame has besides subject, headers and data, at most: verb, reply, sizes, line ends."""

_FIRST_PAUSE_S: Final = {Kind.OVERLOADED: 0.01}
_PAUSE_S: Final = 0.25
_MAX_PAUSE_S: Final = 1.0


class Backlog:
    """The rows of a lane in order: those offered last at the end, those that are settled gone."""

    def __init__(self) -> None:
        self._blocks: deque[Messages] = deque()
        self._start = 0  # so many rows of the first block are gone
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, messages: Messages) -> None:
        """Takes the rows that follow."""
        if len(messages):
            self._blocks.append(messages)
            self._rows += len(messages)

    def head(self, most: int, most_bytes: int) -> Messages:
        """
        The first rows: of one offer, with frames of `most_bytes` at most, but one row at least.

        They stay until they are dropped.
        """
        block = self._blocks[0]
        head = block.slice(self._start, min(most, len(block) - self._start))
        while len(head) > 1 and pc.sum(sizes(head)).as_py() > most_bytes:
            head = head.slice(0, len(head) // 2)
        return head

    def drop(self, count: int) -> None:
        """The first `count` rows, all of one offer, are settled or somewhere else."""
        self._rows -= count
        self._start += count
        if self._start >= len(self._blocks[0]):
            self._start -= len(self._blocks.popleft())


class Detour(AsyncLane):
    """
    Rows of a lane that go one by one.

    Args:
        prefix: the lane's; replies come on `<prefix>.<Detour.TOKEN>.<ordinal>`.
    """

    TOKEN: Final = b"one"

    def __init__(
        self,
        prefix: str,
        max_publishes: int,
        max_bytes: int,
        ack_timeout_s: float,
        publish_timeout_s: float,
    ) -> None:
        super().__init__(
            f"{prefix}.{self.TOKEN.decode()}",
            max_publishes,
            max_bytes,
            ack_timeout_s,
            publish_timeout_s,
        )

    def take(self, messages: Messages, served: bool) -> None:
        """
        Offers the rows.

        Args:
            served: whether the lane has stored anything, so that its subjects have a stream.
        """
        if served and len(self._served) < _SERVED_LIMIT:
            self._served.update(messages.distinct[:_SERVED_LIMIT])
        self.offer(messages)


def batch_name(prefix: str, number: int) -> str:
    """
    An id for a batch, unlike any other lane's: inbox and lane end the prefix, an inbox is unique.

    The server takes 64 characters at most (ADR-50).
    """
    inbox, lane = prefix.split(".")[-2:]
    return f"{inbox}-{lane}-{number}"


def numbered(prefix: str, first: int, count: int, suffix: str = "") -> pa.Array:
    """BINARY: `<prefix><number><suffix>` for `count` numbers from `first` on."""
    numbers = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=first - 1)
    return pc.binary_join_element_wise(
        pa.scalar(prefix.encode(), _BINARY),
        numbers.cast(pa.string()).cast(_BINARY),
        pa.scalar(suffix.encode(), _BINARY),
        _NOTHING,
    )


def sizes(messages: Messages) -> pa.Array:
    """INT64: bytes of each one's frame, at most."""
    each = pc.add(pc.binary_length(messages.data), pc.binary_length(messages.subject))
    if messages.lines is not None:
        each = pc.add(each, pc.binary_length(messages.lines))
    return pc.add(each.cast(pa.int64()), _FRAME_BYTES)


def pause_s(kind: Kind, refusals: int) -> float:
    """How long to wait before what the server refused for this reason goes out again."""
    pause = _FIRST_PAUSE_S.get(kind, _PAUSE_S) * 2 ** min(refusals, 10)
    return float(min(pause, _MAX_PAUSE_S))
