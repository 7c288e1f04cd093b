"""
Whether the rows of an attempt may go out: it is the latest one of its task, and knows their copies.

An earlier attempt may still be alive, on a machine that was given up, while this one writes. When
does it stop, and which of its rows are known? All times are parts of the shortest duplicate window
of the task's streams, W:

* An attempt looks at its note each W/8. When the last good look began more than W/4 ago it hands
  out no row, and takes back what it has not sent. So one that was superseded sends its last new row
  W/4 after that at most, and sends it again for the last time within another W.
* The one that follows reads the tail when it has taken the note over, and again each W/2 until it
  is as old as 3/2 W; then all that the other one ever stored is known. Until then no row goes out
  when the last look began more than 3/4 W ago: what was stored since is in the window, and the
  stream drops ours.

Not covered is an attempt that freezes between its look and its sending, and thaws after that.

Looks are made on a thread and a connection of their own: the publisher's answers operators
meanwhile. A look that fails is made again until `publishTimeout`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import int32
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import JetStreamError
from ..outbox.messages import Messages
from ..outbox.targets import Targets
from ..publish.settings import SinkOptions
from ..sanitize import get_logger
from .exactlyonce.ledger import Ledger
from .exactlyonce.records import TaskRecord
from .exactlyonce.recovery import Recovery

logger = get_logger(__name__)

_LOOK: Final = 0.125
_STALE: Final = 0.25
_SCAN: Final = 0.5
_UNKNOWN: Final = 0.75
_LIVES: Final = 1.5
"""Parts of the window, as the docstring has them."""

_WAIT_S: Final = 0.05
"""So long a turn takes while rows wait for a look: operators are answered in between."""

_AGAIN_S: Final = 1.0
"""Pause before a look that failed is made again."""


class Watch:
    """
    The looks of one attempt.

    Args:
        window_s: gives the shortest duplicate window of its streams.
    """

    def __init__(
        self,
        options: SinkOptions,
        record: TaskRecord,
        targets: Targets,
        prefix: str | None,
        moves: bool,
        window_s: Callable[[], float],
    ) -> None:
        self._client = Client(options.connection)
        self._record = record
        self._targets = targets
        self._window_s = window_s
        self._patience_s = options.window.publish_timeout_s
        self._took_at = self._looked_at = time.monotonic()
        self._good_at = self._took_at
        """When the last look had ended well."""
        self._again_at = 0.0
        self._errand: _Errand | None = None
        self._is_closed = False
        self.recovery: Recovery | None = None
        """The rows that earlier attempts have stored; None where there was none."""
        if record.again:
            noted = record.streams.values()
            self.recovery = Recovery(self._client, record.name, noted, prefix, moves)

    def close(self) -> None:
        """Ends the connection, and with it a look that is under way."""
        self._is_closed = True
        self._client.close()

    def may_go(self) -> bool:
        """
        Whether rows may go out now; begins a look that is due.

        Raises:
            WriterFencedError: Another attempt has taken the task over.
            JetStreamError: Nobody has been able to say it for `publishTimeout`; or `Recovery` has.
        """
        self._take_errand()
        now, window_s = time.monotonic(), self._window_s()
        if self._errand is None and now >= self._again_at and self._is_due(now, window_s):
            scans = (self._needs_scan(now, window_s),)
            self._errand = _Errand(target=self._look, args=scans, name="ledger", daemon=True)
            self._errand.start()
        knows = now - self._looked_at < _STALE * window_s and self._knows(now, window_s)
        if not knows:
            wait = time.sleep if self._errand is None else self._errand.join
            wait(_WAIT_S)
        return knows

    def fresh(self, rows: Messages) -> pa.Array | None:
        """BOOL: which of these, about to be sent, no earlier attempt has stored; None for all."""
        if self.recovery is None:
            return None
        fresh, places = pa.array([True] * len(rows)), rows.row_targets
        for place in pc.unique(places).drop_null().to_pylist():
            own = pc.equal(places, int32(place))
            missing = self.recovery.missing(rows.where(own), self._targets[place])
            fresh = pc.replace_with_mask(fresh, own, missing)
        return fresh

    def _is_due(self, now: float, window_s: float) -> bool:
        return now - self._looked_at >= _LOOK * window_s or self._needs_scan(now, window_s)

    def _needs_scan(self, now: float, window_s: float) -> bool:
        recovery = self.recovery
        if recovery is None:
            return False
        if recovery.lacks_others:
            return True
        lives = recovery.scanned_at < self._took_at + _LIVES * window_s
        return lives and now - recovery.scanned_at >= _SCAN * window_s

    def _knows(self, now: float, window_s: float) -> bool:
        recovery = self.recovery
        if recovery is None:
            return True
        if recovery.lacks_others:
            return False
        is_last = recovery.scanned_at >= self._took_at + _LIVES * window_s
        return is_last or now - recovery.scanned_at < _UNKNOWN * window_s

    def _look(self, scans: bool) -> None:
        began = time.monotonic()
        try:
            Ledger(JetStream(self._client)).check(self._record)
            self._looked_at = began
            if scans and self.recovery is not None:
                self.recovery.refresh()
        finally:
            if self._is_closed:  # it may have dialled since
                self._client.close()

    def _take_errand(self) -> None:
        if self._errand is None or self._errand.is_alive():
            return
        error, self._errand, now = self._errand.error, None, time.monotonic()
        if error is None:
            self._good_at = now
            return
        is_over = now - self._good_at >= self._patience_s
        if is_over or not isinstance(error, JetStreamError) or not error.retryable:
            raise error
        self._again_at = now + _AGAIN_S
        logger.info("no look into the ledger task=%s reason=%s", self._record.name, error)


class _Errand(threading.Thread):
    """A thread that keeps what its job raises."""

    error: BaseException | None = None

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            self.error = error
