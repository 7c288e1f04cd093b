"""SIGINT and SIGTERM for programs that run until they are told to end."""

from __future__ import annotations

import signal
from contextlib import suppress
from queue import Empty, SimpleQueue


class Stop:
    """
    Whether SIGINT or SIGTERM has come since this was made; the second one ends the program at once.

    A handler runs amid whatever the main thread does, so it may take no lock which that may hold:
    `threading.Event.set` waits for ever where it meets `wait` of the same event. The queue is one
    that may be put into from there.
    """

    def __init__(self) -> None:
        self._came = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def __call__(self) -> bool:
        return self._came

    def wait(self, timeout_s: float) -> None:
        """Returns when a signal comes, after `timeout_s` at the latest."""
        with suppress(Empty):
            self._wakes.get(timeout=timeout_s)

    def _stop(self, number: int, _: object) -> None:
        self._came = True
        self._wakes.put(None)
        signal.signal(number, signal.SIG_DFL)
