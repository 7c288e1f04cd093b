"""
The pace of a read: the number of requests under way, and the size of each.

Rule 1: no I/O and no clock; what a round trip and the answers take is the caller's to measure.

Near a server one request at a time is enough: the server answers the next one while the client
makes rows of this one. Far away the line would be idle between a request and its answer, so as many
requests are under way as are answered in a round trip. A server that takes long for each gets few.

A publisher waits until the server has sent what all tasks have asked for. So a task asks for as
much as comes in time (`Courtesy`).

A consumer's pulls need no such care: the server knows the consumer's position, and pulls wait
there, one behind the other (`pulls_ahead`).

A request must say where it begins before the one ahead is answered. So each request stands for a
stretch of sequences that should hold what it may bring. If it brings less, a hole is left, and the
client asks again for what lies behind the hole, fewer messages at a time.

The server sends what a request or a pull asks for without flow control, and cuts a connection off
that is more than `max_pending` bytes behind, or takes nothing for `write_deadline` (a slow
consumer). The client sees no more than a connection that broke: so any break in the middle of an
answer counts, and one that had another reason costs a few smaller requests (`Appetite`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from functools import lru_cache
from typing import Final, NamedTuple

from ..client.options import ConnectionOptions

FAR_S: Final = 0.002
"""A server with a longer round trip is far away."""

MOST_BYTES: Final = 32 << 20
"""Bytes on their way at the most: the server cuts off a reader that is 64 MiB behind."""

_MOST: Final = 16
"""Requests at the most."""

_LATELY: Final = 8
"""Latest answers whose times are remembered."""

_LEAST_S: Final = 0.001
_DENSE: Final = 1.02
"""Sequences a message up to which a request stands for as many sequences as messages."""

_KNOWN: Final = 1_000
"""Kinds of requests, streams and servers of which each is remembered."""

_PULL_S: Final = 0.02
"""Time in which a server answers a pull of some MiB."""

_PULL_BYTES: Final = 4 << 20
"""Bytes of one pull: what the server may have on its way to a reader that is busy elsewhere."""

_LEAST_SHARE: Final = 1 / 256
"""The least share: of 2 MiB some 8 KiB. A message is sent whole in any case."""

_SOON: Final = 16
_LATE: Final = 4096
"""Whole answers after which more is asked for again: at first, and at the most, after many cuts."""


class Pace:
    """Sizes and times of the answers to one kind of request."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_LATELY)
        self._spread = 1.0
        """Sequences a message."""
        self._width = 0.0
        """Bytes a message, as they came."""
        self._most = float(_MOST)

    def answered(self, messages: int, sequences: int, size: int, took_s: float) -> None:
        """
        A request brought so many messages, of so many sequences and with so many bytes.

        Args:
            took_s: since the answer before it, or without the round trip where nothing was under
                way before.
        """
        self._times.append(max(took_s, _LEAST_S))
        if messages:
            self._spread += (max(1.0, sequences / messages) - self._spread) / 2
            self._width = max(size / messages, 0.9 * self._width)
        self._most = min(_MOST, self._most + 1 / self._most)

    def missed(self) -> None:
        """A request brought less than its stretch: those behind were in vain, so fewer follow."""
        self._most = max(1.0, self._most / 2)

    def together(self, round_trip_s: float, each_bytes: int) -> int:
        """
        Number of requests that may be under way.

        Args:
            each_bytes: what one may bring at the most.
        """
        if round_trip_s < FAR_S or not self._times:
            return 1
        wanted = 1 + math.ceil(round_trip_s / min(self._times))
        return max(1, min(wanted, int(self._most), MOST_BYTES // each_bytes))

    def stretch(self, messages: int, max_bytes: int) -> tuple[int, int]:
        """
        Messages to ask for, and sequences for which that should be enough, where a request may
        bring `messages` and `max_bytes`.
        """
        if self._width:
            messages = max(1, min(messages, int(max_bytes / (2 * self._width))))
        if self._spread < _DENSE:
            return messages, messages
        return messages + messages // 8 + 1, max(1, int(messages * self._spread))


def pull_bytes(round_trip_s: float) -> int:
    """The bytes of one pull: twice as many far away, where the next one is a round trip behind."""
    return _PULL_BYTES if round_trip_s < FAR_S else 2 * _PULL_BYTES


def pulls_ahead(round_trip_s: float, each_bytes: int) -> int:
    """Number of pulls that wait at a distant server behind those that are being answered."""
    if round_trip_s < FAR_S:
        return 0
    return max(0, min(math.ceil(round_trip_s / _PULL_S), MOST_BYTES // each_bytes - 2))


@lru_cache(maxsize=_KNOWN)
def pace_of(key: Hashable) -> Pace:
    """The pace of one kind of request, kept for this process's next tasks."""
    return Pace()


class Appetite:
    """Share of the maximum that this process asks a server for."""

    def __init__(self) -> None:
        self.share = 1.0
        self._whole = 0
        self._patience = _SOON

    def limit(self, maximum: int) -> int:
        """The part of `maximum` to ask for."""
        return max(1, int(maximum * self.share))

    def shrink(self) -> None:
        """Asks for less: an answer broke off."""
        self.share = max(_LEAST_SHARE, self.share / 2)
        self._whole = 0
        self._patience = min(2 * self._patience, _LATE)

    def grow(self) -> None:
        """Asks for more after enough answers that came whole, of which this is one."""
        self._whole += 1
        if self.share < 1 and self._whole >= self._patience:
            self.share = min(1.0, 2 * self.share)
            self._whole = 0
        if self.share == 1:
            self._patience = _SOON


@lru_cache(maxsize=_KNOWN)
def appetite_of(options: ConnectionOptions) -> Appetite:
    """The appetite for a server, kept for this process's next tasks."""
    return Appetite()


_USUAL_DELAY_S: Final = 0.04
"""Time that a publish may wait for reads where no option says how long (`maxPublishDelay`)."""

_WAIT_SHARE: Final = 0.4
"""
Part of that time in which what was asked for is to be there: a publish waits for it when it arrives
and again for its PubAck, and times vary.
"""

_MESSAGE_COST: Final = 500
"""A message costs the server as much as so many bytes more than it has."""

_FIRST_WIDTH: Final = 250.0
"""Bytes a message that are taken for granted before the first one."""

_MOST_WINDOW: Final = 16 << 20
"""The largest window, in bytes with those that messages cost: requests have bounds of their own."""

_FIRST_WINDOW: Final = 1 << 20
_LEAST_WINDOW: Final = 128 << 10
_LEAST_STRICT_WINDOW: Final = 16 << 10
_STEP: Final = 32 << 10
_LATE_ANSWERS: Final = 3
"""Late answers in a row that say that the line is long: one alone may have waited for a core."""

_STUCK: Final = 8
"""Narrowings of the least window after which the delay is another's doing."""

_UNSEEN: Final = 4
"""Answers of unknown delay after which fewer are asked for, to see one."""

_PUT_UP: Final = 3.0
"""Then the target is so many times that delay: ours is the rest."""

_FIRST_PATIENCE: Final = 64
_LONGEST_PATIENCE: Final = 2048
"""Answers for which another's delay is put up with: at first, and at the most."""


def answer_s(delay_s: float | None) -> float:
    """Seconds that an answer may take, with what a publish may wait (`maxPublishDelay`)."""
    return _WAIT_SHARE * (delay_s or _USUAL_DELAY_S)


class Courtesy:
    """
    How much a read may have asked for and not got, so that publishers hardly wait.

    A stream has one line for all that it sends and takes. What a task asks for comes when all is
    sent that anybody had asked for before, and a publish waits as long. So each task keeps that
    time near one target, by nothing but its own window: an answer in time widens it by a step, late
    ones narrow it by a share. Thereby the windows of all tasks at a stream come to one size.

    Args:
        delay_s: what a publish may wait. None as it is by default: then a delay that no window of
            ours makes shorter is another's, and the target follows it for a while.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        self._window = float(_FIRST_WINDOW)
        self._usual_s = self._target_s = answer_s(delay_s)
        self._least = _LEAST_STRICT_WINDOW if delay_s else _LEAST_WINDOW
        self.is_strict = delay_s is not None
        self._step = _STEP * self._usual_s / _USUAL_DELAY_S / _WAIT_SHARE
        self._width = _FIRST_WIDTH
        """Bytes a message, as they came."""
        self._lately = deque[float](maxlen=_LATE_ANSWERS)
        """The least that the latest answers took."""
        self._starts = True
        """Whether no answer took long so far."""
        self._unseen = self._stuck = self._left = 0
        """`_left`: answers for which another's delay is put up with still."""
        self._patience = _FIRST_PATIENCE
        self.calm_at = math.inf
        """When the stream is calm, unless a task of this process sees a publish before."""

    @property
    def messages(self) -> int:
        """Number of messages that may be outstanding."""
        return max(1, int(self._window / (_MESSAGE_COST + self._width)))

    def count(self, messages: int, size: int) -> None:
        """Counts messages that have come, with so many bytes."""
        if messages:
            self._width += (size / messages - self._width) * min(1.0, messages / 256)

    def answered(self, took_s: float, away_s: float = 0.0) -> None:
        """
        An answer is there.

        Args:
            took_s: from when it was asked for, without the round trip.
            away_s: how much of that nobody looked whether it was there.
        """
        self._lately.append(took_s - away_s)
        least_s = min(self._lately)
        if self._left:
            self._left -= 1
            if not self._left:
                self._target_s = self._usual_s
        if took_s <= self._target_s:
            self._widen(took_s / self._target_s)
        elif took_s - away_s <= self._target_s:
            self._unseen += 1
            if self._unseen >= _UNSEEN:
                self._narrow(0.75)
        elif least_s > self._target_s and len(self._lately) == _LATE_ANSWERS:
            self._narrow(max(0.5, 1 - 0.8 * (1 - self._target_s / least_s)))
            if self._stuck >= _STUCK and not self.is_strict:
                self._target_s, self._left, self._stuck = _PUT_UP * least_s, self._patience, 0
                self._patience = min(2 * self._patience, _LONGEST_PATIENCE)

    def _widen(self, part: float) -> None:
        """An answer took this part of the time that it may take."""
        self._unseen = self._stuck = 0
        if not self._left:
            self._patience = _FIRST_PATIENCE
        self._starts &= part < 0.5
        self._window *= 2 if self._starts else 1.25 if part < 0.4 else 1
        self._window = min(self._window + self._step, float(_MOST_WINDOW))

    def _narrow(self, share: float) -> None:
        self._starts, self._unseen = False, 0
        self._stuck += self._window <= self._least
        self._window = max(share * self._window, float(self._least))


@lru_cache(maxsize=_KNOWN)
def courtesy_of(options: ConnectionOptions, stream: str) -> Courtesy:
    """The courtesy towards a stream's publishers, kept for this process's next tasks."""
    return Courtesy(options.max_publish_delay_s)


_LOOK_S: Final = 0.05
"""Seconds for which a read looks whether anybody publishes, before it takes the stream for calm."""

_PUBLISHED_S: Final = 10.0
"""Seconds for which a stream is not calm after a message was published."""


class _Asked(NamedTuple):
    """A request that has no answer yet."""

    up_to: int
    at: float
    """Time of the request."""
    away_s: float
    """`Waits.away_s` then."""


class Waits:
    """
    The requests of one read that have no answer yet, in the order of their answers.

    The clock is the caller's: without what its thread has waited for a core (`worker.core_time`),
    which on a busy machine is longer than all else. What the round trip takes is the line's. While
    rows are made nobody looks whether an answer is there, so how much of that time it took is not
    known.

    Where nobody publishes nobody waits, and a read asks for as much as it likes. It sees that by
    the number of its messages, which stays the same. The tasks of a process share what they saw.

    Args:
        courtesy: hears how long each answer took that it has bounded.
    """

    def __init__(self, courtesy: Courtesy) -> None:
        self.courtesy = courtesy
        self._messages = 0
        """Messages that the stream has for this read, those that were read included."""
        self._now = 0.0
        """The time of the latest answer."""
        self.away_s = 0.0
        """Seconds that nobody has looked at what came, in sum; the caller counts."""
        self._open: deque[_Asked] = deque()

    def __bool__(self) -> bool:
        """Whether an answer is awaited whose time counts."""
        return bool(self._open)

    def limit(self, most: int, round_trip_s: float) -> int:
        """
        How many messages may be asked for at a time, of so many at the most. From far away the line
        bounds them, unless somebody has said what publishers may wait.
        """
        return min(most, self.courtesy.messages) if self._is_bound(round_trip_s) else most

    def _is_bound(self, round_trip_s: float) -> bool:
        is_free = round_trip_s >= FAR_S or self._now >= self.courtesy.calm_at
        return self.courtesy.is_strict or not is_free

    def found(self, messages: int, now: float) -> None:
        """The stream has so many messages for this read by now, those that were read included."""
        courtesy = self.courtesy
        if self._messages and messages != self._messages:
            courtesy.calm_at = now + _PUBLISHED_S
        elif courtesy.calm_at == math.inf:
            courtesy.calm_at = now + _LOOK_S
        self._messages = messages
        self._now = now

    def asked(self, up_to: int, now: float, round_trip_s: float) -> None:
        """
        A request was sent, whose answer is there once `settle` has counted so far. Of one that the
        window does not bound the time says nothing about the window.
        """
        if self._is_bound(round_trip_s):
            self._open.append(_Asked(up_to, now, self.away_s))

    def settle(self, up_to: int, now: float, round_trip_s: float) -> None:
        """All is there that was asked for up to this count."""
        while self._open and self._open[0].up_to <= up_to:
            asked = self._open.popleft()
            took_s = max(0.0, now - asked.at - round_trip_s)
            self.courtesy.answered(took_s, self.away_s - asked.away_s)

    def forget(self) -> None:
        """Nobody waits for the open requests any more."""
        self._open.clear()
