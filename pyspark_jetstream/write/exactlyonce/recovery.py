"""
Rows that an earlier attempt of a task stored: the message ids behind the sequences in its note.

The stream's duplicate window forgets an id after minutes; the stream itself does not. So an attempt
that follows another one reads what was stored since (`tail`), and leaves out the rows that are
there.

Ids that are made of a row's number are this task's alone. What is stored under one must be that
row: where subject or size differ, the input is not the same at every attempt, and no id can help.
The ids of others are kept only for rows with ids of their own.

Where a stream keeps few messages of a subject, a row that is missing may have been stored and
replaced since. Rows of a subject are stored in the order of the input, so a row counts as stored,
too, when as many later ones of its subject are there as the stream keeps; or when a later one of
its subject rolled it up. A schedule whose time has come is gone: the message that it made counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import BINARY
from ...client.connection import Client
from ...errors import LedgerError
from ...outbox.messages import Messages
from ...outbox.targets import Target
from ..streams import FoundStream
from .ids import TaskName
from .tail import StoredRows, tail_of


class Recovery:
    """
    The rows of one task that are stored already.

    Args:
        noted: its streams before any attempt published into them.
        prefix: of the ids that are made for rows of its batch.
        moves: whether an earlier attempt may have stored a row on another subject (`reroutes`).
    """

    def __init__(
        self,
        client: Client,
        name: TaskName,
        noted: Iterable[FoundStream],
        prefix: str | None,
        moves: bool = False,
    ) -> None:
        self.others = False
        """Whether rows have ids of their own."""
        self.scanned_at = -float("inf")
        """When the last look began (monotonic)."""
        self._scanned_others = False
        self._client = client
        self._name = name
        self._noted = list(noted)
        self._made = None if prefix is None else f"{prefix}-{name.task}-".encode()
        self._moves = moves
        self._tail = tail_of(name.write, name.batch, prefix)
        self._found: Mapping[str, StoredRows] = {}

    def refresh(self) -> None:
        """
        Reads what was stored since the last look; on any thread.

        Raises:
            TargetChangedError: A stream has lost rows since the first attempt.
            LedgerError: A stream no longer holds what an attempt may have stored.
        """
        began, others = time.monotonic(), self.others
        self._tail.refresh(self._client, self._name, self._noted, others)
        self._found = self._tail.of(self._name.task)
        self.scanned_at, self._scanned_others = began, others

    @property
    def lacks_others(self) -> bool:
        """Whether rows have ids of their own, and no look was at such ids."""
        return self.others and not self._scanned_others

    def expect(self, messages: Messages) -> None:
        """Notes whether these rows, which are to be sent later, have ids of their own."""
        if messages.ids is not None and not self.others:
            self.others = pc.any(pc.invert(self._is_made(messages.ids))).as_py() or False

    def missing(self, messages: Messages, target: Target) -> pa.Array:
        """
        Messages, all of one target, that are not stored; a mask.

        Raises:
            LedgerError: It cannot be told, or what is stored is not these rows.
        """
        if messages.ids is None:
            return pa.array([True] * len(messages))
        is_made = self._is_made(messages.ids)
        is_stored = pa.array([False] * len(messages))
        for stream, stored in self._found.items():
            is_there = self._are_there(stored, messages, target, stream)
            is_stored = pc.or_(is_stored, pc.and_(is_made, is_there))
        here = self._found.get(target.name)
        if here is None:
            return pc.invert(is_stored)
        if target.max_per_subject or here.replaces:
            left = pc.indices_nonzero(pc.and_(is_made, pc.invert(is_stored)))
            pairs = zip(messages.rows.take(left), messages.subject.take(left), strict=True)
            kept = target.max_per_subject
            gone = [
                row for row, subject in pairs if here.replaced(kept, row.as_py(), subject.as_py())
            ]
            is_gone = pc.is_in(messages.rows, pa.array(gone, pa.int64()))
            is_stored = pc.or_(is_stored, pc.and_(is_made, is_gone))
        if here.others:
            own = messages.ids.filter(pc.invert(is_made)).to_pylist()
            if own and (target.max_per_subject or here.rolls):
                raise self._own_ids(target)
            there = pa.array([id for id in own if id in here.others], BINARY)
            is_stored = pc.or_(is_stored, pc.is_in(messages.ids, there))
        return pc.invert(is_stored)

    def check_end(self, rows: int) -> None:
        """
        Nothing is stored of rows that this attempt's input does not have.

        Raises:
            LedgerError: Something is.
        """
        beyond = max((stored.last for stored in self._found.values()), default=-1)
        if beyond >= rows:
            raise self._changed(f"row {beyond} is stored, but the input has {rows} rows now")

    def _is_made(self, ids: pa.Array) -> pa.Array:
        if self._made is None:
            return pa.array([False] * len(ids))
        return pc.fill_null(pc.starts_with(ids, self._made), True)

    def _are_there(
        self, stored: StoredRows, messages: Messages, target: Target, stream: str
    ) -> pa.Array:
        """
        BOOL: which of the messages, by their number, a stream has.

        Raises:
            LedgerError: One that is stored is another one.
        """
        first, last = (int(edge(messages.rows).as_py()) for edge in (pc.min, pc.max))
        rows = stored.between(first, last)
        places = pc.index_in(messages.rows, rows["row"])
        found = pc.is_valid(places)
        if not pc.any(found).as_py():
            return found
        subject, size = rows["subject"].take(places), rows["size"].take(places)
        sizes = pc.binary_length(messages.data)
        other = pc.not_equal(subject, messages.subject.cast(BINARY))
        if target.transforms or self._moves or stream != target.name:
            other = pc.and_(other, False)
        if not target.allow_counter:  # which stores the sum
            other = pc.or_(other, pc.not_equal(size, sizes))
        bad = pc.indices_nonzero(pc.fill_null(other, False))
        if not len(bad):
            return found
        one = bad[0].as_py()
        raise self._changed(
            f"row {messages.rows[one]} is stored on '{_shown(subject[one])}' with {size[one]}"
            f" bytes, and is now for '{_shown(messages.subject[one])}' with {sizes[one]}"
        )

    def _own_ids(self, target: Target) -> LedgerError:
        return LedgerError(
            str(self._name),
            f"stream '{target.name}' replaces messages (max_msgs_per_subject or roll-ups), and"
            " rows have ids of their own: which of them were stored and replaced since cannot"
            " be told; leave msg_id out, or set exactlyOnce=false",
        )

    def _changed(self, what: str) -> LedgerError:
        return LedgerError(
            str(self._name),
            f"{what}: the input is not the same rows in the same order at every attempt. Give rows"
            " a msg_id, or make the plan above the write deterministic;"
            f" `nats kv del SPARK_LEDGER {self._name}` lets the task write all of its rows anew",
        )


def _shown(subject: pa.Scalar) -> str:
    return str(subject.as_py().decode("utf-8", "replace"))
