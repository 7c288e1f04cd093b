"""
The lease of a hot standby: one query reads, the others wait (`standby` decides, this does).

The record is a key of the Key-Value bucket `SPARK_STANDBY`, `<stream>.<consumer>`. A thread renews
it, or watches it, on a connection of its own: Spark calls the driver only now and then. Only a
change by compare-and-set makes a query the one that reads, so a query that was frozen or cut off
finds out before it plans another batch.

One that waits says so beside it, `<stream>.<consumer>.waits.<query>`, for operators alone: nothing
goes by that, and where it may not be said it is not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..client.keyvalue import Bucket
from ..client.options import ConnectionOptions
from ..errors import (
    JetStreamError,
    OffsetError,
    OptionError,
    PermissionsError,
    QueryFencedError,
    RecordError,
)
from ..fetch.owner import Owner
from ..sanitize import get_logger
from .offsets import Offset
from .options import SourceOptions
from .standby import LEASE_S, RENEWALS, Record, Silence, Waiting, begin, left_s

__all__ = ["BUCKET", "Lease", "StandbyTurn"]

logger = get_logger(__name__)

BUCKET: Final = "SPARK_STANDBY"

_LOOKS: Final = 24
"""How often at least a waiting query looks at the record in the time that it may stand still."""

_LOOK_S: Final = 0.5
"""The longest between two looks."""

_JOIN_S: Final = 2.0
_TRIES: Final = 3

_WAIT_S: Final = 0.2
"""How long a driver that is asked for a batch waits for the lease."""


class Lease:
    """
    One query's part in it, from its start to its end.

    After `close`, or when the process ends, the thread is gone and the record stands still.
    """

    def __init__(
        self, options: ConnectionOptions, stream: str, owner: Owner, consumer: str, lease_s: float
    ) -> None:
        self._client = Client(options)
        self._bucket = Bucket(JetStream(self._client), BUCKET, "which of several queries reads")
        self._key = f"{stream.replace('{partition}', '=')}.{consumer}"
        self._consumer = consumer
        self._owner = owner
        self._lease_s = lease_s
        self._look_s = min(_LOOK_S, lease_s / _LOOKS)
        self._next_look_s = self._look_s
        """Until the next look of a query that waits: not beyond the end of the lease."""
        self._silence = Silence(max(2.0, 4 * self._look_s))
        self._lock = threading.RLock()
        """Held for every use of the connection and of what follows."""
        self._record: Record | None = None
        """The last one seen; our own while `_active`."""
        self._sequence = 0
        self._silent_s = 0.0
        self._renewed = 0.0
        """When the last renewal that succeeded began."""
        self._said = 0
        """How often it said that it waits."""
        self._says_next = float("-inf")
        self._fenced: str | None = None
        self._doubt: RecordError | None = None
        """Why the record is not believed, as of the last look."""
        self._stopped = threading.Event()
        self._active = threading.Event()
        self._changed = threading.Event()
        """Set when a waiting caller should look: this query reads now, or never again."""
        try:
            unfit = self._bucket.ensure()
        except JetStreamError as error:
            if not error.retryable:
                unfit = f"the bucket {BUCKET} cannot be used: {error}; let an administrator make it"
            else:
                self._client.close()
                raise
        if unfit is not None:
            self._client.close()
            raise OptionError("standby", unfit)
        try:
            self._watch()
        except BaseException:
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    # ── what the driver asks ─────────────────────────────────────────────────────────────────

    @property
    def recorded(self) -> Offset | None:
        """Where committed batches end, by the last record seen."""
        with self._lock:
            return self._record.offset if self._record is not None else None

    def wait(self, timeout_s: float) -> bool:
        """
        Whether this query reads, waiting for that up to `timeout_s`.

        Raises:
            QueryFencedError: It did, and another one took its place.
            RecordError: Somebody else has stored the record.
        """
        self._changed.wait(timeout_s)
        with self._lock:
            if self._doubt is not None:
                raise self._doubt
            if self._active.is_set() and time.monotonic() - self._renewed > self._lease_s:
                self._renew()  # this process stood still: is the record still ours?
            if self._fenced is not None:
                raise QueryFencedError(self._consumer, self._fenced)
            return self._active.is_set()

    @property
    def holds(self) -> bool:
        """Whether this query reads, for all it knows without asking."""
        return (
            self._active.is_set()
            and self._fenced is None
            and time.monotonic() - self._renewed <= self._lease_s
        )

    def note(self, offset: Offset) -> None:
        """
        Notes where committed batches end, before the next one is planned.

        Raises:
            QueryFencedError: Another query took this one's place.
        """
        with self._lock:
            self._renew(offset)
            if self._fenced is not None:
                raise QueryFencedError(self._consumer, self._fenced)

    def report(self) -> dict[str, Any]:
        """As the progress shows it: whether this query reads, else who does, how long silent."""
        with self._lock:
            record, active = self._record, self._active.is_set()
        if active or record is None:
            return {"active": active}
        who = record.owner
        return {
            "active": False,
            "query": who.query,
            "host": who.host,
            "pid": who.pid,
            "silent": round(self._silent_s, 1),
        }

    def close(self) -> None:
        """Ends the thread, and lets the others go on at once; never raises."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(_JOIN_S)
        if not self._lock.acquire(timeout=_JOIN_S):
            return  # the thread hangs in a request; it ends with the process
        try:
            if self.holds:
                self._renew(released=True)
        except JetStreamError as error:
            logger.info("the lease was not given back: %s", error)
        finally:
            self._client.close()
            self._lock.release()

    # ── the thread ───────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while self._fenced is None:
            active = self._active.is_set()
            if self._stopped.wait(self._lease_s / RENEWALS if active else self._next_look_s):
                return
            try:
                with self._lock:
                    if self._active.is_set():
                        if time.monotonic() - self._renewed > self._lease_s / RENEWALS / 2:
                            self._renew()
                    else:
                        self._watch()
                    self._doubt = None
            except RecordError as error:
                logger.warning("standby: %s", error)
                self._doubt = error
            except OffsetError as error:
                logger.warning("standby: %s", error)
            except JetStreamError as error:
                logger.info("standby: %s", error)
            except Exception as error:  # without this thread nobody renews, and nobody takes over
                logger.warning("standby: %r", error, exc_info=True)

    def _watch(self) -> None:
        """One look at the record; takes it if it may."""
        (message,) = self._bucket.last(self._key)
        now = time.monotonic()
        there = message is not None and message.data
        self._sequence = message.sequence if message is not None else 0
        self._record = Record.from_bytes(message.data) if message is not None and there else None
        self._silent_s = self._silence.seen(self._sequence, now)
        left = left_s(self._record, self._owner, self._lease_s, self._silent_s)
        self._next_look_s = min(self._look_s, left) or self._look_s
        if left > self._lease_s / RENEWALS:  # else the next look is what matters
            self._say_that_it_waits(now)
        if left > 0:
            return
        before = self._record
        if before is None:
            record = Record(self._owner, self._lease_s, 1, 0)
        else:
            record = before.taken(self._owner, self._lease_s)
        sequence = self._bucket.replace(self._key, record.to_bytes(), self._sequence)
        if sequence is None:
            return  # another one was faster
        self._record, self._sequence, self._renewed = record, sequence, now
        self._active.set()
        self._changed.set()
        logger.warning(
            "standby: consumer=%s %s reads from now on, term=%d, in place of %s, silent=%.1fs",
            self._consumer, self._owner, record.term,
            before.owner if before is not None else "nobody", self._silent_s,
        )  # fmt: skip

    def _say_that_it_waits(self, now: float) -> None:
        if now < self._says_next:
            return
        self._says_next = now + self._lease_s / RENEWALS
        self._said += 1
        key = Waiting.key(self._key, self._owner.query)
        try:
            (before,) = self._bucket.last(key)
            content = Waiting(self._owner, self._lease_s, self._said).to_bytes()
            self._bucket.replace(key, content, before.sequence if before is not None else 0)
        except JetStreamError as error:
            logger.info("standby: operators are not told that this query waits: %s", error)
            if isinstance(error, PermissionsError):
                self._says_next = float("inf")

    def _renew(self, offset: Offset | None = None, released: bool = False) -> None:
        assert self._record is not None
        other: Owner | str = "somebody"
        for _ in range(_TRIES):
            record = self._record.renewed(offset, released)
            now = time.monotonic()
            sequence = self._bucket.replace(self._key, record.to_bytes(), self._sequence)
            if sequence is not None:
                self._record, self._sequence, self._renewed = record, sequence, now
                return
            (message,) = self._bucket.last(self._key)
            if message is None or not message.data:
                other = "somebody (the record is deleted)"
                break
            there = Record.from_bytes(message.data)
            other = there.owner
            if other != self._owner:
                break
            # A renewal of ours whose answer never came.
            self._record, self._sequence = there, message.sequence
        self._fenced = f"{other} took the place of {self._owner}"
        self._changed.set()
        logger.warning("standby: consumer=%s %s", self._consumer, self._fenced)


class StandbyTurn:
    """What a query with `standby` asks before each batch: whether to read, and from where."""

    def __init__(self, options: SourceOptions, owner_of: Callable[[str], Owner]) -> None:
        self._options = options
        self._owner_of = owner_of
        self._lease: Lease | None = None

    def _of(self, offset: Offset) -> Lease:
        # Made on first use: only an offset says whose checkpoint this is.
        if self._lease is None:
            options = self._options
            self._lease = Lease(
                options.connection,
                options.stream,
                self._owner_of(offset.query or os.urandom(5).hex()),
                offset.consumer,
                options.priority_timeout_s or LEASE_S,
            )
        return self._lease

    def begin(self, own: Offset, initial: bool, created: Mapping[str, str]) -> Offset | None:
        """
        Where the next batch begins; None while another query reads. What the query was asked to go
        on from is committed in Spark's log by then, and is noted for whoever comes next.

        Raises:
            QueryFencedError: Another query took this one's place.
            OffsetError: The other query has other partitions or streams.
        """
        lease = self._of(own)
        if not lease.wait(_WAIT_S):
            return None
        recorded = lease.recorded
        offset = begin(own, initial, recorded, created)
        self.note(offset)
        return offset

    def note(self, offset: Offset) -> None:
        """
        Notes where the next batch begins, unless that is noted.

        Raises:
            QueryFencedError: Another query took this one's place.
        """
        lease = self._of(offset)
        there = lease.recorded
        if (
            there is None
            or there.sequences != offset.sequences
            or dict(there.streams) != dict(offset.streams)
        ):
            lease.note(offset)

    def wait(self, end: Offset) -> None:
        """
        Returns when it is this query's turn to run the batch that ends here. One that was planned a
        moment ago does so at once. One that an earlier run left unfinished cannot be left out, and
        waits for as long as another query reads.

        Raises:
            QueryFencedError: Another query took this one's place.
        """
        lease = self._of(end)
        if not lease.wait(_WAIT_S):
            logger.warning("standby: an unfinished batch waits for %s", lease.report())
            while not lease.wait(_WAIT_S):
                pass

    def is_past(self, end: Offset) -> bool:
        """Whether all up to here is committed somewhere, so that it may have left the stream."""
        recorded = self._lease.recorded if self._lease is not None else None
        return recorded is not None and all(
            theirs >= mine for theirs, mine in zip(recorded.sequences, end.sequences, strict=True)
        )

    @property
    def holds(self) -> bool:
        """Whether this query reads, for all it knows without asking."""
        return self._lease is not None and self._lease.holds

    def report(self) -> dict[str, Any]:
        """See `Lease.report`."""
        return self._lease.report() if self._lease is not None else {"active": False}

    def close(self) -> None:
        """Lets the others go on; never raises."""
        if self._lease is not None:
            self._lease.close()
