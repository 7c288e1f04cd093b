"""
The lease of a hot standby: one query reads, the others wait (`standby` decides, this does).

The record is a key of the Key-Value bucket `SPARK_STANDBY`, `<stream>.<consumer>`, of several
streams `=.<consumer>`. A thread renews it, or watches it, on a connection of its own: Spark calls
the driver only now and then. Only a change by compare-and-set makes a query the one that reads, so
a query that was frozen or cut off finds out before it plans another batch.

A query that waits stores a notice beside it, `<stream>.<consumer>.waits.<query>`, for operators
alone: no query goes by it, and one without the permission goes on without it.

`Standby` is the policy (`turn`) of a query that has a lease.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ..client.connection import Client
from ..client.info import StoredMessage
from ..client.jetstream import JetStream
from ..client.keyvalue import ROOM, Bucket
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
from ..tasks.rows import ReadTask, WarmUp
from .offsets import Offset, check_several, is_initial
from .options import SourceOptions
from .standby import (
    BUCKET,
    LEASE_S,
    SEVERAL,
    LeaseRecord,
    LeaseView,
    lease_key,
    next_position,
    waits_key,
)
from .turn import BatchStart, stay_of

logger = get_logger(__name__)

_JOIN_S: Final = 2.0
_TRIES: Final = 3

_WAIT_S: Final = 0.2
"""Seconds that a driver that is asked for a batch waits for the lease."""


class Lease:
    """
    One query's part in it, from its start to its end.

    After `close`, or when the process ends, the thread is gone and the record stands still.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        stream: str,
        owner: Owner,
        consumer: str,
        lease_s: float,
        check_first: Callable[[JetStream, bool], None] = lambda *_: None,
    ) -> None:
        """
        Args:
            check_first: raises `OptionError` if this query may not take the lease of another one,
                or (False) one that never was. It asks by this connection: the thread may call it.
        """
        self._client = Client(options)
        self._check_first = check_first
        self._bucket = Bucket(JetStream(self._client), BUCKET, "which of several queries reads")
        self._key = lease_key(stream, consumer)
        self._consumer = consumer
        self._notice = LeaseRecord(owner, lease_s, 0, 0)
        """Stands beside the record while this query waits."""
        self._notice_due = -math.inf
        self._lock = threading.RLock()
        """Held for every use of the connection, and for every change of what follows."""
        self._view = LeaseView(owner, lease_s)
        self._doubt: RecordError | OptionError | None = None
        """Error of a record that is not believed, or cannot be stored, as of the last look."""
        self._stopped = threading.Event()
        self._changed = threading.Event()
        """Set when a waiting caller should look: this query reads now, or never again."""
        try:
            self._ensure_bucket()
            self._watch()
        except BaseException:
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Lease {self._key}, {self._view!r}>"

    def _ensure_bucket(self) -> None:
        try:
            unfit = self._bucket.ensure()
        except JetStreamError as error:
            if error.retryable:
                raise
            adds = self._client.options.command(f"nats kv add {BUCKET} --max-bucket-size=64MB")
            unfit = (
                f"the bucket {BUCKET} cannot be used: {error}. If this user may not make buckets,"
                f" let another user run {adds}"
            )
        if unfit is not None:
            raise OptionError("standby", unfit)

    # ── what the driver asks ─────────────────────────────────────────────────────────────────

    @property
    def recorded(self) -> Offset | None:
        """End of the committed batches, by the last record seen."""
        with self._lock:
            return self._view.record.offset if self._view.record is not None else None

    def wait(self, timeout_s: float) -> bool:
        """
        Whether this query reads, waiting for that up to `timeout_s`.

        Raises:
            QueryFencedError: It did, and another one took its place.
            RecordError: Somebody else has stored the record.
            OptionError: The record has more streams than a message has room for.
        """
        self._changed.wait(timeout_s)
        with self._lock:
            if self._doubt is not None:
                raise self._doubt
            if self._view.is_reader and self._view.is_expired(time.monotonic()):
                self._renew()  # this process stood still: is the record still ours?
            self._check_fenced()
            return self._view.is_reader

    @property
    def holds(self) -> bool:
        """Whether this query reads, for all it knows without asking."""
        return self._view.holds(time.monotonic())

    def note(self, offset: Offset) -> None:
        """
        Notes where committed batches end, before the next one is planned.

        Raises:
            QueryFencedError: Another query took this one's place.
        """
        with self._lock:
            self._renew(offset)
            self._check_fenced()

    def report(self) -> dict[str, Any]:
        """For the progress: whether this query reads, else which one, and how long it is silent."""
        with self._lock:
            record, reads = self._view.record, self._view.is_reader
        if reads or record is None:
            return {"active": reads}
        who = record.owner
        return {
            "active": False,
            "query": who.query,
            "host": who.host,
            "pid": who.pid,
            "silent": round(self._view.silent_s, 1),
        }

    @property
    def reads(self) -> str:
        """The query that reads, in words."""
        with self._lock:
            record = self._view.record
        return str(record.owner) if record is not None else "nobody"

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
        view = self._view
        while view.fenced is None:
            if self._stopped.wait(view.renew_s if view.is_reader else view.next_look_s):
                return
            try:
                with self._lock:
                    if not view.is_reader:
                        self._watch()
                    elif view.is_renewal_due(time.monotonic()):
                        self._renew()
                    self._doubt = None
            except (RecordError, OptionError) as error:
                logger.warning("standby: the query fails when it asks who reads: %s", error)
                self._doubt = error
            except OffsetError as error:
                logger.warning("standby: the query waits, and looks again: %s", error)
            except JetStreamError as error:
                logger.info("standby: %s", error)
            except Exception as error:  # without this thread nobody renews, and nobody takes over
                logger.warning(
                    "standby: the query could not read or renew the lease, and tries again: %r",
                    error, exc_info=True,
                )  # fmt: skip

    def _watch(self) -> None:
        """One look at the record; takes the lease if this query may."""
        view = self._view
        (message,) = self._bucket.last(self._key)
        now = time.monotonic()
        before, sequence = _record_of(message)
        wanted = view.see(before, sequence, now)
        if view.left_s > view.renew_s:  # else the next look is what matters
            self._notify(now)
        if wanted is None:
            return
        another = before is not None and before.owner.query != view.owner.query
        if before is None or another:
            self._check_first(self._bucket.js, bool(sequence))
        stored = self._store(wanted, sequence)
        if stored is None:
            return  # another one was faster
        view.hold(wanted, stored, now)
        self._changed.set()
        taken = ""  # of nobody, or of an earlier run of the same query: no take-over
        if before is not None and another:
            taken = f", in place of {before.owner}, " + (
                "which has ended" if before.released
                else f"of which nothing was heard for {view.silent_s:.1f} s"
            )  # fmt: skip
        logger.log(
            logging.WARNING if taken else logging.INFO,
            "standby: consumer=%s: %s reads from now on (term %d)%s",
            self._consumer, view.owner, wanted.term, taken,
        )  # fmt: skip

    def _notify(self, now: float) -> None:
        """Says beside the record that this query waits, if it is time to; never raises."""
        if now < self._notice_due:
            return
        self._notice, self._notice_due = self._notice.renewed(), now + self._view.renew_s
        key = waits_key(self._key, self._notice.owner.query)
        try:
            (before,) = self._bucket.last(key)
            self._bucket.replace(key, self._notice.to_bytes(), before.sequence)
        except JetStreamError as error:
            logger.info("standby: operators are not told that this query waits: %s", error)
            if isinstance(error, PermissionsError):
                self._notice_due = math.inf

    def _renew(self, offset: Offset | None = None, released: bool = False) -> None:
        """Stores the record anew, or finds that this query is fenced."""
        view = self._view
        for _ in range(_TRIES):
            assert view.record is not None
            record, now = view.record.renewed(offset, released), time.monotonic()
            sequence = self._store(record, view.sequence)
            if sequence is not None:
                view.hold(record, sequence, now)
                return
            (message,) = self._bucket.last(self._key)
            if not view.meet(*_record_of(message)):
                break
        else:
            view.fenced = f"{view.owner} took the place of {view.owner}"  # who imitates it
        self._changed.set()
        logger.warning(
            "standby: consumer=%s: %s, so this query ends with QueryFencedError",
            self._consumer, view.fenced,
        )  # fmt: skip

    def _store(self, record: LeaseRecord, sequence: int) -> int | None:
        """
        Stores the record as `Bucket.replace` does.

        Raises:
            OptionError: It is larger than a message may be; the server would cut the connection.
        """
        data, most = record.to_bytes(), self._client.connection.max_payload
        if len(data) > most - ROOM:
            raise OptionError(
                "standby",
                f"the lease has the positions of all streams, which are {len(data)} bytes, and"
                f" the server's max_payload is {most}: read fewer streams, or raise it",
            )
        return self._bucket.replace(self._key, data, sequence)

    def _check_fenced(self) -> None:
        if self._view.fenced is not None:
            raise QueryFencedError(self._consumer, self._view.fenced)


def _record_of(message: StoredMessage) -> tuple[LeaseRecord | None, int]:
    """The record that a message holds, None where there is none; and its sequence."""
    return LeaseRecord.from_bytes(message.data) if message.data else None, message.sequence


class Standby:
    """
    The policy of a query with `standby`: it reads while it has the lease, from where the last one
    to read has committed.

    A query that waits has no task that would start Python's workers. So it has one batch without
    rows in each run, with a task for each partition; one that is new has such a batch anyway, and
    one that ends at what is there (`availableNow`) has none.
    """

    may_skip_looks = False

    def __init__(
        self,
        options: SourceOptions,
        owner_of: Callable[[str], Owner],
        check_first: Callable[[Offset, JetStream, bool], None],
    ) -> None:
        self._options = options
        self._owner_of = owner_of
        self._check_first = check_first
        self._lease: Lease | None = None
        self._warmed = False
        """Whether this run had its batch without rows."""

    def _lease_of(self, offset: Offset) -> Lease:
        # Made on first use: only an offset says whose checkpoint this is.
        if self._lease is None:
            options = self._options
            self._lease = Lease(
                options.connection,
                options.stream if options.several is None else SEVERAL,
                self._owner_of(offset.query or os.urandom(5).hex()),
                offset.consumer,
                options.priority_timeout_s or LEASE_S,
                partial(self._check_first, offset),
            )
        return self._lease

    @property
    def holds(self) -> bool:
        """Whether this query reads, for all it knows without asking."""
        return self._lease is not None and self._lease.holds

    def take_turn(self, own: Offset, initial: bool, created: Mapping[str, str]) -> Offset | None:
        """
        Start of the next batch; None while another query reads. What the query was asked to go on
        from is committed in Spark's log by then, and is noted for the next query.

        Raises:
            QueryFencedError: Another query took this one's place.
            OffsetError: The other query has other partitions or streams.
        """
        lease = self._lease_of(own)
        if not lease.wait(_WAIT_S):
            self._warmed |= initial
            return None
        offset = next_position(own, initial, lease.recorded, created)
        if self._options.several is not None:
            remedy = "give this query the same options"
            check_several(offset.streams, self._options.several, remedy, "the active query")
        self._note(lease, offset)
        return offset

    def start(self, asked: Mapping[str, Any], own: Offset, checked: Offset) -> BatchStart:
        """
        The beginning of the next batch, which is noted.

        Raises:
            QueryFencedError: Another query took this one's place.
        """
        self._note(self._lease_of(checked), checked)
        resumed = () if checked.is_at(own) else checked.sequences
        return BatchStart(checked, resumed, stay_of(asked, own))

    def waiting(self, asked: Mapping[str, Any], own: Offset, ends: bool) -> dict[str, Any]:
        """The answer to Spark while another query reads: in each run once a batch without rows."""
        if is_initial(asked) or ends or self._warmed:
            return stay_of(asked, own)
        self._warmed = True
        everywhere = tuple(range(len(own.sequences)))
        noted = tuple(asked.get("idle", ())) == everywhere  # by the run before: it must differ
        return replace(own, idle=frozenset(() if noted else everywhere)).to_json()

    @staticmethod
    def _note(lease: Lease, offset: Offset) -> None:
        """Notes where the next batch begins, unless that is noted by this query."""
        there = lease.recorded
        if there is None or there.query != offset.query or not there.is_at(offset):
            lease.note(offset)

    def may_run(self, upto: Offset, is_empty: bool) -> bool:
        """
        Whether the batch that ends here may run. One that was planned a moment ago may at once. One
        that an earlier run left unfinished cannot be left out, and waits for as long as another
        query reads; one without rows does not wait.

        Raises:
            QueryFencedError: Another query took this one's place.
        """
        if is_empty:
            return self.holds
        lease = self._lease_of(upto)
        if not lease.wait(_WAIT_S):
            logger.warning(
                "standby: %s reads, so the batch that this query has begun waits. It goes on when"
                " that query stops, or does not renew its lease",
                lease.reads,
            )
            while not lease.wait(_WAIT_S):
                pass
        return True

    def is_past(self, upto: Offset) -> bool:
        """
        Whether all up to here is committed by another query: its rows are handed on, and may have
        left the stream. A query's own note says nothing: its checkpoint may have been taken back.
        """
        recorded = self._lease.recorded if self._lease is not None else None
        if recorded is None or recorded.query == upto.query:
            return False
        if self._options.several is None and recorded.layout not in (None, upto.layout):
            return True  # whoever went over to other partitions has read these
        if any(recorded.streams.get(name) != made for name, made in upto.streams.items()):
            return False  # positions of another stream
        theirs = recorded.by_place
        return all(theirs.get(place, -1) >= mine for place, mine in upto.by_place.items())

    def warm_ups(self, tasks: int) -> list[ReadTask]:
        """
        The tasks of a batch without rows: as many as there will be with rows, so that a take-over
        finds workers that have started. A batch that runs again has the same ones.
        """
        return [ReadTask(self._options.connection, WarmUp()) for _ in range(tasks)]

    def label(self, offset: Offset) -> str:
        """The label that tells the query's metrics from those of others with the same consumers."""
        return offset.query

    def report(self) -> dict[str, Any]:
        """Fields of the progress beside the partitions: `Lease.report`."""
        return {"standby": self._lease.report() if self._lease is not None else {"active": False}}

    def close(self) -> None:
        """Lets the others go on; never raises."""
        if self._lease is not None:
            self._lease.close()
