"""
The pauses of operators: a table of reason and filter, with a window of time for each.

Rule 1: no I/O and no clock; callers pass `now` (seconds, monotonic).

- A subject is paused while any open window has a filter that matches it. Reasons do not cancel each
  other.
- A command takes the place of the one before with its reason and filter. One with a pause of 0
  closes all windows of its reason whose filters it covers.
- Nothing happens when a window ends: it is found to be over when somebody asks.
- Reasons 0 and 1 pause the subjects that match. Reasons 2, 3 and 4 pause the whole writer; with no
  pause to end they only explain what comes (`informed`), until the next PubAck.

(overload.md §4, PIP-385.) Windows that have ended stay for a while, for the errors of rows that
waited in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...subjects import REST, covers, is_literal, matcher, matches, pattern
from .throttleprotocol import Reason, ThrottleProducer, TooManyFiltersError

MAX_FILTERS: Final = 100
"""Filters beside `>` that can be paused at one time; who needs more wants a wider one."""

_KEPT: Final = 3 * MAX_FILTERS
"""Windows that are remembered, open or ended."""

_PATTERN_CHARS: Final = 10_000
"""Upper bound, about, of one regular expression's characters: RE2 refuses very long ones."""

Key: TypeAlias = tuple[Reason, str]
"""The reason and the filter of a command."""


class Matcher:
    """A function that says whether any of some filters matches a subject; it never changes."""

    def __init__(self, filters: Iterable[str]) -> None:
        names = set(filters)
        self._is_all = REST in names
        self._literal = {name for name in names if is_literal(name)}
        wild = sorted(names - self._literal - {REST})
        self._matchers = [matcher(name) for name in wild]
        self._regexes: list[str] = []
        part: list[str] = []
        for place, name in enumerate(wild):
            part.append(pattern(name))
            if sum(map(len, part)) > _PATTERN_CHARS or place == len(wild) - 1:
                self._regexes.append(f"^(?:{'|'.join(part)})$")
                part = []

    def __call__(self, subject: str) -> bool:
        if self._is_all or subject in self._literal:
            return True
        return any(is_match(subject) for is_match in self._matchers)

    def mask(self, subjects: pa.Array) -> pa.Array:
        """BOOL: which of these match."""
        if self._is_all:
            return pa.repeat(True, len(subjects))
        mask = pc.is_in(subjects, pa.array(sorted(self._literal), pa.string()))
        for regex in self._regexes:
            mask = pc.or_(mask, pc.match_substring_regex(subjects, regex))
        return mask


@dataclass(slots=True)
class PausedTime:
    """A time in which something is paused."""

    since: float
    until: float
    request_id: int = 0
    """Number of the last command; 0 where there was none."""
    counted: float = 0.0
    """The time before is counted."""

    def passed_ms(self, now: float) -> int:
        """Milliseconds that were not counted before."""
        end = min(now, self.until)
        ms = max(0, round((end - self.counted) * 1000))
        self.counted += ms / 1000
        return ms

    def within(self, since: float, now: float) -> float:
        """Seconds of this time that it was open."""
        return max(0.0, min(now, self.until) - max(since, self.since))


class Count(NamedTuple):
    """What has come of one key of `PausedTimes` since the last look."""

    reason: Reason
    of: str
    ms: int
    """Time for which it was open."""
    met: int
    """How often it was opened."""


class PausedTimes:
    """The last time of each reason and filter, or stream, and what came of all of them."""

    def __init__(self) -> None:
        self.last: dict[Key, PausedTime] = {}
        """The one opened last is the last."""
        self._counts: dict[Key, tuple[int, int]] = {}  # milliseconds, and how often opened

    def open(self, key: Key, now: float, again_s: float = 0.0) -> PausedTime:
        """
        The time that is open, or a new one, whose end is to be said.

        Args:
            again_s: after which time without one it counts as opened again.
        """
        time = self.last.get(key)
        if time is None or time.until <= now:
            is_new = time is None or now - time.until >= again_s
            self.forget(key)
            time = self.last[key] = PausedTime(now, now, counted=now)
            self.count(key, 0, met=is_new)
        self.count(key, time.passed_ms(now))
        return time

    def forget(self, key: Key) -> None:
        """Lets go of a time, which was counted to its end."""
        if key in self.last:
            self.count(key, self.last.pop(key).passed_ms(math.inf))

    def counted(self, now: float) -> list[Count]:
        """What has come since the last call."""
        for key, time in self.last.items():
            self.count(key, time.passed_ms(now))
        counts, self._counts = self._counts, {}
        return [Count(*key, ms, met) for key, (ms, met) in counts.items() if ms or met]

    def count(self, key: Key, ms: int, met: int = 0) -> None:
        """Adds to what has come of a key; of too many keys, to what has of their reasons."""
        if key not in self._counts and len(self._counts) >= _KEPT:
            key = key[0], ""
        before = self._counts.get(key, (0, 0))
        self._counts[key] = before[0] + ms, before[1] + met


class PauseTable:
    """The pauses of one writer."""

    def __init__(self) -> None:
        self.version = 0
        """Grows when other subjects are paused than before, or for less long than was said."""
        self.informed: dict[Reason, int] = {}
        """Reasons that only explain what comes, with the number of the command."""
        self.times = PausedTimes()
        """When, by reason and filter."""
        self._windows = self.times.last
        self._matcher: tuple[float, Matcher] = (-math.inf, Matcher(()))  # valid until then

    def __repr__(self) -> str:
        paused = ", ".join(f"{filter} by {reason.name}" for reason, filter in self._windows)
        return f"<PauseTable {paused or 'nothing paused so far'}>"

    def command(self, said: ThrottleProducer, now: float) -> None:
        """
        An operator's command.

        Raises:
            TooManyFiltersError: Too many filters are paused; nothing has changed.
        """
        filter = said.subject if said.reason.is_quota else REST
        if said.pause_s == 0:
            self._lift(said.reason, filter, said.request_id, now)
        else:
            self._pause((said.reason, filter), said.pause_s, said.request_id, now)

    def _pause(self, key: Key, pause_s: float, request_id: int, now: float) -> None:
        window = self._windows.get(key)
        if window is None or window.until <= now:
            others = {of for (_, of), w in self._windows.items() if w.until > now} - {REST}
            if len(others - {key[1]}) >= MAX_FILTERS and key[1] != REST:
                raise TooManyFiltersError(
                    f"{len(others)} filters are paused, and {MAX_FILTERS} may be: pause one wider"
                    " filter instead ('>' is always taken), or lift some"
                )
            self.version += 1
        window = self.times.open(key, now)
        while len(self._windows) > _KEPT:
            self.times.forget(min(self._windows, key=lambda each: self._windows[each].until))
        self.version += now + pause_s < window.until
        window.until, window.request_id = now + pause_s, request_id
        self._matcher = (-math.inf, self._matcher[1])

    def _lift(self, reason: Reason, filter: str, request_id: int, now: float) -> None:
        closed = 0
        for (why, of), window in self._windows.items():
            if why is reason and window.until > now and covers(filter, of):
                window.until = now
                closed += 1
        if closed:
            self.version += 1
            self._matcher = (-math.inf, self._matcher[1])
        elif not reason.is_quota:
            if reason not in self.informed:
                self.times.count((reason, REST), 0, met=1)
            self.informed[reason] = request_id

    def acked(self) -> None:
        """A PubAck came: what the writer was informed of without a pause is over."""
        self.informed.clear()

    # ── questions ────────────────────────────────────────────────────────────────────────────

    def next_end(self, now: float) -> float:
        """End of the next window; infinite when none is open."""
        until, _ = self._matcher
        if until <= now:
            ends = [(w.until, of) for (_, of), w in self._windows.items() if w.until > now]
            until = min((end for end, _ in ends), default=math.inf)
            self._matcher = until, Matcher(of for _, of in ends)
        return until

    def matcher(self, now: float) -> Matcher:
        """What is paused now."""
        self.next_end(now)
        return self._matcher[1]

    def mask(self, subjects: pa.Array, now: float) -> pa.Array | None:
        """BOOL: which of these distinct subjects are paused; None when none is."""
        if self.next_end(now) == math.inf:
            return None
        mask = self.matcher(now).mask(subjects)
        return mask if pc.any(mask).as_py() else None

    def since(self, subjects: pa.Array, now: float) -> pa.Array:
        """DOUBLE: since when each of these subjects is paused; null if it is free."""
        since = pa.nulls(len(subjects), pa.float64())
        for (_, filter), window in self._windows.items():
            if window.until > now:
                mask = Matcher([filter]).mask(subjects)
                since = pc.if_else(mask, pc.min_element_wise(since, window.since), since)
        return since

    def windows(self, subject: str) -> Iterator[tuple[Key, PausedTime]]:
        """The windows whose filters match this subject, open or ended."""
        for key, window in self._windows.items():
            if matches(key[1], subject):
                yield key, window
