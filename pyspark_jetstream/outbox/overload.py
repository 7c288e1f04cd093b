"""
Overload: the streams that pushed back lately, and the rows that make room for others.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).
Rule 2: it takes the server's push-back, for the stream of a row, to shed that row (A12). That a
subject is paused, or is at its own limit, is none: it says nothing of the rows of others, and its
own rows have a buffer of their own. What else counts is said of the whole writer: that it exceeds a
limit of its connection, by an operator's word (B6).

A stream is known by its place in `Targets`; those that are not known are one stream here, None.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import places
from .messages import Messages, sizes
from .priority import Priority
from .rowqueue import PLACE_BITS
from .throttling.throttle import Throttle

OVERLOAD_WINDOW_S: Final = 1.0
"""Time after a push-back in which rows may be shed for it."""


class Overload:
    """
    Push-back that one task is told of.

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
