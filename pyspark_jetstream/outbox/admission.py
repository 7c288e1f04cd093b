"""
Which rows of a task go next, which wait, and which, if asked for, are shed.

Rule 1: every decision about order among subjects, waiting for room, pauses and shedding is taken
here; what is on the wire is a window's or a batch's.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic), and how many publishes are on
the wire of how many.
Rule 3: rows come and go in blocks. Where nothing is paused and all are normal a block goes as it
came; else it is sorted by a few kernels over its rows. No row is looked at by Python.

**Lanes.** All rows of one destination subject are a *lane*, first in, first out, always. A lane is
free, or *parked*: paused by the throttle.

**Order** (overload.md §7). Three queues, chained, of one capacity. A lane stands in the queue of
its most urgent row: a critical row drags the older rows of its own lane forward, and overtakes all
other lanes. Behind its last critical row the lane is what its remaining rows are. Within a queue
lanes take turns. If all that waits may go at once, it goes as it came (A8). Strict priority starves
nobody: a micro-batch does not end before its last row is stored (A16).

**Capacity** (A9, A11, B18). Rows that wait for room have `queueSize` and `queueBytes`; parked ones
have `throttleBufferBytes`, so that one paused subject does not fill the queue for all. What is full
makes `wants_rows` false, so Spark's iterator waits. A block may exceed a capacity, the next is not
asked for.

**Overload** (A12) is a full queue, a full window *and* push-back within `overloadWindow`. Without
push-back a full queue is a healthy batch: Spark's rows are there before anybody wants them. Under
overload, if the policy is not `block`, rows of the streams that push back make room: of the least
urgent sheddable priority, the newest first, by their own priority, never an inherited one (A13,
A14); critical rows never (I2). The others keep their order (A24). `overload` has all of it. Parked
rows neither count nor are they shed for it.

**Accounts** (I1): offered + given back = taken + shed + waiting, at any time.

Numbers such as A8 are rules of docs/overload.md.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import places as all_places
from ..arrays import view
from ..errors import ProducerThrottledError, PublishTimeoutError, QueueTimeoutError
from .messages import Messages, sizes
from .order import in_order, oldest_of_lanes
from .overload import Overload, priorities_of
from .priority import Priority
from .throttle import Source, Throttle

__all__ = ["AUTO_ROWS", "Admission", "Load", "Rules", "Shed", "queue_rows"]

AUTO_ROWS: Final = 10_000
"""`queueSize=auto`: one Arrow batch of Spark's."""

_MIN_ROWS: Final = 20
"""The smallest queue (overload.md A11), as in Farfetch's LoadShedding library."""
_CHECK_S: Final = 0.1
"""How often pauses are looked at for rows that wait too long."""

_OFFERS: Final = 4096
"""Blocks of which it is remembered when they came; what is given back is of the latest."""


class Load(NamedTuple):
    """What is on the wire."""

    in_flight: int
    limit: int


class Shed(NamedTuple):
    """Rows that do not go where they should, and what is to be done with them is the caller's."""

    messages: Messages
    reason: str
    """`MaxConcurrentRequests`, `MaxMemoryUsage`, `MaxCpuUsage` or `QueueTimeout`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a write allows."""

    queue_size: int | str
    """Rows that wait: a number, `auto`, or `sqrt` of the limit of publishes on the wire."""
    queue_bytes: int
    parked_bytes: int
    """How many bytes of paused subjects may wait (`throttleBufferBytes`)."""
    sheddable: frozenset[Priority]
    """Priorities that may be shed; none is `overloadPolicy=block`."""
    overload_window_s: float
    queue_timeout_s: float
    publish_timeout_s: float
    """A row that the server keeps refusing for a limit fails after it."""
    throttle_max_wait_s: float
    """A row whose subject an operator pauses fails after it."""
    by_lane: bool
    """Whether rows of a lane keep their order; if not, each goes by its own priority."""
    fail_fast: bool
    """
    Whether such a row has only `publish_timeout_s`, and fails at once if the pause is longer
    (`throttleMode`).
    """

    def __post_init__(self) -> None:
        if Priority.CRITICAL in self.sheddable:
            raise ValueError("critical rows are never shed")


def queue_rows(queue_size: int | str, limit: int) -> int:
    """How many rows may wait, 20 at least (A11)."""
    if queue_size == "auto":
        return AUTO_ROWS
    if queue_size == "sqrt":
        return max(_MIN_ROWS, math.ceil(math.sqrt(limit)))
    return max(_MIN_ROWS, int(queue_size))


class _Block(NamedTuple):
    """Rows that wait, in the order of their numbers."""

    messages: Messages
    since: pa.Array
    """DOUBLE: when each was offered, or first sent."""
    sizes: pa.Array
    """INT64: about their bytes."""

    def take(self, places: pa.Array) -> _Block:
        return _Block(*(column.take(places) for column in self))

    def slice(self, start: int, count: int) -> _Block:
        return _Block(*(column.slice(start, count) for column in self))

    def where(self, mask: pa.Array) -> _Block:
        return _Block(self.messages.where(mask), self.since.filter(mask), self.sizes.filter(mask))


class Admission:
    """
    The rows of one task between Spark's iterator and the wire.

    Args:
        throttle: says which subjects are paused.
    """

    def __init__(self, rules: Rules, throttle: Throttle) -> None:
        self.offered = 0
        self.taken = 0
        self.shed = 0
        self.since = pa.array([], pa.float64())
        """Of the rows taken last: when each was offered, or first sent."""
        self._rules = rules
        self._throttle = throttle
        self._blocks: deque[_Block] = deque()
        # Places of the first block whose rows are here still: all of them if both are None.
        self._left: pa.Array | None = None  # in the order of arrival
        self._next: pa.Array | None = None  # in the order of sending; known while nothing changes
        self._aside: list[_Block] = []  # rows of paused subjects
        self._lanes_aside: list[tuple[str, float, float | None]] = []  # of each: since, sent
        self._aside_since = math.inf  # of the first of these rows
        self._sorted = (-1, math.inf)  # the throttle's turn by which they are, and until when
        self._checked_at = -math.inf
        self._queued = (0, 0)  # rows and bytes that wait for room
        self._parked = (0, 0)  # rows and bytes of paused subjects
        self._offers: deque[tuple[int, float]] = deque(maxlen=_OFFERS)  # last row, when
        self._overload = Overload(rules.sheddable, rules.overload_window_s, throttle)
        self.pushed_back = self._overload.pushed_back
        self.busy = self._overload.busy
        self._latest: Iterable[str] = ()  # subjects of the rows taken last

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {priority.label}" for priority, count in self.counts().items())
        return f"<Admission {counts}; {self._parked[0]} parked; {self.shed} shed>"

    @property
    def is_parked_full(self) -> bool:
        """Whether paused rows are what keeps others from coming."""
        return self._parked[1] >= self._rules.parked_bytes

    @property
    def waiting(self) -> int:
        """How many rows wait, those of paused subjects among them."""
        return self._queued[0] + self._parked[0]

    def counts(self) -> dict[Priority, int]:
        """Rows that are here by their own priority (A28)."""
        counts = dict.fromkeys(Priority, 0)
        for messages in self.messages():
            for entry in pc.value_counts(priorities_of(messages)).to_pylist():
                counts[Priority(entry["values"])] += entry["counts"]
        return counts

    def messages(self) -> list[Messages]:
        """The rows that wait, block by block."""
        self._compact()
        return [block.messages for block in (*self._blocks, *self._aside)]

    def is_throttled(self, now: float, subject: str | None = None) -> bool:
        """Whether this subject is paused; without one, whether any of the task's latest is."""
        if subject is not None:
            return self._throttle.is_throttled([subject], now)
        return any(self._throttle.is_throttled(subjects, now) for subjects in self.lately)

    @property
    def lately(self) -> list[Iterable[str]]:
        """Subjects of the rows taken last, and of those that are here."""
        blocks = (*self._blocks, *self._aside)
        return [self._latest, *(block.messages.distinct for block in blocks)]

    # ── in ───────────────────────────────────────────────────────────────────────────────────

    def wants_rows(self, now: float, load: Load) -> bool:
        """Whether the next block may come; if not, Spark's iterator waits."""
        if self.is_parked_full:
            return False
        if not self._is_full(load):
            return True
        # What would come could take the place of less urgent rows, or make room itself.
        rows = queue_rows(self._rules.queue_size, load.limit)
        over = self._queued[0] > rows or self._queued[1] > self._rules.queue_bytes
        return bool(self._rules.sheddable) and not over and self._is_overloaded(now, load)

    def offer(self, messages: Messages, now: float, load: Load) -> list[Shed]:
        """
        Takes the rows that follow those offered before.

        Returns:
            Rows, of these or of those that wait, that must make room.
        """
        self.offered += len(messages)
        if len(messages):
            self._offers.append((messages.rows[-1].as_py(), now))
        self._sort(now)
        self._append(messages, pa.repeat(now, len(messages)), now)
        self._account()
        if self._rules.sheddable and self._is_overloaded(now, load):
            return self._make_room(now, load)
        return []

    def give_back(self, messages: Messages, now: float) -> None:
        """
        Takes rows back, in any order: such as were not sent, or were and have to wait because their
        subject is paused. They go before all later ones of their lanes.
        """
        messages = messages.take(pc.sort_indices(messages.rows))
        self._sort(now)
        self._append(messages, self._since(messages), now)
        if self._blocks:
            self._merge()
        self._account()

    def _since(self, messages: Messages) -> pa.Array:
        """DOUBLE: when each, in the order of the rows, was first sent, or offered if never sent."""
        rows = view(messages.rows)
        known: list[float] = []
        for end, at in self._offers:
            known += [at] * (bisect.bisect_right(rows, end, len(known), len(messages)) - len(known))
        known += [self._offers[-1][1]] * (len(messages) - len(known))
        times = pa.array(known, pa.float64())
        return times if messages.sent is None else pc.coalesce(messages.sent, times)

    def _append(self, messages: Messages, since: pa.Array, now: float) -> None:
        self._settle()
        if len(messages):
            self._part(_Block(messages, since, sizes(messages)), now)

    def _part(self, block: _Block, now: float) -> None:
        """Rows of paused subjects go aside, the others wait for room."""
        held = self._throttle.paused(pa.array(block.messages.distinct, pa.string()), now)
        if held is not None:
            own = held.take(block.messages.indices)
            aside = block.where(own)
            if len(aside.messages):
                self._aside.append(aside)
                self._lanes_aside += oldest_of_lanes(aside.messages, aside.since)
                self._aside_since = min(self._aside_since, pc.min(aside.since).as_py())
            block = block.where(pc.invert(own))
        if len(block.messages):
            self._blocks.append(block)

    def _sort(self, now: float) -> None:
        """Looks at every row again if what is paused has changed, and at none if not."""
        turn, until = self._sorted
        active = self._throttle.active(now)
        if turn == self._throttle.turn and now < until:
            return
        if active or self._aside:
            self._compact()
            if self._aside:
                self._blocks.extend(self._aside)
                self._merge()
            blocks, self._blocks = self._blocks, deque()
            self._aside, self._lanes_aside, self._aside_since = [], [], math.inf
            for block in blocks:
                self._part(block, now)
            self._account()
        self._sorted = self._throttle.turn, self._throttle.next_deadline(now)

    # ── out ──────────────────────────────────────────────────────────────────────────────────

    def take(self, maximum: int, now: float) -> Messages | None:
        """The rows to send next, in order, `most` at most; None when there are none."""
        self._sort(now)
        if not self._blocks or maximum <= 0:
            return None
        if self._next is not None:
            block = self._take_next(self._next, maximum)
        elif self._is_ordered:
            block = self._take_plain(maximum)
        else:
            block = self._take_next(self._order(maximum), maximum)
        messages, self.since = block.messages, block.since
        self.taken += len(messages)
        self._latest = messages.distinct
        self._account()
        return messages

    @property
    def is_plain(self) -> bool:
        """Whether rows go as they came, and may go whatever waits behind them."""
        rules = self._rules
        if rules.sheddable or rules.queue_timeout_s < math.inf:
            return False
        return self._is_ordered

    @property
    def _is_ordered(self) -> bool:
        return all(block.messages.priorities is None for block in self._blocks)

    def _take_plain(self, maximum: int) -> _Block:
        self._compact()
        block = self._blocks.popleft()
        count = len(block.messages)
        if count <= maximum:
            return block
        self._blocks.appendleft(block.slice(maximum, count - maximum))
        return block.slice(0, maximum)

    def _take_next(self, places: pa.Array, maximum: int) -> _Block:
        """The first of the rows that are here, these being all in the order of sending."""
        block = self._merge().take(places.slice(0, maximum))
        self._left, self._next = None, places.slice(maximum)
        if not len(self._next):
            self._next = None
            self._blocks.clear()
        return block

    def _settle(self) -> None:
        """Something changes: the order of sending is not known any more."""
        if self._next is not None:
            self._left, self._next = self._next.take(pc.sort_indices(self._next)), None

    def _compact(self) -> None:
        """Lets go of rows that are taken."""
        self._settle()
        if self._left is not None:
            self._blocks[0] = self._blocks[0].take(self._left)
            self._left = None

    def _merge(self) -> _Block:
        """All that waits as one block in the order of the row numbers, some of them taken."""
        if len(self._blocks) > 1:
            self._compact()
            block = _Block(
                Messages.joined([part.messages for part in self._blocks]),
                pa.concat_arrays([part.since for part in self._blocks]),
                pa.concat_arrays([part.sizes for part in self._blocks]),
            )
            rows = block.messages.rows
            if pc.any(pc.less(rows.slice(1), rows.slice(0, len(rows) - 1))).as_py():
                block = block.take(pc.sort_indices(rows))
            self._blocks = deque([block])
        return self._blocks[0]

    def _places(self) -> pa.Array:
        """Those of the merged block whose rows are here, in the order of arrival."""
        self._settle()
        return all_places(len(self._merge().messages)) if self._left is None else self._left

    def _remove(self, places: pa.Array) -> _Block:
        """The rows in these places of the merged block; the others stay."""
        block = self._merge()
        here = self._places()
        self._left = here.filter(pc.invert(pc.is_in(here, places)))
        if not len(self._left):
            self._left = None
            self._blocks.clear()
        elif 2 * len(self._left) < len(block.messages):
            self._compact()
        return block.take(places)

    def _order(self, maximum: int) -> pa.Array:
        """The places of the rows that wait for room, in the order in which they go."""
        messages, places = self._merge().messages, self._places()
        if messages.priorities is None or len(places) <= maximum:
            return places
        return in_order(messages, places, self._rules.by_lane)

    def _account(self) -> None:
        rows = nbytes = 0
        for block, left in zip(self._blocks, self._lefts(), strict=False):
            block_sizes = block.sizes if left is None else block.sizes.take(left)
            rows += len(block_sizes)
            nbytes += pc.sum(block_sizes).as_py() or 0
        self._queued = rows, nbytes
        held = [part.sizes for part in self._aside]
        self._parked = (
            sum(map(len, held)),
            sum(pc.sum(part_sizes).as_py() or 0 for part_sizes in held),
        )

    def _lefts(self) -> Iterator[pa.Array | None]:
        """The places that are left, of each block; None for all."""
        yield self._left if self._next is None else self._next
        yield from repeat(None)

    # ── overload ─────────────────────────────────────────────────────────────────────────────

    def _is_full(self, load: Load) -> bool:
        rows, nbytes = self._queued
        full = rows >= queue_rows(self._rules.queue_size, load.limit)
        return full or nbytes >= self._rules.queue_bytes

    def _is_overloaded(self, now: float, load: Load) -> bool:
        """Whether queue and window are full and something pushed back of late (A12)."""
        is_full = load.in_flight >= load.limit and self._is_full(load)
        return is_full and self._overload.is_felt(now)

    def _make_room(self, now: float, load: Load) -> list[Shed]:
        """Sheds what is above the capacity, as far as it may be shed (A13, A14)."""
        rows, nbytes = self._queued
        over_rows = rows - queue_rows(self._rules.queue_size, load.limit)
        over = over_rows, nbytes - self._rules.queue_bytes
        if max(over) <= 0 or not self._blocks:
            return []
        block = self._merge()
        places = self._overload.to_go(block.messages, block.sizes, self._places(), over, now)
        messages = self._shed(places)
        if messages is None:
            return []
        by_reason = self._overload.by_reason(messages, over_rows > 0, now)
        return [Shed(part, reason) for part, reason in by_reason]

    def _shed(self, places: pa.Array) -> Messages | None:
        """The rows in these places of the merged block leave; None if that is none."""
        if not len(places):
            return None
        # In the order of the rows, as what goes elsewhere has an order, too.
        messages = self._remove(places.take(pc.sort_indices(places))).messages
        self.shed += len(messages)
        self._account()
        return messages

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float, load: Load | None = None) -> list[Shed]:
        """
        Time passes.

        Args:
            load: if there is an overload, rows above the capacity make room now.

        Returns:
            Those, and rows that waited longer than `queueTimeout` and may be shed (A15). A row that
            was sent has `publishTimeout` instead.

        Raises:
            QueueTimeoutError: A row waited longer and may not.
            ProducerThrottledError: A row's subject is paused for longer than it may wait (B14).
        """
        if not self._blocks and not self._aside:
            return []
        self._check_pauses(now)
        shed: list[Shed] = []
        if load is not None and self._rules.sheddable and self._is_overloaded(now, load):
            shed = self._make_room(now, load)
        before = now - self._rules.queue_timeout_s
        if math.isinf(before) or not self.waiting or self._oldest_unsent() > before:
            return shed
        self._compact()
        self._blocks.extend(self._aside)  # they wait, too
        self._aside, self._lanes_aside, self._aside_since = [], [], math.inf
        self._sorted = -1, -math.inf
        block = self._merge()
        places = self._places()
        places = places.filter(pc.less_equal(_unsent(block).take(places), before))
        kept = pc.invert(self._overload.may_go(block.messages).take(places))
        if pc.any(kept).as_py():
            place = places[pc.index(kept, True).as_py()].as_py()
            raise QueueTimeoutError(
                _subject(block.messages, place),
                f"row {block.messages.rows[place].as_py()}: not sent within queueTimeout,"
                f" {now - block.since[place].as_py():.1f}s after it was there",
            )
        if (messages := self._shed(places)) is not None:
            shed.append(Shed(messages, "QueueTimeout"))
        self._sort(now)
        return shed

    def next_deadline(self, now: float) -> float:
        """When to call `take` and `expire` again if nothing happens; infinite when never."""
        if not self._blocks and not self._aside:
            return math.inf
        rules = self._rules
        deadlines = []
        if rules.queue_timeout_s < math.inf:
            deadlines.append(self._oldest_unsent() + rules.queue_timeout_s)
        waits = rules.publish_timeout_s, rules.throttle_max_wait_s
        deadlines += [self._aside_since + wait for wait in waits]
        later = [deadline for deadline in deadlines if deadline > now]
        return min(self._throttle.next_deadline(now), *later, math.inf)

    def _oldest_unsent(self) -> float:
        """When the first of the rows came that were never sent."""
        waits = zip(map(_unsent, self._blocks), self._lefts(), strict=False)
        times = [moments if left is None else moments.take(left) for moments, left in waits]
        times += map(_unsent, self._aside)
        return float(min(pc.min(moments).as_py() for moments in times))

    def _check_pauses(self, now: float) -> None:
        """Fails the task if a paused row has waited for as long as it may (B14, B15)."""
        turn = self._sorted
        self._sort(now)
        if turn == self._sorted and now - self._checked_at < _CHECK_S:
            return
        self._checked_at = now
        for subject, since, sent in self._lanes_aside:
            self._check_pause(subject, since, sent, now)

    def _check_pause(self, subject: str, since: float, sent: float | None, now: float) -> None:
        rules, pause = self._rules, self._throttle.state(subject, now, (Source.OPERATOR,))
        short = rules.fail_fast or pause is None
        if pause is None:
            pause = self._throttle.state(subject, now)
            if not rules.fail_fast:
                # For how long rows of it waited for room says nothing of its pauses.
                since = now if sent is None else sent
        if pause is None:
            return
        give_up_at = since + (rules.publish_timeout_s if short else rules.throttle_max_wait_s)
        # A producer that cannot send in time fails before it queues (B14).
        if now < give_up_at and not (rules.fail_fast and pause.until > give_up_at):
            return
        error = self._throttle.error(subject, since, now)
        if error is None and now < give_up_at:
            throttled_s = self._throttle.throttled_s(subject, since, now)
            error = ProducerThrottledError(
                subject, pause.reason.name, pause.filter, throttled_s, pause.request_id
            )
        raise error or PublishTimeoutError(
            subject, f"waited {now - since:.1f}s, paused at last by {pause.reason.name}"
        )


def _unsent(block: _Block) -> pa.Array:
    """DOUBLE: when each was offered; infinite for what was sent, and so may be stored."""
    sent = block.messages.sent
    return block.since if sent is None else pc.if_else(pc.is_null(sent), block.since, math.inf)


# ── arrays ───────────────────────────────────────────────────────────────────────────────────


def _subject(messages: Messages, place: int) -> str:
    return messages.distinct[messages.codes[place]]
