"""
Rows that wait for their subjects: for the end of a pause, or for a rate.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).

Rows of paused subjects lie here until somebody takes them all and asks again. Rows of subjects
under the same rates are a queue, of which as many go as these rates let: in order, a few at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from .messages import STORED_LESS
from .rowqueue import Block, RowQueue
from .throttling.keptrate import KeptRate
from .throttling.throttle import Throttle
from .throttling.throttleprotocol import Unit


class Late(NamedTuple):
    """The oldest rows of a paused subject, or under the same rates."""

    subject: str
    since: float
    """Arrival time of the first row."""
    sent: float | None
    """The earliest time at which one of the rows was sent; None if none was."""
    moved: float = -math.inf
    """The time when rows last left."""
    goes: float | None = None
    """The time when the next row may leave; None under a pause, whose end the throttle knows."""


class Held:
    """
    Args:
        by_subject: as in `RowQueue`.
        throttle: is told for which rates rows wait.
    """

    def __init__(self, by_subject: bool, throttle: Throttle) -> None:
        self._by_subject = by_subject
        self._throttle = throttle
        self._paused = RowQueue(by_subject)
        self._late: list[Late] = []
        self._since = math.inf  # of the first of the paused rows
        self._limited: dict[tuple[KeptRate, ...], RowQueue] = {}

    def __repr__(self) -> str:
        limited = ", ".join(f"{len(q)} of {paces}" for paces, q in self._limited.items())
        return f"<Held {len(self._paused)} paused; {limited or 'none limited'}>"

    def __len__(self) -> int:
        return len(self._paused) + sum(map(len, self._limited.values()))

    @property
    def nbytes(self) -> int:
        """The bytes of the rows."""
        return self._paused.nbytes + sum(queue.nbytes for queue in self._limited.values())

    def blocks(self) -> list[Block]:
        """All rows, block by block."""
        return [block for queue in self._queues() for block in queue.blocks()]

    @property
    def is_limited(self) -> bool:
        """Whether any row waits for a rate."""
        return bool(self._limited)

    def has_lapsed(self, now: float) -> bool:
        """Whether rows wait for a rate that nobody gives any more."""
        return any(pace.until <= now for paces in self._limited for pace in paces)

    @property
    def distinct(self) -> list[Sequence[str]]:
        """Subjects of the rows, of each block."""
        return [subjects for queue in self._queues() for subjects in queue.distinct]

    @property
    def waits_since(self) -> float:
        """Arrival time of the first row, or the time when rows under its rates last left."""
        limited = (max(queue.oldest(), _moved(paces)) for paces, queue in self._limited.items())
        return min(self._since, *limited, math.inf)

    def oldest_unsent(self) -> float:
        """Arrival time of the oldest row that was never sent."""
        return min(queue.oldest(unsent=True) for queue in self._queues())

    # ── in and out ───────────────────────────────────────────────────────────────────────────

    def pause(self, block: Block) -> None:
        """Takes rows of paused subjects."""
        messages = block.messages
        if len(messages):
            self._paused.append(block)
            self._since = min(self._since, pc.min(block.since).as_py())
            sent = pa.nulls(len(messages), pa.float64()) if messages.sent is None else messages.sent
            table = pa.table({"subject": messages.indices, "since": block.since, "sent": sent})
            groups = table.group_by("subject", use_threads=False)
            oldest = groups.aggregate([("since", "min"), ("sent", "min")])
            self._late += [
                Late(messages.distinct[each["subject"]], each["since_min"], each["sent_min"])
                for each in oldest.to_pylist()
            ]

    def limit(self, paces: tuple[KeptRate, ...], block: Block) -> None:
        """Takes rows that keep these rates, behind the others that do."""
        if len(block.messages):
            self._limited.setdefault(paces, RowQueue(self._by_subject)).append(block)

    def clear(self) -> list[Block]:
        """Lets go of all rows; here they are."""
        blocks = [block for queue in self._queues() for block in queue.clear()]
        self._late.clear()
        self._since = math.inf
        self._limited.clear()
        return blocks

    def release(self, maximum: int, now: float) -> list[Block]:
        """
        Rows whose rates, of which none has lapsed, let them go now, `maximum` at most; the throttle
        is told for which ones others wait.
        """
        released: list[Block] = []
        waiting: dict[KeptRate, Unit] = {}
        for paces, queue in list(self._limited.items()):
            rows = min([maximum, *(pace.room(*_size(queue), now) for pace in paces)])
            while rows > 0 and (block := queue.take(rows)) is not None:
                count = len(block.messages)
                for pace in paces:
                    pace.go(count, block.nbytes, now)
                released.append(block)
                rows, maximum = rows - count, maximum - count
            if not len(queue):
                del self._limited[paces]
            for pace in paces if len(queue) else ():
                if unit := pace.lacks(*_size(queue), now):
                    waiting[pace] = unit
        self._throttle.wait(waiting, now)
        return released

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def next_deadline(self, now: float) -> float:
        """The time of the next call of `release`; infinite if none is needed."""
        return min((_due(*limited, now) for limited in self._limited.items()), default=math.inf)

    def lately(self, now: float) -> Iterator[Late]:
        """Waiting times: of each paused subject, and of the rows under each rate."""
        yield from self._late
        for paces, queue in self._limited.items():
            due = _due(paces, queue, now)
            yield Late(queue.first_subject, queue.oldest(), None, _moved(paces), due)

    def _queues(self) -> list[RowQueue]:
        return [self._paused, *self._limited.values()]


def _moved(paces: tuple[KeptRate, ...]) -> float:
    return max(pace.released_at for pace in paces)


def _size(queue: RowQueue) -> tuple[int, float]:
    """Rows, and the mean of their bytes as a stream counts them."""
    rows = len(queue)
    return rows, max(1.0, queue.nbytes / max(1, rows) - STORED_LESS)


def _due(paces: tuple[KeptRate, ...], queue: RowQueue, now: float) -> float:
    lapses = min(pace.until for pace in paces)
    return min(lapses, max(pace.due(*_size(queue), now) for pace in paces))
