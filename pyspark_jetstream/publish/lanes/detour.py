"""
The rows that a lane of batches has yet to store: some wait for a batch, some go one by one.

`BatchLane` is what `fastlane` and `atomiclane` share: one batch on its way at a time, rows behind
it in the `Backlog`. A batch is an optimistic thing. Where one does not end as it should, lanes do
not argue about its rows: those that may or may not be stored take the `OneByOne`, a window of their
own with one PubAck a row. It knows all about duplicates, refusals, pauses and deadlines, and
nothing else of the lane goes out before it is empty.

So a lane of batches keeps the order of its rows, with one exception, which it has in common with
every window: of rows that are on the detour together, the server may refuse one and take one behind
it, say when a leader is lost twice within seconds. `maxInFlight=1` excludes that.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import offsets
from ...outbox.messages import Messages, sizes
from .answers import Outcome
from .asynclane import AsyncLane
from .frames import Frames
from .lane import BROKEN, Doubted, LaneTerms, Tally, earliest

if TYPE_CHECKING:
    from .atomiclane import AtomicBatch
    from .fastbatch import FastBatch

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
        if count := len(messages):
            self._blocks.append(messages)
            self._rows += count

    def head(self, maximum: int, max_bytes: int, behind: int = 0) -> Messages:
        """
        The first rows `behind` so many: of one offer, with frames of `max_bytes` at most, but one
        row at least.

        They stay until they are dropped.
        """
        start = self._start + behind
        for block in self._blocks:
            if start < len(block):
                break
            start -= len(block)
        head = block.slice(start, maximum)
        while len(head) > 1 and pc.sum(sizes(head)).as_py() > max_bytes:
            head = head.slice(0, len(head) // 2)
        return head

    def first(self, count: int) -> Messages:
        """The first `count` rows, one at least."""
        return Messages.joined(self._parted(count)[0])

    def drop(self, count: int) -> None:
        """The first `count` rows are settled or somewhere else."""
        self._start += count
        self._rows -= count
        while self._blocks and self._start >= len(self._blocks[0]):
            self._start -= len(self._blocks.popleft())

    def cut(self, keep: int) -> list[Messages]:
        """The rows behind the first `keep` are somewhere else."""
        kept, cut = self._parted(keep)
        self._blocks, self._start = deque(kept), 0
        self._rows = min(keep, self._rows)
        return cut

    def _parted(self, count: int) -> tuple[list[Messages], list[Messages]]:
        """The first `count` rows, and those behind them."""
        first, rest, start = [], [], self._start
        for block in self._blocks:
            own = min(count, len(block) - start)
            if own:
                first.append(block.slice(start, own))
            if start + own < len(block):
                rest.append(block.slice(start + own))
            start, count = 0, count - own
        return first, rest


class OneByOne(AsyncLane):
    """
    Rows of a lane that go one by one.

    Args:
        prefix: the lane's; replies come on `<prefix>.<OneByOne.TOKEN>.<ordinal>`.
        tally: the lane's.
    """

    TOKEN: Final = b"one"

    def __init__(self, prefix: str, terms: LaneTerms, tally: Tally | None = None) -> None:
        super().__init__(f"{prefix}.{self.TOKEN.decode()}", terms, tally)
        self._careful = 1  # no more on the wire than this
        self._is_of_a_batch = False  # whether what it has was in a batch that failed

    def take(
        self,
        messages: Messages,
        served: bool,
        sent_before: int = 0,
        since: float = math.inf,
        unsure_since: float = -math.inf,
    ) -> None:
        """
        Offers the rows, when those it had are stored.

        Args:
            served: whether the lane has stored anything, so that its subjects have a stream.
            sent_before: so many of the rows, the first ones, were sent in a batch…
            since: …at this time at the earliest: `publishTimeout` counts from then.
            unsure_since: since then, if that is later, they may be stored; infinite for not.
        """
        if served:
            self._flight.serve(messages.distinct)
        # The first row goes alone, then two, four…: what refuses it refuses nothing behind it, and
        # so the order holds. A leader that was re-elected may answer 10158 for a while to the very
        # rows that it lost.
        self._careful = 1
        if sent_before:
            times = [since] * sent_before + [None] * (len(messages) - sent_before)
            own = pa.array(times, pa.float64())
            sent = own if messages.sent is None else pc.min_element_wise(own, messages.sent)
            unsure = pc.max_element_wise(own, unsure_since, skip_nulls=False)
            if messages.unsure is not None:
                unsure = pc.min_element_wise(unsure, messages.unsure)
            messages = replace(messages, sent=sent, unsure=pc.fill_null(unsure, math.inf))
        self._is_of_a_batch = sent_before > 0
        self.offer(messages)

    @property
    def is_frozen(self) -> bool:
        """Whether nothing new goes out until what was refused or lost is settled."""
        return super().is_frozen or (self._is_of_a_batch and self.busy)

    @property
    def limit(self) -> int:
        """Upper bound of the publishes on the wire now."""
        return min(self._careful, super().limit)

    def on_pubacks(self, ordinals: list[int], now: float, duplicates: bool = False) -> None:
        """The PubAcks of these ordinals came; each lets one more go."""
        before = self.tally.acked
        super().on_pubacks(ordinals, now, duplicates)
        self._careful += self.tally.acked - before

    def _pushed_back(self, now: float) -> None:
        super()._pushed_back(now)
        self._careful = max(1, self.limit // 2)


B = TypeVar("B", "FastBatch", "AtomicBatch")
"""Rows that are on their way together."""


class BatchLane(Generic[B]):
    """
    The batches of one task into one stream, one after the other; `AsyncLane` says what a member
    means.

    Args:
        prefix: `<inbox>.<lane>`; replies come on `<prefix>.>`.
    """

    def __init__(self, prefix: str, terms: LaneTerms) -> None:
        self.tally = Tally()
        """Counts of batches, and of the rows that go one by one."""
        self._prefix = prefix
        self.terms = terms
        self._backlog = Backlog()
        self._detour = OneByOne(prefix, terms, self.tally)
        self._batch: B | None = None
        self._batches = 0

    def __repr__(self) -> str:
        batch = "no batch" if self._batch is None else self._batch
        return (
            f"<{type(self).__name__} {batch}, {self.tally.acked} acked, one by one: {self._detour}>"
        )

    @abstractmethod
    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]: ...

    @abstractmethod
    def _next(self) -> tuple[Messages, B | None]:
        """The first rows of the backlog, and their batch; None when they have to go one by one."""

    @abstractmethod
    def _batch_frames(self, batch: B, now: float, max_bytes: int) -> Frames | None:
        """The next bytes of this batch that may be sent; None where there are none."""

    @abstractmethod
    def _on_batch_reply(
        self, batch: B, token: bytes, said: tuple[int, str, bytes], now: float
    ) -> None:
        """A reply came to this batch, or to one before: status, description and data."""

    def _ended(self, outcome: Outcome, rows: int) -> None:
        """A batch of so many rows ended with this PubAck, of the last one."""
        first = {outcome.stream: outcome.sequence - rows + 1}
        self.tally.stored_in = earliest((self.tally.stored_in, first))

    def _store(self, rows: int) -> None:
        """Counts more rows of the batch as stored: the first of the backlog."""
        self.tally.acked += rows
        self._backlog.drop(rows)

    @property
    def unanswered(self) -> int:
        batch = self._batch
        return self._detour.unanswered + (batch.sent - batch.acked if batch else 0)

    @property
    def limit(self) -> int:
        return self.terms.limit.value

    @property
    def is_midway(self) -> bool:
        return self._batch is not None and self._batch.is_midway

    @property
    def is_frozen(self) -> bool:
        return self._batch.is_frozen if self._batch is not None else self._detour.is_frozen

    @property
    def bytes_in_flight(self) -> int:
        return self._detour.bytes_in_flight + (self._batch.nbytes if self._batch else 0)

    @property
    def busy(self) -> bool:
        return self._detour.busy or self._batch is not None or len(self._backlog) > 0

    @property
    def wants_rows(self) -> bool:
        if self._batch is None:
            return self._detour.wants_rows and not self._backlog
        return self._batch.is_sent and len(self._backlog) == self._batch.size - self._batch.acked

    @property
    def give_up_at(self) -> float:
        if self._batch is None:
            return self._detour.give_up_at
        return self._batch.oldest + self.terms.deadlines.publish_timeout_s

    def offer(self, messages: Messages) -> None:
        self._backlog.append(messages)

    def frames_to_send(self, now: float, max_bytes: int) -> Frames | None:
        if self._batch is None and not self._detour.busy and self._backlog and max_bytes > 0:
            rows, self._batch = self._next()
            if self._batch is None:
                self._detour.take(rows, served=self.tally.acked > 0)
                self._backlog.drop(len(rows))
        if self._batch is None:
            return self._detour.frames_to_send(now, max_bytes)
        return self._batch_frames(self._batch, now, max_bytes)

    def on_reply(
        self, token: bytes, status: int, description: str, data: bytes, now: float
    ) -> None:
        kind, _, rest = token.partition(b".")
        if kind == OneByOne.TOKEN:
            self._detour.on_reply(rest, status, description, data, now)
        elif self._batch is not None:
            self._on_batch_reply(self._batch, token, (status, description, data), now)

    def settle(self, doubted: Doubted, is_stored: bool, now: float) -> None:
        self._detour.settle(doubted, is_stored, now)

    def on_disconnect(self, why: str = BROKEN) -> None:
        self._detour.on_disconnect(why)

    def has_paused(self, is_paused: Callable[[str], bool]) -> bool:
        return self.busy

    def expire(self, now: float) -> None:
        self._detour.expire(now)

    def next_deadline(self, now: float) -> float:
        return self._detour.next_deadline(now)

    def lower_times(self, forgets_s: float, publish_timeout_s: float) -> None:
        self._detour.lower_times(forgets_s, publish_timeout_s)


Lane: TypeAlias = AsyncLane | BatchLane[Any]
"""A way to publish the rows of one stream, or of all; one loop (`publisher`) drives any mix."""


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
    ends = offsets(lines)
    start, end = ends[0].as_py(), ends[-1].as_py()
    return end > start and _UNFIT in lines.buffers()[2].slice(start, end - start).to_pybytes()
