"""
Rows of paused subjects in a stream of their own (`throttleParkStream`), and their way on.

A task parks its rows (`outbox.parking`); the batch ends, and the driver's commit drains: it sends
the rows of committed batches whose subjects are not paused, in the order of each subject, and
removes them from the parking stream when each is stored. Rows that come meanwhile are parked behind
them, as each attempt looks which subjects have rows there before its first one. So of a subject
either tasks publish, or drains.

Rule 1: a row is sent only if its stream does not have its id behind the sequence that its letter
notes: where that stream ended before any attempt of the row's task. So it does not matter which
drain, or which attempt that was thought dead, has stored it, however long ago.
Rule 2: of two drains the later one goes on (a record in the ledger). What both send in the meantime
is within the streams' duplicate windows.
Rule 3: a row leaves the parking stream after its PubAck. A drain may end at any time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..client.connection import Client, borrow
from ..client.jetstream import JetStream
from ..errors import OptionError, StreamNotFoundError
from ..outbox.deadletters import DeadLetters, notes, restore
from ..outbox.lettersubjects import SUBJECT
from ..outbox.messages import Messages
from ..outbox.parking import Parking, Staying, parking_prefix
from ..outbox.targets import Target
from ..outbox.throttling.throttle import PausedBy
from ..outbox.throttling.throttleprotocol import new_producer_id
from ..publish.context import WriteContext
from ..publish.options import SinkOptions, StreamCreation
from ..publish.publisher import Publisher
from ..publish.rowthread import Supply
from ..publish.telemetry import Origin
from ..sanitize import get_logger
from .creation import create_streams
from .exactlyonce.changes import FoundStream
from .exactlyonce.committed import Committed
from .exactlyonce.ledger import Ledger, drained_by, parked_of
from .exactlyonce.records import TaskRecord
from .exactlyonce.recovery import ID_LINE, stored_messages
from .rows import MessageBuilder
from .streams import Streams, duplicate_id

logger = get_logger(__name__)

DRAIN_S: Final = 10.0
"""Time that a commit gives to rows that are parked; what is left then goes with the next one."""

PARK_BYTES: Final = "throttleParkBytes"
"""Name under which a commit notes that option."""

_IDLE_S: Final = 0.25
"""A drain that has sent nothing for so long, as its rows wait for a rate, leaves them."""

_REFRESH: Final = 0.5
_FENCE: Final = 0.25
"""Parts of a duplicate window after which streams, and the ledger, are looked at again."""

_UNFIT: Final = (
    "mirror", "sources", "subject_transform", "sealed", "deny_purge", "no_ack",
    "allow_msg_counter",
)  # fmt: skip
"""Settings of a stream that can be no parking stream."""

_LIMITS: Final = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")

_MADE: Final = "^[0-9a-f]{16}-[0-9]+-[0-9]+$"
"""Ids that are made for rows."""

_SAID: Final[set[str]] = set()
"""Parking streams of which this process has said that they are full."""


def ensure_parking(js: JetStream, options: SinkOptions) -> None:
    """
    Looks whether the parking stream can be one, and makes it where `createStream` says so.

    Raises:
        OptionError: It cannot, or there is none.
    """
    name = options.rules.park_stream
    if name is None:
        return
    try:
        config = js.stream_info(name).config
    except StreamNotFoundError:
        if options.create is None:
            why = f"there is no stream '{name}'; createStream=true makes it"
            raise OptionError("throttleParkStream", why) from None
        replicas = options.create.config.get("num_replicas") or 1
        wanted = StreamCreation(name, (f"{name}.>",), 1, {"num_replicas": replicas})
        create_streams(js, wanted)
        config = js.stream_info(name).config
    fault = _fault(name, config)
    if fault is not None:
        raise OptionError("throttleParkStream", f"stream '{name}' {fault}")


def _fault(name: str, config: dict[str, Any]) -> str | None:
    """Reason that a stream cannot keep parked rows."""
    if f"{name}.>" not in (config.get("subjects") or ()):
        return f"does not take '{name}.>', on which rows are parked; add it to its subjects"
    retention = config.get("retention", "limits")
    if retention != "limits":
        return f"has {retention} retention: rows would go when somebody reads them"
    for setting in _UNFIT:
        if config.get(setting):
            return f"has {setting}: rows could not be kept, or not be removed; take it off"
    for limit in _LIMITS:
        if int(config.get(limit) or 0) > 0:
            why = "it may drop rows, or refuse some that have to follow others"
            return f"has a {limit}: {why}; take it off (`nats stream edit {name}`)"
    return None


def check_parked(js: JetStream, options: SinkOptions, query: str, committed: Committed) -> None:
    """
    Looks whether rows of a query are parked where nobody would look for them any more.

    Raises:
        OptionError: There are, and rows of this batch would overtake them.
    """
    name = committed.parking
    if name == options.rules.park_stream:
        return
    if rows := parked_of(js, committed, query):
        raise OptionError(
            "throttleParkStream",
            f"{rows} rows of the query are parked in stream '{name}', and later ones would overtake"
            f" them: set it to {name}, or end the pause and send them ({drained_by(js, name)})",
        )


def found_parking(streams: Streams, options: SinkOptions) -> dict[str, Target]:
    """
    The parking stream as one that rows may go to, if there is one; notes how it is.

    Raises:
        StreamNotFoundError: It is gone.
    """
    name = options.rules.park_stream
    if name is None:
        return {}
    info = JetStream(streams.client).stream_info(name)
    # Drains remove rows from it while others are stored.
    streams.seen[name] = replace(FoundStream.of(info), keeps=False)
    return {name: Target.parse(info.config)}


def parking(streams: Streams, options: SinkOptions, record: TaskRecord) -> Parking | None:
    """
    Parking of a task's rows, None for none whatever is paused.

    Args:
        record: of the task, which notes the parking stream and all streams that rows go to.
    """
    name, targets = options.rules.park_stream, streams.targets
    if name is None:
        return None
    query, batch = record.name.write, record.name.batch
    prefix = parking_prefix(name, query)
    _, subjects = JetStream(streams.client).subject_counts(name, [f"{prefix}>"])

    def behind(place: int) -> str:
        before = record.streams[targets[place].name]
        return f"{before.end} {before.created}"

    def has_room() -> bool:
        with streams.requests:
            info = JetStream(streams.client).stream_info(name)
        if info.bytes < options.rules.park_bytes:
            _SAID.discard(name)
            return True
        if name not in _SAID:
            _SAID.add(name)
            logger.warning(
                "stream=%s has %d bytes, and throttleParkBytes allows no more. Until parked rows"
                " leave it, rows of paused subjects wait in their batches, which do not end"
                " meanwhile", name, info.bytes,
            )  # fmt: skip
        return False

    max_payload = streams.client.connection.max_payload
    letters = DeadLetters(f"{prefix}{SUBJECT}", query, batch, max_payload, suffix="")
    known = {subject.removeprefix(prefix) for subject in subjects}
    return Parking(letters, targets, behind, known, has_room)


def parked_rows(js: JetStream, stream: str, of: str | None = None) -> dict[str, dict[str, int]]:
    """
    Number of rows that are parked: by query, by subject.

    Args:
        of: a query, None for all.

    Raises:
        StreamNotFoundError: There is no such stream.
    """
    found: dict[str, dict[str, int]] = {}
    prefix = parking_prefix(stream)
    for name, rows in js.subject_counts(stream, [f"{parking_prefix(stream, of)}>"])[1].items():
        query, _, subject = name.removeprefix(prefix).partition(".")
        found.setdefault(query, {})[subject] = rows
    return found


def drain(
    options: SinkOptions,
    query: str,
    for_s: float = DRAIN_S,
    process: str = "",
    is_new: bool = False,
) -> int:
    """
    Sends the parked rows of a query whose subjects are not paused; how many are left, of those that
    were parked when it began. None is where another process has begun to send them.

    Args:
        for_s: after which no more are sent.
        process: name of the process that drains again and again; "" for others.
        is_new: whether it has not drained yet.

    Raises:
        PublishError: A row was not stored; it and those behind it stay parked.
        WriterFencedError: Another drain has begun.
    """
    name = options.rules.park_stream
    if name is None:
        return 0
    with borrow(options.connection) as client:
        prefix = parking_prefix(name, query)
        end, counts = JetStream(client).subject_counts(name, [f"{prefix}>"])
        if not counts:
            return 0
        taken = Ledger(JetStream(client)).take_drain(query, process, is_new)
        if taken is None:
            return 0
        with closing(Streams(client, options)) as streams:
            one = _Drain(client, options, streams, query, taken)
            return one.run({s.removeprefix(prefix): c for s, c in counts.items()}, end, for_s)


class _Drain:
    """
    One drain, which ends when nothing more may go.

    Args:
        taken: the last batch that is committed, and the sequence of the drain's record.
    """

    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        streams: Streams,
        query: str,
        taken: tuple[int, int],
    ) -> None:
        self._client = client
        # Rows that wait too long here stay parked: none is shed for it.
        rules = replace(options.rules, sheddable=frozenset(), queue_timeout_s=math.inf)
        self._options = replace(options, rules=rules)
        self._streams = streams
        self._query = query
        self._stream = options.rules.park_stream or ""
        self._prefix = parking_prefix(self._stream, query)
        self._batch, self._lease = taken
        self._looked_at = time.monotonic()
        self._staying = Staying()
        self._rows: list[tuple[str, int]] = []
        """Subject and sequence in the parking stream of each row, by its number."""
        self._behind: dict[str, tuple[int, str]] = {}
        """By subject, the first sequence behind which a row may be, and of which stream."""
        self._scans: dict[str, tuple[int, float]] = {}
        """By subject, up to which sequence its stream was read, and when."""
        self._ids: dict[str, set[bytes]] = {}
        """By subject, the ids that were read there."""

    def __repr__(self) -> str:
        return f"<_Drain of {self._prefix}>"

    def run(self, counts: dict[str, int], end: int, for_s: float) -> int:
        """
        Args:
            counts: how many rows each subject has.
            end: the last sequence that is read.
        """
        options, streams = self._options, self._streams
        streams.publishing = True
        origin = Origin(
            new_producer_id((self._query, "drain", self._lease)),
            self._query, self._batch, options.metrics.query_name or "",
        )  # fmt: skip
        context = WriteContext(
            options, streams.targets, origin, is_checked=True, aside=self._staying
        )
        over = time.monotonic() + for_s
        with (
            Supply(self._read(list(counts), end)) as supply,
            Publisher(self._client, context, supply) as publisher,
        ):
            pauses = publisher.pauses
            while pauses.awaits_operators(publisher.sender.connection, time.monotonic()):
                publisher.turn()
            sent_at, turn = time.monotonic(), -1
            while publisher.busy and (now := time.monotonic()) < over:
                self._check_latest(now)
                if turn != pauses.throttle.turn:  # others are paused than before
                    turn = pauses.throttle.turn
                    self._staying.subjects.update(
                        subject
                        for subject in counts
                        if pauses.throttle.is_paused(subject, now, (PausedBy.OPERATOR,))
                    )
                leaving = publisher.leaving()
                for each in leaving:
                    publisher.release(each, self._fresh(each.rows))
                if leaving or supply.asked or any(lane.busy for lane in publisher.lanes.all):
                    sent_at = now
                elif now - sent_at > _IDLE_S:
                    break
                repeated = publisher.turn()
                if repeated is not None:
                    self._check_repeated(repeated)
            publisher.settle()
            waiting = [messages.rows for messages in publisher.admission.messages()]
            # Blocks come in order; one that was read and not taken has no row that went out.
            taken = publisher.admission.offered + publisher.shedding.unfit
            publisher.close()
        left = pa.chunked_array([*waiting, *self._staying.rows], pa.int64()).to_pylist()
        return self._remove(taken, left, counts)

    def _check_latest(self, now: float) -> None:
        """
        Raises:
            WriterFencedError: Another drain has begun.
        """
        windows = [target.duplicate_window_s for target in self._streams.targets.streams]
        if now - self._looked_at < _FENCE * min(windows, default=math.inf):
            return
        self._looked_at = now
        with self._streams.requests:
            Ledger(JetStream(self._streams.client)).check_drain(self._query, self._lease)

    # ── the parking stream ───────────────────────────────────────────────────────────────────

    def _read(self, subjects: list[str], end: int) -> Iterator[Messages]:
        """The rows that may go, subject by subject; another thread asks for them."""
        from ..fetch.own import Own
        from ..fetch.pulling.alone import OwnAttempt

        options = self._options
        builder = MessageBuilder(
            options=replace(options.rows, subject=None, mapping=None, mapping_key=None),
            max_payload=self._client.connection.max_payload,
            targets=self._streams.targets,
            priorities=options.priorities,
        )
        with closing(Client(options.connection)) as reader:
            for subject in subjects:
                if subject in self._staying.subjects:
                    continue
                filter_ = f"{self._prefix}{subject}"
                read = Own(None, self._stream, filter_, 0, end, None, True, False)
                for batch in OwnAttempt(reader, read).batches():
                    rows = self._sound(subject, batch)
                    if rows.num_rows:
                        yield builder.build(rows)
                    if rows.num_rows < batch.num_rows or subject in self._staying.subjects:
                        break

    def _sound(self, subject: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of committed batches that a batch of parked ones begins with."""
        headers = batch.column("headers")
        batches, behind = notes(headers)
        rows = restore(headers)
        own = pc.and_(pc.equal(rows.field("subject"), subject), pc.is_valid(rows.field("msg_id")))
        known = pc.fill_null(pc.and_(own, pc.match_substring_regex(behind, "^[0-9]+ ")), False)
        sequences = batch.column("sequence").to_pylist()
        may = pc.fill_null(pc.and_(known, pc.less_equal(batches, self._batch)), False)
        count = pc.index(may, False).as_py()
        count = len(may) if count < 0 else count
        if count < len(may) and not known[count].as_py():
            logger.warning(
                "stream=%s sequence=%d is no parked row, and the rows after it wait. Look at it,"
                " and remove it (`nats stream rmm %s %d`)",
                self._stream, sequences[count], self._stream, sequences[count],
            )  # fmt: skip
        for text in behind.slice(0, count).to_pylist():
            number, created = text.split(" ", 1)
            lowest, first = self._behind.get(subject, (int(number), created))
            lowest = min(lowest, int(number)) if first == created else 0
            self._behind[subject] = (lowest, created)
        self._rows += [(subject, sequence) for sequence in sequences[:count]]
        return pa.record_batch(
            {
                "subject": rows.field("subject"),
                "data": batch.column("data"),
                "headers": rows.field("headers"),
                "msg_id": rows.field("msg_id"),
            }
        ).slice(0, count)

    def _remove(self, taken: int, left: list[int], counts: dict[str, int]) -> int:
        """
        Removes what is stored from the parking stream; how many rows are left there.

        Args:
            taken: number of rows that were taken of those that were read.
            left: numbers of those of them that did not go out.
        """
        first: dict[str, int] = {}
        """By subject, the first sequence that stays."""
        for number in left:
            subject, sequence = self._rows[number]
            first[subject] = min(sequence, first.get(subject, sequence))
        below = {subject: sequence + 1 for subject, sequence in self._rows[:taken]} | first
        js = JetStream(self._client)
        sent = 0
        for subject, sequence in below.items():
            sent += js.purge(self._stream, f"{self._prefix}{subject}", sequence)
        rest = max(0, sum(counts.values()) - sent)
        logger.info("query=%s: %d parked rows went out, %d are left", self._query, sent, rest)
        return rest

    # ── what is stored already ───────────────────────────────────────────────────────────────

    def _fresh(self, messages: Messages, again: bool = False) -> pa.Array:
        """BOOL: which of these their streams do not have; `again` as in `_scan`."""
        self._scan(messages, again)
        ids = messages.ids.to_pylist() if messages.ids is not None else [None] * len(messages)
        known = [self._ids.get(subject, set()) for subject in messages.distinct]
        codes = messages.codes
        return pa.array([id not in known[codes[i]] for i, id in enumerate(ids)], pa.bool_())

    def _scan(self, messages: Messages, again: bool) -> None:
        """
        Reads which ids the streams of these rows have, unless that was done of late.

        Args:
            again: whether it is done whenever it was.
        """
        now, stale = time.monotonic(), dict[str, list[str]]()
        for code in pc.unique(messages.indices).to_pylist():
            subject, place = messages.distinct[code], messages.targets[code].as_py()
            if place is None:
                continue
            target = self._streams.targets[place]
            _, at = self._scans.get(subject, (0, -math.inf))
            if again or now - at > _REFRESH * target.duplicate_window_s:
                stale.setdefault(target.name, []).append(subject)
        with self._streams.requests:
            for name, subjects in stale.items():
                self._scan_stream(name, subjects, now)

    def _scan_stream(self, name: str, subjects: list[str], now: float) -> None:
        client = self._streams.client
        js = JetStream(client)
        info = js.stream_info(name)
        lasts = js.messages_of([(name, {"last_by_subj": subject}) for subject in subjects])
        for subject, last in zip(subjects, lasts, strict=True):
            end = last.sequence if last is not None else 0
            number, created = self._behind.get(subject, (0, ""))
            since = number if created == info.created and number <= info.last_seq else 0
            since = max(since, self._scans.get(subject, (0, 0.0))[0])
            known = self._ids.setdefault(subject, set())
            if end > since:
                for _, _, headers, _ in stored_messages(client, name, since, end, subject):
                    match = ID_LINE.search(headers or b"")
                    if match is not None:
                        known.add(match[1])
            self._scans[subject] = (max(since, end), now)

    def _check_repeated(self, messages: Messages) -> None:
        """
        Rows that were sent once, and whose id their stream knew.

        Raises:
            DuplicateIdError: An id was made for its row, and the stream has it elsewhere.
        """
        if messages.ids is None:
            return
        is_made = pc.match_substring_regex(messages.ids.cast(pa.string()), _MADE)
        messages = messages.where(pc.fill_null(is_made, False))
        missing = messages.where(self._fresh(messages, again=True))
        if not len(missing):
            return
        place = missing.targets[missing.codes[0]].as_py()
        raise duplicate_id(missing, self._streams.targets[place])
