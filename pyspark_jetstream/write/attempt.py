"""
One attempt of a task under the ledger: rows of earlier attempts, and proof that it is the latest.

It notes where each stream ends before rows go there, leaves out rows that an earlier attempt has
stored, and stops when a later one has taken the task over (`watch`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import TargetChangedError
from ..outbox.messages import Messages
from ..outbox.targets import Target
from ..publish.context import WriteContext
from ..publish.metrics import Written
from ..publish.publisher import publish
from ..publish.settings import RowOptions
from ..sanitize import get_logger
from .exactlyonce.ids import TaskName
from .exactlyonce.ledger import Ledger
from .exactlyonce.records import LedgerLook, TaskRecord
from .exactlyonce.recovery import Recovery
from .rows import MessageBuilder
from .streams import FoundStream, Streams, check_target
from .watch import Watch

logger = get_logger(__name__)


@dataclass(slots=True)
class TaskAttempt:
    """One attempt of a task under the ledger."""

    client: Client
    context: WriteContext
    name: TaskName
    id_prefix: str | None
    """Of the ids that are made for rows of its batch; None where none are made."""
    look: LedgerLook
    """At the ledger, before its first row was made."""
    builder: MessageBuilder
    streams: Streams
    seen: list[FoundStream] = field(default_factory=list)
    """Its target streams as they were found, with its rows, when it has ended."""
    reached: dict[str, Target] = field(default_factory=dict)
    """The streams that are noted, or about to be."""

    def run(self, batches: Iterator[pa.RecordBatch], moves: bool) -> Written | None:
        """
        Publishes what is not stored; None if the batch was committed before.

        Args:
            moves: whether rows may go to other subjects than in earlier attempts (`reroutes`).
        """
        first = next(filter(len, map(self.builder.build, batches)), None)
        if first is None:  # the mapping loses all of its rows
            return Written(self.builder.rows, 0, 0, 0, lost=self.builder.lost)
        new = self._newly_reached(first)
        ledger, digest = Ledger(JetStream(self.client)), _mapping_digest(self.context.options.rows)
        record = ledger.begin_attempt(self.name, new, digest, self.look)
        if record is None:
            logger.info("committed before task=%s", self.name)
            return None
        self.streams.publishing = True
        of_task = self.id_prefix, moves, self._window_s
        watch = Watch(self.context.options, record, self.streams.targets, *of_task)
        self.context.is_checked = watch.recovery is not None
        with closing(watch):
            rows = self._rows(first, batches, record, watch.recovery)
            counts = publish(self.client, self.context, rows, watch)
        self.streams.publishing = False
        if watch.recovery is not None:
            watch.recovery.check_end(self.builder.rows)
        return self._account(record, counts)

    def _account(self, record: TaskRecord, counts: Written) -> Written:
        """
        The outcome of the rows, which are all stored.

        Raises:
            TargetChangedError: A stream has rows that the ledger does not know to look in.
            WriterFencedError: Another attempt has taken the task over.
        """
        stored_in = self.context.telemetry.stored_in
        unknown = [name for name in stored_in if name not in self.reached]
        if unknown:
            known = ", ".join(self.reached)
            raise TargetChangedError(
                unknown[0],
                f"it has rows that were for {known}: it took their subjects over while rows"
                " were written (or the server maps subjects: set exactlyOnce=false then)",
            )
        Ledger(JetStream(self.client)).check(record)
        self.seen = [stream.upto(stored_in) for stream in record.streams.values()]
        return counts._replace(rows=self.builder.rows, lost=self.builder.lost)

    def _rows(
        self,
        first: Messages,
        batches: Iterator[pa.RecordBatch],
        record: TaskRecord,
        recovery: Recovery | None,
    ) -> Iterator[Messages]:
        """All messages; the ledger knows where they go."""
        for messages in chain([first], map(self.builder.build, batches)):
            new = self._newly_reached(messages)
            if new:
                Ledger(JetStream(self.streams.client)).extend(record, new)
            if recovery is not None:
                recovery.expect(messages)
            yield messages

    def _newly_reached(self, messages: Messages) -> list[FoundStream]:
        """
        Streams these messages go to that none before went to, as they were found.

        Raises:
            OptionError: One does not let a write be exactly once.
        """
        new: list[FoundStream] = []
        # Rows that can be no messages have none.
        for place in pc.unique(messages.row_targets).drop_null().to_pylist():
            target = self.streams.targets[place]
            if target.name not in self.reached:
                check_target(target, self.context.options)
                self.reached[target.name] = target
                new.append(self.streams.seen[target.name])
        return new

    def _window_s(self) -> float:
        windows = [target.duplicate_window_s for target in [*self.reached.values()]]
        return min(windows, default=self.context.options.window.publish_timeout_s)


def _mapping_digest(options: RowOptions) -> str:
    """A digest of what decides a row's subject, beside its own subject and identity; "" of none."""
    if options.mapping is None:
        return ""
    text = json.dumps([options.mapping.text, options.mapping_key])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
