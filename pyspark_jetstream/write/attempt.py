"""
One attempt of a task under the ledger: rows of earlier attempts, and proof that it is the latest.

It notes in the task's record where each stream ends before rows go there, looks up rows that an
earlier attempt may have stored before they are sent, and stops when a later one has taken the
record over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import int32
from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import (
    JetStreamError,
    NotConnectedError,
    PublishError,
    StreamNotFoundError,
    TargetChangedError,
)
from ..outbox.messages import Messages
from ..outbox.targets import Target
from ..outbox.throttling.throttleprotocol import new_producer_id
from ..publish.context import RowSignals, WriteContext
from ..publish.lanes.tally import earliest
from ..publish.options import SinkOptions
from ..publish.outcome import Written
from ..publish.publisher import Publisher
from ..publish.rowthread import Supply
from ..publish.telemetry import Origin, Telemetry
from ..sanitize import get_logger
from ..worker import MAX_NAME, query_name
from .exactlyonce.changes import FoundStream
from .exactlyonce.ledger import Ledger
from .exactlyonce.records import LedgerLook, TaskName, TaskRecord
from .exactlyonce.recovery import Recovery
from .rows import MessageBuilder
from .streams import Streams, duplicate_id, target_fault

logger = get_logger(__name__)

_FENCE: Final = 0.25
_REFRESH: Final = 0.5
"""Parts of the shortest duplicate window after which the ledger and the streams are read again."""


@dataclass(slots=True)
class TaskReport:
    """Facts that a task reports beside its counts; they grow while the task writes."""

    telemetry: Telemetry = field(default_factory=Telemetry)
    seen: list[FoundStream] = field(default_factory=list)
    """The target streams as they were found, for the commit."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Names of headers that did not go out, and of how many rows."""
    sequenced: int = 0
    """Rows that have a sequence of their own behind the ends of these streams, as far as known."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task's write, with a ledger or without: whose it is, and where it goes."""

    client: Client
    options: SinkOptions
    name: TaskName
    number: int
    """Number of the attempt."""
    id_prefix: str | None
    look: LedgerLook | None
    """At the ledger, before its first row was made."""

    @property
    def origin(self) -> Origin:
        """As operators see it."""
        producer_id = new_producer_id((self.name, self.number))
        query = (self.options.metrics.query_name or query_name())[:MAX_NAME]
        return Origin(producer_id, self.name.write, self.name.batch, query)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """
    Requests over another connection than the publishes'. To dial the publishes' anew helps nobody
    there, so its loss is not theirs.

    Raises:
        PublishError: It was lost.
    """
    try:
        yield
    except NotConnectedError as error:
        raise PublishError("*", f"{what} cannot be asked: {error}") from error


def built(builder: MessageBuilder, signals: RowSignals, batch: pa.RecordBatch) -> Messages:
    """The messages of a batch, and word of what is wrong with their priorities."""
    messages = builder.build(batch)
    signals.unrecognised = builder.unrecognised
    return messages


class TaskAttempt:
    """
    One attempt of a task under the ledger.

    Args:
        report: gets what is to be said of it, when it has ended.
        mapping: digest of the mapping that rows go by.
        signals: what the builder of the rows and their publisher know of each other.
    """

    def __init__(
        self,
        task: Task,
        builder: MessageBuilder,
        streams: Streams,
        report: TaskReport,
        mapping: str,
        signals: RowSignals,
    ) -> None:
        self._task = task
        self._report = report
        self._builder = builder
        self._streams = streams
        self._targets = streams.targets
        self._mapping = mapping
        self._signals = signals
        self._reached: dict[str, Target] = {}
        self._record: TaskRecord | None = None
        self._recovery: Recovery | None = None
        self._earlier: list[Target] = []
        self._looked_at = 0.0
        self._requests = streams.requests

    def run(self, batches: Iterator[pa.RecordBatch], moves: bool) -> Written | None:
        """
        Publishes what is not stored; None if the batch was committed before.

        Args:
            moves: whether rows may go to other subjects than in earlier attempts (`reroutes`).
        """
        task = self._task
        blocks = (built(self._builder, self._signals, batch) for batch in batches)
        first = next(filter(len, blocks), None)
        if first is None:  # the mapping loses all of its rows
            return Written(self._builder.rows, 0, 0, 0, lost=self._builder.lost)
        new = self._new_targets(first)
        ledger = Ledger(JetStream(task.client))
        ids = task.id_prefix or ""
        record = ledger.begin_attempt(task.name, self._as_found(new), self._mapping, ids, task.look)
        if record is None:
            logger.info("committed before task=%s", task.name)
            return None
        self._record, self._looked_at = record, time.monotonic()
        self._reached.update(new)
        self._streams.publishing = True
        if record.again:
            self._recover(record, moves)
        counts = self._publish(self._rows(first, batches))
        self._streams.publishing = False
        return self._account(record, counts)

    def _publish(self, rows: Iterable[Messages]) -> Written:
        """The loop of a write that has a ledger: it looks there between two turns."""
        task, options = self._task, self._task.options
        recovery = self._recovery
        context = WriteContext(
            options,
            self._targets,
            task.origin,
            self._report.telemetry,
            self._signals,
            is_checked=recovery is not None,
        )
        with (
            Supply(rows) as supply,
            Publisher(task.client, context, supply) as publisher,
        ):
            while publisher.busy:
                self._check_latest()
                for leaving in publisher.leaving():
                    with asking(f"whether {len(leaving.rows)} rows are stored already"):
                        fresh = self._fresh(recovery, leaving.rows) if recovery else None
                    publisher.release(leaving, fresh)
                repeated = publisher.turn()
                if repeated is not None:
                    with asking(f"who has stored {len(repeated)} rows"):
                        self._check_repeated(repeated)
        return publisher.finish()

    def _account(self, record: TaskRecord, counts: Written) -> Written:
        """
        The outcome of the rows, which are all stored; the report gets the rest.

        Raises:
            TargetChangedError: See `_check_reached`.
            WriterFencedError: Another attempt has taken the task over.
        """
        task, report, noted = self._task, self._report, record.streams
        stored_in = reached = report.telemetry.stored_in
        if self._recovery is not None:
            self._recovery.check_end(self._builder.rows)
            stored_in = earliest((reached, self._recovery.stored_in))
        self._check_reached(reached)
        Ledger(JetStream(task.client)).check(record)
        report.seen = [
            seen.since(noted.get(seen.name, seen.before)).holding(stored_in.get(seen.name, 0))
            for seen in self._streams.seen.values()
            if seen.name in self._reached
        ]
        report.seen += [seen.since(noted[seen.name]) for seen in self._elsewhere(stored_in)]
        report.sequenced = sequenced_rows(counts, reached, {seen.name for seen in report.seen})
        report.seen += self._streams.holding_dead(report.telemetry.dead_in)
        return counts._replace(rows=self._builder.rows, lost=self._builder.lost)

    def _check_reached(self, stored_in: Iterable[str]) -> None:
        """
        Raises:
            TargetChangedError: A stream has rows that the ledger did not know to look in; the next
                attempt looks there.
        """
        names = [name for name in stored_in if name not in self._reached]
        if not names:
            return
        record = self._record
        try:
            if record is not None:
                found = self._elsewhere(names)
                Ledger(JetStream(self._task.client)).extend(record, found, late=True)
        except JetStreamError as error:
            logger.warning(
                "task=%s: the write fails, and the ledger does not know that rows of it are in %s:"
                " %s", self._task.name, ", ".join(names), error,
            )  # fmt: skip
        known = ", ".join(self._reached)
        raise TargetChangedError(
            names[0],
            f"it has rows that were for {known}: it took their subjects over while rows"
            " were written (or the server maps subjects: set exactlyOnce=false then)",
        )

    def _elsewhere(self, names: Iterable[str]) -> list[FoundStream]:
        """Streams of these that this attempt does not write to, as they are now."""
        others = [name for name in names if name not in self._reached]
        infos = JetStream(self._task.client).stream_infos_there(others) if others else []
        return [FoundStream.of(info) for info in infos if info is not None]

    def _rows(self, first: Messages, batches: Iterator[pa.RecordBatch]) -> Iterator[Messages]:
        """All messages; the ledger knows where they go."""
        yield first
        for batch in batches:
            with self._requests:
                messages = built(self._builder, self._signals, batch)
                if len(messages):
                    self._note_targets(messages)
            yield messages

    def _check_latest(self) -> None:
        """Stops this attempt when another one has taken the task over; looks only now and then."""
        if time.monotonic() - self._looked_at < _FENCE * self._window_s():
            return
        if not self._requests.acquire(blocking=False):
            return  # now somebody else asks; this is called all the time
        self._looked_at = time.monotonic()
        try:
            if self._record is not None:
                Ledger(JetStream(self._streams.client)).check(self._record)
        except JetStreamError as error:
            if not error.retryable:
                raise
            # The publishes have their own deadline, and the last look is still to come.
            logger.info("no look into the ledger task=%s reason=%s", self._task.name, error)
        finally:
            self._requests.release()

    # ── targets ──────────────────────────────────────────────────────────────────────────────

    def _new_targets(self, messages: Messages) -> dict[str, Target]:
        """
        Streams these messages go to that none before went to.

        Raises:
            OptionError: One does not let a write be exactly once.
        """
        new: dict[str, Target] = {}
        for place in places_of(messages).to_pylist():
            target = self._targets[place]
            if target.name in self._reached:
                continue
            fault = target_fault(target, self._task.options)
            if fault is not None:
                raise fault
            new[target.name] = target
        return new

    def _as_found(self, targets: Iterable[str]) -> list[FoundStream]:
        return [self._streams.seen[name] for name in targets]

    def _note_targets(self, messages: Messages) -> None:
        """Tells the ledger where messages of a later batch go."""
        new = self._new_targets(messages)
        if new and self._record is not None:
            ledger = Ledger(JetStream(self._streams.client))
            ledger.extend(self._record, self._as_found(new))
            self._looked_at = time.monotonic()
            self._reached.update(new)
            for name, target in new.items():
                since = self._record.streams[name]
                if self._recovery is not None and since.end < self._streams.seen[name].end:
                    self._earlier.append(target)  # it took subjects over under an earlier attempt
                    self._recovery.look_in(name, since)

    # ── what is stored already ───────────────────────────────────────────────────────────────

    def _recover(self, record: TaskRecord, moves: bool) -> None:
        js = JetStream(self._streams.client)
        for name in record.streams:
            try:
                self._earlier.append(Target.parse(js.stream_info(name).config))
            except StreamNotFoundError:
                logger.warning(
                    "task=%s: stream %s, into which an earlier attempt wrote, is gone. Its rows"
                    " are written again, into the stream that takes their subjects now",
                    self._task.name, name,
                )  # fmt: skip
        name, prefix = str(self._task.name), self._task.id_prefix
        self._recovery = Recovery(self._streams.client, name, record.streams, prefix, moves)

    def _fresh(self, recovery: Recovery, messages: Messages) -> pa.Array:
        """BOOL: which of these, about to be sent, no earlier attempt has stored."""
        fresh, row_targets = pa.array([True] * len(messages)), messages.row_targets
        with self._requests:
            recovery.refresh(self._earlier, _REFRESH * self._window_s())
        for place in places_of(messages).to_pylist():
            own = pc.equal(row_targets, int32(place))
            missing = recovery.missing(messages.where(own), self._targets[place])
            fresh = pc.replace_with_mask(fresh, own, missing)
        return fresh

    def _check_repeated(self, messages: Messages) -> None:
        """
        Rows that were sent once, and whose id their stream knew.

        Raises:
            DuplicateIdError: An id was made for its row, and no attempt before has stored that.
            WriterFencedError: One that came after this one has.
        """
        prefix, record = self._task.id_prefix, self._record
        if prefix is None or messages.ids is None:
            return
        if record is None or record.forgotten:
            return  # an operator wants it written again, by the same ids
        made = pc.fill_null(pc.starts_with(messages.ids, f"{prefix}-"), False)
        messages = messages.where(made)
        row_targets = messages.row_targets
        for place in places_of(messages).to_pylist():
            own, target = messages.where(pc.equal(row_targets, int32(place))), self._targets[place]
            if self._recovery is not None:  # or has the attempt before stored it just now?
                with self._requests:
                    self._recovery.refresh(self._earlier, 0.0)
                own = own.where(self._recovery.missing(own, target))
            if len(own):
                with self._requests:
                    Ledger(JetStream(self._streams.client)).check(record)
                raise duplicate_id(own, target)

    def _window_s(self) -> float:
        windows = [target.duplicate_window_s for target in list(self._reached.values())]
        return min(windows, default=self._task.options.window.publish_timeout_s)


def places_of(messages: Messages) -> pa.Array:
    """The distinct target streams of the messages; rows that can be no messages have none."""
    return pc.unique(messages.row_targets).drop_null()


def sequenced_rows(counts: Written, stored_in: Iterable[str], seen: Container[str]) -> int:
    """Rows that have a sequence of their own in these streams; 0 where some may be elsewhere."""
    if not all(name in seen for name in stored_in):
        return 0
    return counts.acked - counts.duplicates + counts.already_stored
