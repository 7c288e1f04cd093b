"""
The pace of a read: how much is asked for at a time.

Rule 1: no I/O and no clock; what a round trip takes is the caller's to measure.

Near a server one request at a time is enough: the server answers the next one while the client
makes rows of this one. Far away a request is for more. A consumer's pulls may wait at the server,
which knows its position, one behind the other (`pulls_ahead`).

A publisher waits until the server has sent what all tasks have asked for. So while somebody
publishes (`Publishers`) a task asks for no more than comes in a moment (`busy_messages`).

The server sends what a request or a pull asks for without flow control, and cuts a connection off
that is more than `max_pending` bytes behind, or takes nothing for `write_deadline` (a slow
consumer). The client sees no more than a connection that broke: so any break in the middle of an
answer counts, and one that had another reason costs a few smaller requests (`Appetite`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from ..client.options import ConnectionOptions

FAR_S: Final = 0.002
"""A server with a longer round trip is far away."""

MOST_BYTES: Final = 32 << 20
"""Bytes on their way at the most: the server cuts off a reader that is 64 MiB behind."""

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


def pull_bytes(round_trip_s: float) -> int:
    """The bytes of one pull: twice as many far away, where the next one is a round trip behind."""
    return _PULL_BYTES if round_trip_s < FAR_S else 2 * _PULL_BYTES


def pulls_ahead(round_trip_s: float, each_bytes: int) -> int:
    """Number of pulls that wait at a distant server behind those that are being answered."""
    if round_trip_s < FAR_S:
        return 0
    return max(0, min(math.ceil(round_trip_s / _PULL_S), MOST_BYTES // each_bytes - 2))


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

_BUSY_MESSAGES: Final = 2_000
"""
Messages that a task has asked for at the most while somebody publishes, for the usual time. It is
by calculation: a server that sends 600,000 a second sends those of ten tasks in less than that.
"""

_LOOK_S: Final = 0.05
"""Seconds for which a read looks whether anybody publishes, before it takes the stream for calm."""

_PUBLISHED_S: Final = 10.0
"""Seconds for which a stream is not calm after a message was published."""


def busy_messages(delay_s: float | None) -> int:
    """Messages that a task may have asked for while somebody publishes, with what that may wait."""
    return max(1, int(_BUSY_MESSAGES * (delay_s or _USUAL_DELAY_S) / _USUAL_DELAY_S))


class Publishers:
    """
    Whether anybody publishes into a stream, as the tasks of this process see it: by how many
    messages it has for each, which stays the same where nobody does.

    Args:
        delay_s: what a publish may wait (`maxPublishDelay`); None where no option says it.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        self._delay_s = delay_s
        self._calm_at = math.inf

    def seen(self, before: int, messages: int, now: float) -> None:
        """The stream has so many messages for a read now, and had as many `before` (0: unknown)."""
        if before and messages != before:
            self._calm_at = now + _PUBLISHED_S
        elif self._calm_at == math.inf:
            self._calm_at = now + _LOOK_S

    def are_calm(self, now: float) -> bool:
        """Whether nobody has published for a while."""
        return now >= self._calm_at

    def allow(self, now: float, round_trip_s: float) -> float:
        """
        Messages that a task may have asked for. From far away the line bounds them, unless somebody
        has said what publishers may wait.
        """
        if self._delay_s is None and (self.are_calm(now) or round_trip_s >= FAR_S):
            return math.inf
        return busy_messages(self._delay_s)


@lru_cache(maxsize=_KNOWN)
def publishers_of(options: ConnectionOptions, stream: str) -> Publishers:
    """What this process knows of a stream's publishers."""
    return Publishers(options.max_publish_delay_s)
