"""
Pauses and rates of filters, from one side and for one reason, and the lookup by subject.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic). A window that was found to be
over is not looked at again.
Rule 2: what is kept is bounded, and the cost of a command, a refusal or a lookup does not grow with
the filters that are kept. Filters with wildcards are found by their shapes (where wildcards
stand in how many tokens), of which there are few.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from ...subjects import REST, FilterShape, is_literal, overlaps, tokens
from .keptrate import KeptRate

_MAX_SHAPES: Final = 32
"""Shapes that filters with wildcards can have at one time, of one source and reason."""

_MAX_SPANS: Final = 64
"""Windows remembered of one filter; the oldest count as one that lasted as long."""


@dataclass(slots=True, eq=False)
class FilterState:
    """The pause or the rate of one filter, from operators or the server, for one reason."""

    filter: str
    until: float = -math.inf
    """The time when the latest command or refusal lapses."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """
    From when to when it was paused, or rows waited for its rate, oldest first; only the last may be
    open.
    """
    at: float = 0.0
    """The time of the latest command or refusal."""
    turn: int = 0
    """The number of the latest command or refusal, of all filters."""
    request_id: int = 0
    pace: KeptRate | None = None
    """The rate that an operator gave; None for a pause, and for a free filter."""

    @property
    def throttles_until(self) -> float:
        """Time until which it is paused, or rows wait for its rate."""
        return self.spans[-1][1] if self.spans else -math.inf

    def is_pause(self, now: float) -> bool:
        """Whether it is paused, whatever its rate."""
        return self.pace is None and self.until > now

    def record(self, now: float, pause_s: float, pace: KeptRate | None = None) -> None:
        """A command or a refusal takes the place of the one before."""
        is_renewed = pace is not None and pace is self.pace and self.until > now
        self.at, self.until, self.pace = now, now + pause_s, pace
        if pace is None or pace.waiting_for:
            self.mark_throttled(now, self.until)
        elif not is_renewed:
            self.mark_throttled(now, now)

    def mark_throttled(self, now: float, until: float) -> None:
        """The filter is paused, or rows wait for its rate, from now until then."""
        if self.throttles_until >= now:
            self.spans[-1] = (self.spans[-1][0], until)
            return
        self.spans.append((now, until))
        if len(self.spans) > _MAX_SPANS:
            (start, end), (next_start, next_end) = self.spans[:2]
            self.spans[:2] = [(next_start - (end - start), next_end)]

    def close(self, now: float) -> None:
        """Ends the pause or the rate now."""
        self.until, self.pace = min(self.until, now), None
        if self.throttles_until > now:
            self.mark_throttled(now, now)


class TooManyFiltersError(ValueError):
    """There is no room for another filter."""

    def __init__(self, filter: str, detail: str) -> None:
        super().__init__(detail)
        self.filter = filter


class FilterStates:
    """
    The filters of one side and reason, in the order of their latest commands and refusals.

    Args:
        maximum: most filters that are kept.
    """

    def __init__(self, maximum: int) -> None:
        self.all: OrderedDict[str, FilterState] = OrderedDict()
        self._maximum = maximum
        self._open: OrderedDict[str, FilterState] = OrderedDict()  # among them all that are paused
        self._paced: dict[str, FilterState] = {}  # those that have a rate, in force or lapsed
        self._shapes: Counter[FilterShape] = Counter()

    def put(self, window: FilterState) -> None:
        """Puts a filter, for which a command or a refusal came, behind all others."""
        self.drop(window.filter)
        self.all[window.filter] = window
        (self._open if window.pace is None else self._paced)[window.filter] = window
        if not is_literal(window.filter):
            self._shapes[FilterShape.of(window.filter)] += 1

    def latest(self) -> FilterStates:
        """A copy that has only the latest pause of each filter."""
        group = FilterStates(self._maximum)
        for window in self.all.values():
            group.put(replace(window, spans=window.spans[-1:]))
        return group

    def heir(self, now: float) -> FilterStates:
        """Such a copy for the next task of this process; none of its rows waits for a rate yet."""
        group = self.latest()
        for window in group._paced.values():
            if window.pace is not None:
                window.pace, window.spans = window.pace.heir(now), [(now, now)]
        return group

    def drop(self, filter: str) -> None:
        """Forgets a filter."""
        self._open.pop(filter, None)
        self._paced.pop(filter, None)
        if self.all.pop(filter, None) is not None and not is_literal(filter):
            shape = FilterShape.of(filter)
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]

    def close(self, now: float) -> None:
        """Ends all others before a command or a refusal that is for all subjects."""
        for window in [*self._open.values(), *self._paced.values()]:
            if window.filter != REST:
                window.close(now)
        self._open.clear()
        self._paced.clear()

    def make_room(self, filter: str, now: float) -> None:
        """
        Forgets filters that are free, at the front of the order, until there is room for another.

        Raises:
            TooManyFiltersError: There is still no room for this filter.
        """
        while not self._has_room(filter):
            oldest = next(iter(self.all.values()))
            if oldest.until > now:  # what is behind may be a later word about the same subjects
                raise TooManyFiltersError(
                    filter,
                    f"{len(self.all)} filters are paused, and {self._maximum} may be; those with"
                    f" wildcards have them in {len(self._shapes)} different ways, and"
                    f" {_MAX_SHAPES} may be. Pause one wider filter instead ('>' is always taken),"
                    " put wildcards where others have them, or lift some",
                )
            self.drop(oldest.filter)

    def _has_room(self, filter: str) -> bool:
        if len(self.all) >= self._maximum:
            return False
        if len(self._shapes) < _MAX_SHAPES or is_literal(filter):
            return True
        return FilterShape.of(filter) in self._shapes

    def covers(self, window: FilterState) -> bool:
        """Whether a later command or refusal is for some of this filter's subjects."""
        later = takewhile(lambda other: other is not window, reversed(self.all.values()))
        return any(overlaps(other.filter, window.filter) for other in later)

    def words(self, subject: str) -> list[FilterState]:
        """The filters that match this subject, the latest command or refusal last."""
        parts = tokens(subject) if self._shapes else []
        shapes = self._shapes if "" not in parts else ()
        names = (subject, *(shape.filter(parts) for shape in shapes))
        windows = [self.all[name] for name in names if name is not None and name in self.all]
        return sorted(windows, key=lambda window: window.turn)

    def is_open(self, now: float) -> bool:
        """Whether any filter is paused."""
        while self._open:
            window = next(iter(self._open.values()))
            if window.until > now:
                return True
            del self._open[window.filter]
        return False

    def is_in_force(self, now: float) -> bool:
        """Whether any filter is paused, or has a rate."""
        return self.is_open(now) or bool(self.paced(now))

    def open(self, now: float) -> Iterator[FilterState]:
        """The filters that are paused."""
        return (window for window in self._open.values() if window.until > now)

    def paced(self, now: float = -math.inf) -> list[FilterState]:
        """The filters with a rate in force; without a time, also those whose rate lapsed."""
        return [window for window in self._paced.values() if window.until > now]
