"""
The size of the window of publishes on the wire: it grows until the server pushes back.

Rule 1: nothing but PubAcks and push-backs decides; who sends what is not known. No clock.

    PubAcks, before the first cut    by as many: the size doubles in a round trip
    PubAcks, after it                by one in a round trip
    push-back                        to 0.7 of it, if a PubAck came since the last cut

Where half of the window is unused it stays: there is no evidence. An outage says nothing about
capacity: its push-backs have no PubAck between them, and cut once. What fails for another cause
than load (no responders, a broken connection, 10158) is not handed in at all.
"""

from __future__ import annotations

import math
from typing import Final

_INITIAL: Final = 256
"""Publishes; each task begins with them."""

_CUT: Final = 0.7
"""Factor of the size after a push-back."""


class Window:
    """
    Args:
        maximum: it never becomes larger.
        minimum: it never becomes smaller, but for the maximum.
    """

    def __init__(self, maximum: int, minimum: int = 1) -> None:
        self._minimum = min(minimum, maximum)
        self._maximum = maximum
        self._size = float(min(max(_INITIAL, self._minimum), maximum))
        self._doubles_to = math.inf
        """Size from which on it grows by one in a round trip: that of the last cut."""
        self._acked = False
        """Whether a PubAck came since the last cut."""

    def __repr__(self) -> str:
        return f"<Window {self.value} of {self._maximum}>"

    @property
    def value(self) -> int:
        """The size now, in publishes."""
        return int(self._size)

    def acked(self, count: int, in_flight: int) -> None:
        """
        PubAcks came.

        Args:
            in_flight: publishes on the wire before them.
        """
        self._acked = True
        if in_flight < self._size / 2:
            return
        step = count if self._size < self._doubles_to else count / self._size
        self._size = min(self._size + step, self._maximum)

    def pushed_back(self) -> None:
        """The server refused a publish for its load or a limit, or did not answer in time."""
        if self._acked:
            self._size = max(self._minimum, self._size * _CUT)
            self._doubles_to = self._size
            self._acked = False
