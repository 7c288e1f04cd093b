"""
Paused and rate-limited subjects: since when, until when, and why.

Rule 1: operators' commands and the server's refusals say so in the same states: a reason
(`throttleprotocol.Reason`), a filter of destination subjects, a window of time.
Rule 2: no I/O and no clock; callers pass `now` (seconds, monotonic).

    free ──command, refusal──▸ paused ──time, pause 0──▸ free

- **The latest word about a subject counts**, for each source and reason: it extends, shortens or
  lifts (0) the window that was open. A command for `orders.eu` is such a word after one for
  `orders.*`; other subjects keep theirs.
- **Windows of different reasons or sources do not cancel each other**: a subject is paused while
  any is open.
- **Nothing happens when a window ends**: it is found to be over when somebody asks.
- **A command with rates limits, and does not pause**: in its window as many rows go as its
  `KeptRate` lets. A subject is throttled by it while rows wait for the rate, and not while none
  does.
- Reasons 0 and 1 pause the matching subjects, never the connection. Reasons 2, 3 and 4 pause the
  whole writer; with no pause they only explain what comes (`informed`), until the next PubAck.

(overload.md §4, PIP-385.) How often a subject is asked for does not matter where nothing is paused;
where something is, its distinct subjects are looked at, not rows. What was said of each filter is
in `filterstates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import places
from ...errors import ProducerThrottledError
from ...sanitize import get_logger
from ...subjects import REST, is_literal, pattern
from .filterstates import FilterState, FilterStates, TooManyFiltersError
from .keptrate import KeptRate
from .throttleprotocol import (
    Discover,
    Kept,
    Message,
    Paused,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    Unit,
)

logger = get_logger(__name__)

_MAX_COMMANDED: Final = 1_000
"""Filters that operators can pause for one reason at one time; who needs more wants a wider one."""

_MAX_REFUSED: Final = 10_000
"""Subjects and filters of streams that the server's refusals can pause likewise."""

_FEW: Final = 16
"""
Filters with wildcards that are looked for in all subjects at once; of more, subject by subject.
"""

_PHASES: Final = 997
"""In so many different phases writers begin to keep a rate."""

_SHARE: Final = 0.8
"""
Share of a publish's time: after a longer pause, the pause is the reason of its failure (overload.md
B15).
"""


class PausedBy(Enum):
    """Origins of a pause."""

    OPERATOR = "operator"
    SERVER = "server"


REFUSALS: Final[dict[int, Reason]] = {
    10077: Reason.TopicProduceQuotaExceeded,
    10002: Reason.ResourceGroupProduceQuotaExceeded,
    10167: Reason.MessageBufferSizeBreach,
    10210: Reason.MessageBufferSizeBreach,
    10211: Reason.MessageBufferSizeBreach,
    10023: Reason.BrokerProduceQuotaExceeded,
    10028: Reason.BrokerProduceQuotaExceeded,
    10047: Reason.BrokerProduceQuotaExceeded,
}
"""The server's err_codes in the throttle's words (overload.md §4.5)."""

_OF_WRITER: Final = (Reason.ResourceGroupProduceQuotaExceeded, Reason.BrokerProduceQuotaExceeded)
"""Reasons of refusals that are about all subjects; the others are about the one refused."""


class Pause(NamedTuple):
    """The state of a subject that is paused."""

    source: PausedBy
    reason: Reason
    filter: str
    """The paused subjects, of which this is one."""
    since: float
    until: float
    request_id: int
    """Number of the command; 0 where there was none."""


class Wait(NamedTuple):
    """Rows wait for a rate, or, with 0 seconds, do not any more."""

    reason: Reason
    filter: str
    pause_s: float
    """Seconds until it lapses, if no more is said."""


class Throttle:
    """
    The pauses of one writer.

    Args:
        producer_id: of this writer.
    """

    def __init__(self, producer_id: int = 0) -> None:
        self.invalid = 0
        """Messages on the control subject that said nothing defined."""
        self.writer = Producer(producer_id, True, supports_rate=True)
        """This writer, as it says who it is."""
        self._groups: dict[tuple[PausedBy, Reason], FilterStates] = {}
        self._informed: dict[Reason, int] = {}
        self._told = False
        """Whether it was said that there is no room for more filters."""
        self.turn = 0
        """Grows when other subjects may be paused, or held to a rate, than before."""
        self.waits: list[Wait] = []
        """Rates that rows began to wait for, or do no more; who looks at them clears them."""
        self._words = 0
        self._next_end = (-1, -math.inf)
        """Turn at which the next end of a window was looked for, and that end."""

    def __repr__(self) -> str:
        groups = ", ".join(
            f"{source.value} {reason.name}: {', '.join(list(group.all)[:5])}"
            for (source, reason), group in self._groups.items()
        )
        return f"<Throttle {groups or 'nothing paused'}>"

    def heir(self, producer_id: int, now: float) -> Throttle:
        """The throttle of this process's next task: pauses by operators go on (B7)."""
        heir = Throttle(producer_id)
        heir.turn, heir._words = self.turn, self._words
        for (source, reason), group in self._groups.items():
            if source is PausedBy.OPERATOR and (group.is_open(now) or group.paced(now)):
                heir._groups[source, reason] = group.heir(now)
        return heir

    # ── words ────────────────────────────────────────────────────────────────────────────────

    def answer(
        self,
        said: Message,
        now: float,
        subjects: Iterable[str] = (),
        lately: Iterable[Iterable[str]] = (),
    ) -> bytes | None:
        """
        This came on the control subject: what to answer, None for nothing.

        What a receipt says is in force when this returns: publish it behind everything sent before
        and ahead of everything sent from now on (overload.md B12).

        Args:
            subjects: those this writer has sent to.
            lately: those of its rows that wait, in any number of parts.
        """
        if isinstance(said, Discover):
            paused = chain.from_iterable((subjects, *lately)) if self.throttles(now) else ()
            throttled = tuple(self.throttled(paused, now))
            return self.writer._replace(
                subjects=tuple(subjects), throttled=throttled, rates=self.kept(now)
            ).encode()
        if not isinstance(said, ThrottleProducer):  # an answer, where a command was expected
            self.invalid += 1
            return None
        if said.producer_id not in (None, self.writer.producer_id):
            return None
        try:
            self.command(said, now)
        except TooManyFiltersError as error:
            self.invalid += 1
            if not self._told:
                logger.warning(
                    "the pause of '%s' is refused and gets no receipt. Further ones are refused"
                    " without a warning: %s",
                    error.filter, error,
                )  # fmt: skip
            self._told = True
            return None
        return Receipt(said.request_id, self.writer.producer_id).encode()

    def command(self, command: ThrottleProducer, now: float) -> None:
        """
        An operator's word.

        Raises:
            TooManyFiltersError: Too many are paused; nothing has changed.
        """
        reason = command.reason
        if reason.is_quota:
            self._say(PausedBy.OPERATOR, reason, command.subject, command.pause_s, now, command)
            return
        group = self._groups.get((PausedBy.OPERATOR, reason))
        if command.pause_s == 0 and (group is None or not group.is_in_force(now)):
            self._informed[reason] = command.request_id
        else:
            self._say(PausedBy.OPERATOR, reason, REST, command.pause_s, now, command)

    def refused(self, err_code: int, subject: str, pause_s: float, now: float) -> None:
        """The server refused a publish: pauses what that is about, until it is tried again."""
        reason = REFUSALS.get(err_code)
        if reason is None:
            return
        try:
            filter = REST if reason in _OF_WRITER else subject
            self._say(PausedBy.SERVER, reason, filter, pause_s, now)
        except TooManyFiltersError:
            pass  # the publish itself waits all the same

    def acked(self) -> None:
        """A PubAck came: what the writer was informed of without a pause is over."""
        self._informed.clear()

    def _say(
        self,
        source: PausedBy,
        reason: Reason,
        filter: str,
        pause_s: float,
        now: float,
        command: ThrottleProducer | None = None,
    ) -> None:
        key = source, reason
        if key not in self._groups:
            self._groups[key] = FilterStates(
                _MAX_COMMANDED if source is PausedBy.OPERATOR else _MAX_REFUSED
            )
        group = self._groups[key]
        window = group.all.get(filter)
        if window is None and pause_s == 0 and not group.is_in_force(now):
            return
        if filter == REST:
            group.close(now)
        if window is None:
            group.make_room(filter, now)
            window = FilterState(filter)
        pace = None
        if command is not None and command.rates is not None and pause_s > 0:
            phase = self.writer.producer_id % _PHASES / _PHASES
            pace = window.pace or KeptRate(filter, reason, phase, now)
            pace.keep(command.rates, now + pause_s, now)
        if pace is None or window.pace is None or window.until <= now or group.covers(window):
            self.turn += 1
        window.record(now, pause_s, pace)
        if pace is not None and pace.waiting_for:
            self.waits.append(Wait(reason, filter, pause_s))
        self._words += 1
        window.turn = self._words
        window.request_id = command.request_id if command is not None else 0
        group.put(window)

    # ── questions ────────────────────────────────────────────────────────────────────────────

    @property
    def informed(self) -> bool:
        """Whether a word without a pause is on record: the connection exceeds a limit (B6)."""
        return bool(self._informed)

    def active(self, now: float) -> bool:
        """Whether anything is paused, be it a subject of this writer or not."""
        return any(group.is_open(now) for group in self._groups.values())

    def throttles(self, now: float) -> bool:
        """Whether a pause is open or rows wait for a rate."""
        return self.active(now) or any(window.throttles_until > now for window in self._paced(now))

    def state(
        self, subject: str, now: float, sources: Collection[PausedBy] = tuple(PausedBy)
    ) -> Pause | None:
        """
        Throttle of this subject: its pause by these, or the rate that rows wait for, the one that
        ends last; None if it is free.
        """
        if not self.throttles(now):
            return None
        pauses = [
            Pause(source, reason, word.filter, word.spans[-1][0], word.until, word.request_id)
            for source, reason, word in self._latest(subject, sources)
            if word.throttles_until > now
        ]
        return max(pauses, key=lambda pause: pause.until, default=None)

    def is_paused(
        self, subject: str, now: float, sources: Collection[PausedBy] = tuple(PausedBy)
    ) -> bool:
        """Whether nothing may go to this subject, whatever its rate."""
        return self.active(now) and any(
            word.is_pause(now) for _, _, word in self._latest(subject, sources)
        )

    def is_subject_paused(self, subject: str, now: float) -> bool:
        """Whether operators pause this subject, and none pauses the whole writer."""
        latest = self._latest(subject, (PausedBy.OPERATOR,))
        reasons = [reason for _, reason, word in latest if word.is_pause(now)]
        return bool(reasons) and all(reason.is_quota for reason in reasons)

    def paces(self, subjects: Iterable[str], now: float) -> list[tuple[KeptRate, ...]] | None:
        """The rates in force for each subject; None where no subject has one."""
        groups = [group for group in self._groups.values() if group.paced(now)]
        if not groups:
            return None
        latest = ([w for g in groups for w in g.words(subject)[-1:]] for subject in subjects)
        return [
            tuple(w.pace for w in words if w.pace is not None and w.until > now) for words in latest
        ]

    def kept(self, now: float) -> tuple[Kept, ...]:
        """The rates in force, those that rows wait for first."""
        kept = [window.pace.kept for window in self._paced(now) if window.pace is not None]
        return tuple(sorted(kept, key=lambda each: not each.waiting_for))

    def wait(self, waiting: Mapping[KeptRate, Unit], now: float) -> None:
        """Rows wait for these rates, and for no others."""
        for group in self._groups.values():
            for window in group.paced():
                pace = window.pace
                if pace is None or waiting.get(pace, "") == pace.waiting_for:
                    continue
                was, pace.waiting_for = bool(pace.waiting_for), waiting.get(pace, "")
                if was != bool(pace.waiting_for):
                    until = now if was else window.until
                    if until > now or window.throttles_until > now:
                        window.mark_throttled(now, until)
                    self.waits.append(Wait(pace.reason, pace.filter, max(0.0, until - now)))

    def snapshot(self, now: float) -> Callable[[str], bool] | None:
        """Says of a subject whether it is throttled now, whatever is said later; None: none is."""
        if not self.throttles(now):
            return None
        twin = Throttle()
        twin._groups = {key: group.latest() for key, group in self._groups.items()}
        return lambda subject: twin.state(subject, now) is not None

    def throttled(self, subjects: Iterable[str], now: float) -> Iterator[Paused]:
        """
        The throttled subjects, each with the pause that ends last; see `Producer.isThrottled`
        (B16).
        """
        if not self.throttles(now):
            return
        distinct = pa.array(list(dict.fromkeys(subjects)), pa.string())
        windows = chain(self._open(now), self._paced(now))
        mask = _matched(distinct, windows, lambda subject: self.state(subject, now) is not None)
        for subject in distinct.filter(mask).to_pylist():
            pause = self.state(subject, now)
            if pause is not None:
                source, reason, filter, _, until, request_id = pause
                yield Paused(subject, reason, until - now, filter, source.value, request_id)

    def paused(self, subjects: pa.Array, now: float) -> pa.Array | None:
        """BOOL: which of these distinct subjects are paused; None when none is."""
        if not self.active(now):
            return None
        mask = _matched(subjects, self._open(now), lambda subject: self.is_paused(subject, now))
        return mask if pc.any(mask).as_py() else None

    def next_deadline(self, now: float) -> float:
        """End of the next pause; infinite when none is open."""
        turn, end = self._next_end
        if turn != self.turn or end <= now:
            end = min((window.until for window in self._open(now)), default=math.inf)
            self._next_end = self.turn, end
        return end

    def _latest(
        self, subject: str, sources: Collection[PausedBy]
    ) -> Iterator[tuple[PausedBy, Reason, FilterState]]:
        """The latest word about a subject, of each of these sources and reason."""
        for (source, reason), group in self._groups.items():
            if source in sources and (words := group.words(subject)):
                yield source, reason, words[-1]

    def _open(self, now: float) -> Iterator[FilterState]:
        return chain.from_iterable(group.open(now) for group in self._groups.values())

    def _paced(self, now: float) -> Iterator[FilterState]:
        return chain.from_iterable(group.paced(now) for group in self._groups.values())

    # ── accounts ─────────────────────────────────────────────────────────────────────────────

    def throttled_s(self, subject: str, since: float, now: float) -> float:
        """Seconds of this time that the subject was paused, for whatever reason."""
        total, reached = 0.0, since
        for start, end, _ in sorted(self._spans(subject, since, now), key=lambda span: span[:2]):
            total += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return total

    def error(self, subject: str, since: float, now: float) -> ProducerThrottledError | None:
        """
        The error of a publish that ran out of its time, if pauses are why; None if they are not.

        They are if they took more than 0.8 of it, or if the writer was informed, without a pause,
        that its connection exceeds a limit (overload.md B15).
        """
        throttled_s = self.throttled_s(subject, since, now)
        if 0 < throttled_s > _SHARE * (now - since):
            spent: dict[Pause, float] = {}
            for start, end, pause in self._spans(subject, since, now):
                spent[pause] = spent.get(pause, 0.0) + end - start
            pause = max(spent, key=lambda candidate: spent[candidate])
            return ProducerThrottledError(
                subject, "", 0, pause.reason.name, pause.filter, throttled_s, pause.request_id
            )
        for reason, request_id in self._informed.items():
            return ProducerThrottledError(
                subject, "", 0, reason.name, REST, throttled_s, request_id
            )
        return None

    def _spans(
        self, subject: str, since: float, now: float
    ) -> Iterator[tuple[float, float, Pause]]:
        """From when to when, between these times, the subject was paused by whom."""
        for (source, reason), group in self._groups.items():
            words = group.words(subject)
            for word, later in zip(words, [*words[1:], None], strict=False):
                maximum = now
                if later is not None:  # a later word about the subject took its place
                    starts = (start for start, _ in later.spans if start >= word.at)
                    maximum = min(now, next(starts, later.spans[-1][0]))
                pause = Pause(source, reason, word.filter, 0.0, 0.0, word.request_id)
                for start, end in word.spans:
                    start, end = max(start, since), min(end, maximum)
                    if end > start:
                        yield start, end, pause


def _matched(
    subjects: pa.Array, windows: Iterable[FilterState], holds: Callable[[str], bool]
) -> pa.Array:
    """
    BOOL: which of these distinct subjects a window's filter matches, and `holds` is true of.

    Only those that match are asked of: a later word may say something else of some.
    """
    mask = pa.repeat(False, len(subjects))
    names = {window.filter for window in windows}
    literal = {name for name in names if is_literal(name)}
    if literal:
        mask = pc.is_in(subjects, pa.array(literal, pa.string()))
    wild = names - literal
    if len(wild) > _FEW:
        mask = pa.repeat(True, len(subjects))
    else:
        for name in wild:
            mask = pc.or_(mask, pc.match_substring_regex(subjects, f"^{pattern(name)}$"))
    candidates = pc.indices_nonzero(mask)
    other = [
        place
        for place, subject in zip(
            candidates.to_pylist(), subjects.take(candidates).to_pylist(), strict=True
        )
        if not holds(subject)
    ]
    if not other:
        return mask
    return pc.and_not(mask, pc.is_in(places(len(subjects)), pa.array(other, pa.int64())))
