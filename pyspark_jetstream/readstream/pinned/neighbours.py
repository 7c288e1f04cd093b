"""
Other users of a query's consumers: queries, by the metadata; other clients, by their pulls.

Before a run touches a consumer that is there it asks whether the query that made it lives. Before
a batch, while no attempt of this query runs, it looks who is pinned and who waits at the consumers
that the driver has just seen (`durables`). What that
means is judged in `ownership`; `pinwatch` hears what attempts announce.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from ...client.connection import Client
from ...client.info import ConsumerInfo
from ...client.jetstream import JetStream
from ...client.wire import is_inbox
from ...errors import ForeignClientError, JetStreamError, OptionError
from ...fetch.consumer import ConsumerRead
from ...fetch.owner import Owner
from ...sanitize import get_logger
from ..arrivals import Arrivals
from ..options import SourceOptions
from .ownership import ConsumerView, Pins, foreign_client
from .pinwatch import PinWatch

logger = get_logger(__name__)

_SERVER_PRIORITY_TIMEOUT_S: Final = 120.0
"""JsDefaultPinnedTTL."""

_ALIVE_WITHIN_S: Final = 2.0
"""A driver that is asked whether it is alive answers within it."""

_MARGIN_S: Final = 5.0


class Neighbours:
    """Other clients at the query's consumers, in one run."""

    def __init__(self, options: SourceOptions, arrivals: Arrivals) -> None:
        self._pins = Pins({})
        self._lock = threading.Lock()
        """Held for every use of `_pins`."""
        self._watch: PinWatch | None = None
        """Listens for pins; None before there is a consumer."""
        self._options = options
        self._arrivals = arrivals
        self._began = self._planned = time.monotonic()
        self._waiting_since: dict[int, float] = {}

    def close(self) -> None:
        """Ends what listens for pins."""
        if self._watch is not None:
            self._watch.close()

    def report(self, partition: int) -> dict[str, Any]:
        """See `Pins.report`."""
        with self._lock:
            return self._pins.report(partition)

    def pin(self, partition: int) -> str:
        """See `Pins.pin`."""
        with self._lock:
            return self._pins.pin(partition)

    @property
    def query_name(self) -> str:
        """The name that Spark's user gave the query; "" before an attempt has announced it."""
        with self._lock:
            return self._pins.query_name

    def listen(self, reads: Sequence[ConsumerRead], owner: Owner) -> None:
        """Begins to listen for pins of these consumers."""
        if self._watch is None:
            connection = self._options.connection
            self._pins = Pins({(read.stream, read.consumer): read.partition for read in reads})
            self._watch = PinWatch(connection, owner, self._pins, self._lock, self._arrivals)
            self._watch.wait(connection.connect_timeout_s)

    def begin_run(self) -> None:
        """Notes that this run has taken the consumers over."""
        self._began = self._planned = time.monotonic()

    def check_owners(
        self, reads: Sequence[ConsumerRead], consumers: Sequence[ConsumerInfo | None]
    ) -> None:
        """
        Accepts consumers that belong to nobody else, before any of them is touched.

        Raises:
            ForeignClientError: One belongs to another query, whose driver lives.
            OptionError: One was read last by another query, under a lease that this one has not,
                or when a lease was there already.
        """
        asked: dict[str, bool] = {}
        lease: str | None = None
        for read, info in zip(reads, consumers, strict=True):
            other = Owner.of(info.config) if info is not None else None
            mine = read.owner.query if read.owner is not None else ""
            if other is None or not other.query or not mine or other.query == mine:
                continue
            if other.standby and self._options.standby:
                continue  # the lease has decided
            if other.inbox not in asked:
                asked[other.inbox] = self._is_alive(other)
            if asked[other.inbox]:
                raise ForeignClientError(
                    read.stream,
                    read.partition,
                    f"consumer '{read.consumer}' belongs to {other}, which is running with another"
                    " checkpoint: two queries cannot read through one consumer. Give this query"
                    " another name in option consumer, or stop that one (standby=true lets one wait"
                    " for the other)",
                )
            if other.standby:
                raise OptionError(
                    "standby",
                    f"consumer '{read.consumer}' is that of {other}, which read with standby=true:"
                    " only the lease says how far. Start this query with standby=true, and it goes"
                    " on from there; afterwards it may run without. Or start that query instead,"
                    " over its own checkpoint. Or delete the consumers: then this query reads once"
                    " more what that one has read",
                )
            if lease is None:
                lease = "" if self._options.standby else self._lease_left()
            if lease:
                raise OptionError(
                    "standby",
                    f"consumer '{read.consumer}' is that of {other}, and of queries that had"
                    f" standby=true: their lease is still there. Start that query instead, over its"
                    f" own checkpoint. Or remove the lease (nats kv del {lease}): then this query"
                    " reads once more what that one has read",
                )
            logger.warning(
                "stream=%s consumer=%s: this query takes the consumer over from %s, which does not"
                " answer",
                read.stream, read.consumer, other,
            )  # fmt: skip

    def _lease_left(self) -> str:
        """
        Bucket and key of the lease that a query had at these consumers; "" where there is none, or
        no right to look.
        """
        from ...client.keyvalue import Bucket
        from ..standby import BUCKET, lease_key

        key = lease_key(self._options.stream, self._options.consumer or "")
        client = Client(self._options.connection)
        try:
            bucket = Bucket(JetStream(client), BUCKET, "which of several queries reads")
            (record,) = bucket.last(key)
            return f"{BUCKET} {key}" if record.data else ""
        except JetStreamError as error:
            logger.info("lease %s: %s", key, error)
            return ""
        finally:
            client.close()

    def _is_alive(self, other: Owner) -> bool:
        """Whether the driver of that run answers; one that names no inbox is not asked."""
        if not is_inbox(f"{other.inbox}.owner", self._options.connection.inbox_prefix):
            return False
        client = Client(self._options.connection)
        try:
            reply = client.connection.request(f"{other.inbox}.owner", b"", _ALIVE_WITHIN_S)
            return reply.status == 0
        except JetStreamError as error:
            logger.info("no answer from %s: %s", other, error)
            return False
        finally:
            client.close()

    # ── before each batch ────────────────────────────────────────────────────────────────────

    def measure_gap_s(self) -> float:
        """Seconds since the last batch was planned; notes that one is planned now."""
        now = time.monotonic()
        gap_s, self._planned = now - self._planned, now
        return gap_s

    def check(self, read: ConsumerRead, info: ConsumerInfo, inbox: str, gap_s: float) -> None:
        """
        Checks that nobody else is at this consumer, while no attempt of this query runs.

        Args:
            inbox: of this run.

        Raises:
            ForeignClientError: Another query has taken it over, or another client pulls from it.
        """
        now = time.monotonic()
        owner = Owner.of(info.config)
        if owner is not None and owner.inbox != inbox:
            raise ForeignClientError(
                read.stream,
                read.partition,
                f"{owner} has taken consumer '{read.consumer}' over from this run; stop one of"
                " them, or give each a name of its own in option consumer",
            )
        with self._lock:
            self._pins.set_pinned(read.partition, info.pinned_id, info.pinned_ts)
            stranger = self._pins.is_stranger(read.partition, info.pinned_id)
        waiting = max(0, info.num_waiting - self._arrivals.is_open(read.partition))
        since = self._waiting_since.setdefault(read.partition, now)
        if not waiting:
            since = now
            del self._waiting_since[read.partition]
        why = foreign_client(
            ConsumerView(
                pinned=info.pinned_id,
                stranger=stranger,
                waiting=waiting,
                waiting_for_s=now - since,
                settles=read.retention != "limits",
                gap_s=gap_s,
                timeout_s=self._options.priority_timeout_s or _SERVER_PRIORITY_TIMEOUT_S,
                age_s=now - self._began,
                patience_s=self._options.connection.request_timeout_s + _MARGIN_S,
            )
        )
        if why is not None:
            raise ForeignClientError(
                read.stream, read.partition, f"consumer '{read.consumer}': {why}"
            )
