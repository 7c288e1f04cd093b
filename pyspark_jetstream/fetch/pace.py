"""
How much a read asks for at a time: how many requests are on their way, and how large each is.

Rule 1: no I/O and no clock; what a round trip and the answers take is the caller's to measure.

Near a server one request at a time is enough: while its answer is made into rows the next one is
answered. Far away the line would be idle between a request and its answer, so there are as many
requests under way as are answered in a round trip. A server that takes long for each gets few.

A consumer's pulls need no such care, the server knows where it stands: they wait there, one behind
the other (`pulls_ahead`).

Where a request begins has to be known before the one ahead is answered. So each stands for a
stretch of sequences that should hold what it may bring. One that brings less leaves a hole, and
what was asked for behind it is asked for again, fewer at a time.

The server sends what a request or a pull asks for without flow control, and cuts a connection off
that is more than `max_pending` bytes behind, or takes nothing for `write_deadline` (a slow
consumer). The client sees no more than a connection that broke: so any break in the middle of an
answer counts, and one that had another reason costs a few smaller requests (`Appetite`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Final

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

_SELDOM_TRIP_S: Final = 0.02
"""A longer round trip makes the intervals of look-ups longer, in proportion."""

_SELDOM_MOST: Final = 2.0

_KNOWN: Final = 1_000

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

    def __repr__(self) -> str:
        return f"<Pace {self._spread:.2f} sequences and {self._width:.0f} bytes a message>"

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
        How many requests may be under way.

        Args:
            each_bytes: what one may bring at the most.
        """
        if round_trip_s < FAR_S or not self._times:
            return 1
        wanted = 1 + math.ceil(round_trip_s / min(self._times))
        return max(1, min(wanted, int(self._most), MOST_BYTES // each_bytes))

    def stretch(self, messages: int, max_bytes: int) -> tuple[int, int]:
        """
        How many messages to ask for, and for how many sequences that should be enough, where a
        request may bring `messages` and `max_bytes`.
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


def seldom_s(often_s: float, round_trip_s: float) -> float:
    """The interval of look-ups that batches wait for: `often_s`, and longer far away."""
    return often_s * max(1.0, min(round_trip_s / _SELDOM_TRIP_S, _SELDOM_MOST))


_paces: dict[Hashable, Pace] = {}


def pace_of(key: Hashable) -> Pace:
    """The pace of one kind of request, kept for this process's next tasks."""
    if len(_paces) >= _KNOWN and key not in _paces:
        _paces.clear()
    return _paces.setdefault(key, Pace())


class Appetite:
    """Share of the maximum that this process asks a server for."""

    def __init__(self) -> None:
        self.share = 1.0
        self._whole = 0
        self._patience = _SOON

    def __repr__(self) -> str:
        return f"<Appetite {self.share:.3f}, {self._whole} of {self._patience} whole answers>"

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


_of_servers: dict[ConnectionOptions, Appetite] = {}


def appetite_of(options: ConnectionOptions) -> Appetite:
    """The appetite for a server, kept for this process's next tasks."""
    return _of_servers.setdefault(options, Appetite())
