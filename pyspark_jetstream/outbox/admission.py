"""
Admission: the rows of a task that go next, those that wait, and, if asked for, those that are shed.

Rule 1: every decision about order among subjects, waiting for room, pauses and shedding is taken
here; what is on the wire is a lane's.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic), and if the window is full.
Rule 3: rows come and go in blocks. If nothing is paused and all rows are normal, a block goes as it
came; else a few kernels sort its rows. Python looks at no single row.

**Subjects.** All rows of one destination subject go first in, first out, always. A subject is free,
or *held*: paused by an operator, or refused by the server for want of room. Held rows lie in queues
of their own, until what is paused or refused changes.

**Order** (overload.md §7). Three queues, chained, of one capacity. A subject stands in the queue of
its most urgent row: a critical row drags the older rows of its own subject forward, and overtakes
all others. Behind its last critical row the subject is what its remaining rows are. Within a queue
subjects take turns. If all that waits may go at once, it goes as it came (A8). Strict priority
starves nobody: a micro-batch does not end before its last row is stored (A16).

**Capacity** (A9, A11, B18). Rows that wait for room have `queueSize` and a quarter of
`bufferMemory`; held ones have half of it, so that one paused subject does not fill the queue for
all. When either is full, `wants_rows` is false, and Spark's iterator waits. A block may exceed a
capacity; then the next one is not asked for.

**Overload** (A12) is a full queue, a full window *and* push-back within the last second. Without
push-back a full queue is a healthy batch: Spark's rows are there before anybody wants them. Under
overload, if the policy is not `block`, rows of the streams that push back make room: of the least
urgent sheddable priority, the newest first, by their own priority, never an inherited one (A13,
A14); critical rows never (I2). The others keep their order (A24). Held rows neither count nor are
they shed for it. What waits for a stream that stays full is given up with those that it refused
(`give_up`), if it may be shed.

**Accounts** (I1): offered + given back = taken + shed + waiting, at any time.

Numbers such as A8 are rules of docs/overload.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import places
from ..errors import QueueTimeoutError
from .messages import Messages, RowQueue, sizes
from .priority import PLACE_BITS, Priority
from .throttling.throttle import Throttle

QUEUE_ROWS: Final = 10_000
"""Default of `queueSize`: one Arrow batch of Spark's."""

OVERLOAD_WINDOW_S: Final = 1.0
"""Time after a push-back in which rows may be shed for it."""


class Leaving(NamedTuple):
    """Rows that leave the queue."""

    rows: Messages
    reason: str | None = None
    """
    Reason for shedding them: `MaxConcurrentRequests`, `MaxMemoryUsage`, or one of
    the timeouts; None where they are to be sent.
    """


@dataclass(frozen=True, slots=True)
class Rules:
    """Sizes and deadlines of a write's queue."""

    queue_size: int
    """Upper bound of the rows that wait for room."""
    queue_bytes: int
    held_bytes: int
    """Upper bound of the bytes of rows whose subjects are paused."""
    sheddable: frozenset[Priority]
    """Priorities that may be shed; none is `overloadPolicy=block`."""
    overload_window_s: float
    queue_timeout_s: float
    throttle_max_wait_s: float
    """A row whose subject an operator pauses fails after it."""
    buries_paused: bool
    """Whether a row that an operator pauses for too long is a dead letter, and fails nothing."""
    by_subject: bool
    """Whether rows of a subject keep their order; if not, each goes by its own priority."""


class Overload:
    """
    The streams that pushed back lately, and the rows that make room for others.

    It takes the server's push-back, for the stream of a row, to shed that row (A12). That a subject
    is paused, or is at its own limit, is none: it says nothing of the rows of others, and its own
    rows have a buffer of their own. What else counts is said of the whole writer: that it exceeds a
    limit of its connection, by an operator's word (B6).

    A stream is known by its place in `Targets`; those that are not known are one stream here, None.

    Args:
        sheddable: priorities that may be shed.
        window_s: how long after push-back rows may be shed for it.
        throttle: has operators' words about the connection.
    """

    def __init__(self, sheddable: frozenset[Priority], window_s: float, throttle: Throttle) -> None:
        self._sheddable = sheddable
        self._window_s = window_s
        self._throttle = throttle
        self._streams: dict[int | None, float] = {}

    def __repr__(self) -> str:
        return f"<Overload push-back of {len(self._streams)} streams>"

    def pushed_back(self, place: int | None, at: float) -> None:
        """
        The server refused something of this stream for its load or a limit, or did not answer.

        Args:
            at: when, or until when nothing of it is tried.
        """
        self._streams[place] = max(at, self._streams.get(place, at))

    def is_felt(self, now: float) -> bool:
        """Whether anything pushes back, whatever rows that is about, and some may be shed."""
        lately = bool(self._streams) and self._is_late(max(self._streams.values()), now)
        return bool(self._sheddable and (lately or self._throttle.table.informed))

    def may_go(self, messages: Messages) -> pa.Array:
        """BOOL: which are of a priority that may be shed."""
        return pc.is_in(messages.urgency, pa.array(sorted(self._sheddable), pa.int8()))

    def to_give_up(self, messages: Messages, late: Messages, now: float) -> pa.Array:
        """BOOL: which may go, of streams that push back and have done so to one that is late."""
        may, late_may = (
            pc.and_(self.may_go(each), self._pressed(each, now)) for each in (messages, late)
        )
        streams = messages.row_targets
        return pc.and_(may, pc.is_in(streams, late.row_targets.filter(late_may)))

    def to_go(self, messages: Messages, over: tuple[int, int], now: float) -> pa.Array:
        """
        BOOL: which make room (A13, A14).

        Args:
            over: how many rows and bytes there are too many.
        """
        may = pc.and_(self.may_go(messages), self._pressed(messages, now))
        # The least urgent first, of those the newest.
        here = places(len(messages))
        keys = pc.add(pc.shift_left(messages.urgency.cast(pa.int64()), PLACE_BITS), here)
        order = here.filter(may).take(pc.array_sort_indices(keys.filter(may), order="descending"))
        freed = pc.cumulative_sum(sizes(messages).take(order))
        over_rows, over_bytes = over
        count = max(0, over_rows)
        if over_bytes > 0:
            count = max(count, 1 + (pc.sum(pc.less(freed, over_bytes)).as_py() or 0))
        return pc.is_in(here, order.slice(0, count))

    def _pressed(self, messages: Messages, now: float) -> pa.Array:
        """BOOL: which are of a stream that pushes back."""
        if self._throttle.table.informed:
            return pa.repeat(True, len(messages))
        late = {place for place, at in self._streams.items() if self._is_late(at, now)}
        known = pa.array([place for place in late if place is not None], pa.int32())
        pressed = pc.is_in(messages.targets, known)
        if None in late:
            pressed = pc.or_(pressed, pc.is_null(messages.targets))
        return pressed.take(messages.indices)

    def _is_late(self, at: float, now: float) -> bool:
        return now - at <= self._window_s


class Admission:
    """
    The rows of one task between Spark's iterator and the wire.

    Args:
        throttle: says which subjects are paused.
    """

    def __init__(self, rules: Rules, throttle: Throttle) -> None:
        self.offered = 0
        self._rules = rules
        self._throttle = throttle
        self._queue = RowQueue(rules.by_subject)
        self._paused = RowQueue(rules.by_subject)
        """Rows of subjects that operators pause."""
        self._refused = RowQueue(rules.by_subject)
        """Rows of subjects that only the server refuses."""
        self._queues = self._queue, self._paused, self._refused
        self._seen = (-1, math.inf), (-1, math.inf)
        """Of pauses and of refusals the version that rows are held by, and until when it is so."""
        self._look_at = math.inf
        """No paused row has waited for as long as it may before."""
        self.overload = Overload(rules.sheddable, rules.overload_window_s, throttle)
        """Is told of push-back."""
        self._latest: Sequence[str] = ()  # subjects of the rows taken last

    def __repr__(self) -> str:
        return f"<Admission {len(self._queue)} queued; {self.waiting - len(self._queue)} held>"

    @property
    def waiting(self) -> int:
        """Number of rows in the queue, held rows included."""
        return sum(map(len, self._queues))

    def messages(self) -> list[Messages]:
        """The rows that wait, block by block."""
        return [block for queue in self._queues for block in queue.blocks()]

    @property
    def lately(self) -> list[Sequence[str]]:
        """Subjects of the rows taken last, and of those that are here."""
        return [self._latest, *(names for queue in self._queues for names in queue.distinct)]

    # ── in ───────────────────────────────────────────────────────────────────────────────────

    def wants_rows(self, now: float, is_window_full: bool, held_bytes: int = 0) -> bool:
        """
        Whether the next block may come; if not, Spark's iterator waits.

        Args:
            held_bytes: of rows that their lane holds.
        """
        held_bytes += self._paused.nbytes + self._refused.nbytes
        if held_bytes >= self._rules.held_bytes:
            return False
        if max(self._over) < 0:
            return True
        # What would come could take the place of less urgent rows, or make room itself.
        is_over = max(self._over) > 0
        return not is_over and self._is_felt(now, is_window_full)

    def offer(self, messages: Messages, now: float, is_window_full: bool) -> list[Leaving]:
        """
        Takes the rows that follow those offered before.

        Args:
            is_window_full: whether their lane has more to send than it may.

        Returns:
            Rows, of these or of those that wait, that must make room.
        """
        self.offered += len(messages)
        self._queue_anew(now)
        messages = replace(messages, since=pa.repeat(now, len(messages)))
        self._queue_or_hold(messages, now)
        return self._make_room(now, is_window_full)

    def give_back(self, messages: Messages, now: float) -> None:
        """
        Takes rows back that were not sent, in any order. They go before all later ones of their
        subjects.
        """
        messages = messages.take(pc.sort_indices(messages.rows))
        self._queue_anew(now)
        self._queue_or_hold(messages, now)
        if len(self._queue):
            self._queue.merged()

    def _queue_or_hold(self, block: Messages, now: float) -> None:
        """Rows of paused and of refused subjects are held, the others wait for room."""
        for source, queue in (
            (self._throttle.table, self._paused),
            (self._throttle.refusals, self._refused),
        ):
            held = source.mask(pa.array(block.distinct, pa.string()), now)
            if held is not None:
                own = held.take(block.indices)
                queue.append(block.where(own))
                block = block.where(pc.invert(own))
                until = self._paused.oldest + self._rules.throttle_max_wait_s
                self._look_at = min(self._look_at, until)
        self._queue.append(block)

    def _queue_anew(self, now: float) -> None:
        """Queues or holds rows anew if what is paused or refused has changed, and none if not."""
        table, refusals = self._throttle.table, self._throttle.refusals
        of_pauses, of_refusals = self._seen
        pauses = of_pauses[0] != table.version or now >= of_pauses[1]
        refused = of_refusals[0] != refusals.version or now >= of_refusals[1]
        if not pauses and not refused:
            return
        blocks = self._paused.clear() if pauses else []
        blocks += self._refused.clear()
        if blocks or self._throttle.active(now):
            for block in blocks:
                self._queue.append(block)
            if len(self._queue):
                self._queue.merged()
            for block in self._queue.clear():
                self._queue_or_hold(block, now)
        ends = table.next_end(now), refusals.next_end(now)
        self._seen = (table.version, ends[0]), (refusals.version, ends[1])

    # ── out ──────────────────────────────────────────────────────────────────────────────────

    def take(self, maximum: int, now: float) -> Messages | None:
        """The rows to send next, in order, `maximum` at most; None when there are none."""
        self._queue_anew(now)
        taken = self._queue.take(maximum)
        if taken is not None:
            self._latest = taken.distinct
        return taken

    @property
    def is_plain(self) -> bool:
        """Whether rows go as they came, and may go whatever waits behind them."""
        may_leave = self._rules.sheddable or self._rules.queue_timeout_s < math.inf
        return not may_leave and self._queue.is_plain

    # ── overload ─────────────────────────────────────────────────────────────────────────────

    @property
    def _over(self) -> tuple[int, int]:
        """How many rows and bytes there are above the capacity; a full queue has 0 of one."""
        rules = self._rules
        return len(self._queue) - rules.queue_size, self._queue.nbytes - rules.queue_bytes

    def _is_felt(self, now: float, is_window_full: bool) -> bool:
        """Whether queue and window are full and something pushed back of late (A12)."""
        return is_window_full and max(self._over) >= 0 and self.overload.is_felt(now)

    def _make_room(self, now: float, is_window_full: bool) -> list[Leaving]:
        """Under overload sheds what is above the capacity, as far as it may be (A13, A14)."""
        over = self._over
        if max(over) <= 0 or not len(self._queue) or not self._is_felt(now, is_window_full):
            return []
        messages = self._queue.remove(self.overload.to_go(self._queue.merged(), over, now))
        reason = "MaxConcurrentRequests" if over[0] > 0 else "MaxMemoryUsage"
        return [Leaving(messages, reason)] if len(messages) else []

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float, is_window_full: bool = False) -> list[Leaving]:
        """
        Sheds rows that have waited too long, or fails the task.

        Returns:
            Rows above the capacity, under overload; rows that waited longer than `queueTimeout` and
            may be shed (A15); rows that were paused for too long (`onThrottleTimeout=dead-letter`).

        Raises:
            QueueTimeoutError: A row waited longer and may not.
            ProducerThrottledError: A row's subject is paused for longer than it may wait (B14).
        """
        if not self.waiting:
            return []
        shed = self._check_held(now) + self._make_room(now, is_window_full)
        before = now - self._rules.queue_timeout_s
        if math.isinf(before) or not self.waiting or self._oldest > before:
            return shed
        block = self._all()
        late = pc.less_equal(block.since, before)
        kept = pc.and_not(late, self.overload.may_go(block))
        if pc.any(kept).as_py():
            place = pc.index(kept, True).as_py()
            raise QueueTimeoutError(
                block.distinct[block.codes[place]],
                f"row {block.rows[place].as_py()}: not sent within queueTimeout,"
                f" {now - block.since[place].as_py():.1f}s after it was there",
            )
        shed.append(Leaving(self._queue.remove(late), "QueueTimeout"))
        self._queue_anew(now)
        return shed

    def give_up(self, late: Messages, now: float) -> Messages:
        """
        Takes out what waits for streams that push back, if it may be shed (A13).

        Args:
            late: rows that these have refused for most of their time.
        """
        if not self.waiting:
            return late.slice(0, 0)
        found = self._queue.remove(self.overload.to_give_up(self._all(), late, now))
        self._queue_anew(now)
        return found

    def next_deadline(self, now: float) -> float:
        """Next time to call `take` and `expire` if nothing happens; infinite when never."""
        if not self.waiting:
            return math.inf
        deadlines = [self._throttle.next_deadline(now)]
        if len(self._paused):
            deadlines.append(max(now, self._look_at))
        if self._rules.queue_timeout_s < math.inf:
            late_at = self._oldest + self._rules.queue_timeout_s
            deadlines += [late_at] if late_at > now else []
        return min(deadlines)

    @property
    def _oldest(self) -> float:
        """Arrival time of the oldest row."""
        return min(queue.oldest for queue in self._queues)

    def _all(self) -> Messages:
        """All rows that wait, held or not, in the queue until they are sorted."""
        for held in [*self._paused.clear(), *self._refused.clear()]:
            self._queue.append(held)
        self._seen = (-1, -math.inf), (-1, -math.inf)
        return self._queue.merged()

    def _check_held(self, now: float) -> list[Leaving]:
        """
        Fails the task if a paused row has waited for as long as it may (B14), or gives it up
        (`onThrottleTimeout=dead-letter`). No row is looked at before that can be.
        """
        self._queue_anew(now)
        if now < self._look_at or not len(self._paused):
            return []
        block, wait_s = self._paused.merged(), self._rules.throttle_max_wait_s
        paused = self._throttle.table.since(pa.array(block.distinct, pa.string()), now)
        ends = pc.add(pc.max_element_wise(block.since, paused.take(block.indices)), wait_s)
        late = pc.less_equal(ends, now)
        self._look_at = pc.min(ends.filter(pc.invert(late))).as_py() or math.inf
        if not pc.any(late).as_py():
            return []
        if not self._rules.buries_paused:
            place = pc.index(late, True).as_py()
            subject, since = block.distinct[block.codes[place]], block.since[place].as_py()
            raise self._throttle.timed_out(subject, since, now)
        return [Leaving(self._paused.remove(late), "ThrottleTimeout")]
