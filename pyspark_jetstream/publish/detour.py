"""
What a lane of batches has yet to store: rows that wait for a batch, and rows that go one by one.

A batch is an optimistic thing. Where one does not end as it should, `fastlane` and `atomic` do not
argue about its rows: those that may or may not be stored take the `Detour`, a window of their own
with one PubAck a row. It knows all about duplicates, refusals, pauses and deadlines, and nothing
else of the lane goes out before it is empty.

So a lane of batches keeps the order of its rows, with one exception, which it has in common with
every window: of rows that are on the detour together, the server may refuse one and take one behind
it, say when a leader is lost twice within seconds. `maxInFlight=1` excludes that.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..outbox.limits import Limit
from ..outbox.messages import Messages, sizes
from .asynclane import AsyncLane

__all__ = ["Backlog", "Detour", "batch_name", "unfit"]

_SERVED_LIMIT: Final = 10_000
"""Subjects a detour takes over as known to have a stream."""


_UNFIT: Final = b"Nats-Expected-Last-Msg-Id:"
"""A header line whose check a batch does not heed."""


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

    def cut(self, keep: int) -> list[Messages]:
        """The rows behind the first `keep`, these being of one offer, are somewhere else."""
        blocks, start = list(self._blocks), self._start + keep
        if not blocks:
            return []
        first = blocks[0].slice(start, len(blocks[0]) - start)
        self._blocks = deque([blocks[0].slice(self._start, keep)] if keep else [])
        self._start, self._rows = 0, keep
        return [each for each in (first, *blocks[1:]) if len(each)]


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
        limit: Limit,
        max_bytes: int,
        ack_timeout_s: float,
        publish_timeout_s: float,
        strict: bool = False,
        rejects: bool = False,
    ) -> None:
        super().__init__(
            f"{prefix}.{self.TOKEN.decode()}",
            limit,
            max_bytes,
            ack_timeout_s,
            publish_timeout_s,
            strict,
            rejects,
        )
        self._careful = 1  # no more on the wire than this

    def take(
        self, messages: Messages, served: bool, sent_before: int = 0, since: float = math.inf
    ) -> None:
        """
        Offers the rows, when those it had are stored.

        Args:
            served: whether the lane has stored anything, so that its subjects have a stream.
            sent_before: so many of the rows, the first ones, were sent in a batch…
            since: …at this time at the earliest: `publishTimeout` counts from then.
        """
        if served and len(self._served) < _SERVED_LIMIT:
            self._served.update(messages.distinct[:_SERVED_LIMIT])
        # The first row goes alone, then two, four…: what refuses it refuses nothing behind it, and
        # so the order holds. A leader that was re-elected may answer 10158 for a while to the very
        # rows that it lost.
        self._careful = 1
        if sent_before:
            times = [since] * sent_before + [None] * (len(messages) - sent_before)
            own = pa.array(times, pa.float64())
            sent = own if messages.sent is None else pc.min_element_wise(own, messages.sent)
            messages = replace(messages, sent=sent)
        self.offer(messages)

    @property
    def limit(self) -> int:
        """How many publishes may be on the wire now."""
        return min(self._careful, super().limit)

    def stored(self, ordinals: list[int], now: float, duplicates: bool = False) -> None:
        """The PubAcks of these ordinals came; each lets one more go."""
        before = self.acked
        super().stored(ordinals, now, duplicates)
        self._careful += self.acked - before

    def _pushed_back(self, now: float) -> None:
        super()._pushed_back(now)
        self._careful = max(1, self.limit // 2)


def batch_name(prefix: str, number: int) -> str:
    """
    An id for a batch, unlike any other lane's: inbox and lane end the prefix, an inbox is unique.

    The server takes 64 characters at most (ADR-50).
    """
    inbox, lane = prefix.split(".")[-2:]
    return f"{inbox}-{lane}-{number}"


def unfit(messages: Messages) -> bool:
    """
    Whether a row was sent before, or has a header that is not for a batch; or seems to, which is
    no harm.
    """
    if messages.was_sent:
        return True
    lines = messages.lines
    if lines is None:
        return False
    _, offsets, content = lines.buffers()
    bounds = memoryview(offsets).cast("i")
    start, end = bounds[lines.offset], bounds[lines.offset + len(lines)]
    return end > start and _UNFIT in content.slice(start, end - start).to_pybytes()
