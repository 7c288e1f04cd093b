"""
Rows that an earlier attempt of a task stored: the message ids after the sequences in its note.

The stream's duplicate window forgets an id after minutes; the stream itself does not. So an attempt
that follows another one reads all that was stored since, and leaves out the rows that are there.
Not by a consumer that brings headers only: nats-server 2.15.1 ends with a panic where such a one
comes to a header block of a single byte, which whoever may publish on the stream can store.

Ids that are made of a row's number are this task's alone. What is stored under one must be that
row: where subject or size differ, the input is not the same at every attempt, and no id can help.

Where a stream keeps few messages of a subject, a row that is missing may have been stored and
replaced since. Rows of a subject are stored in the order of the input, so a row counts as stored,
too, when as many later ones of its subject are there as the stream keeps; or when a later one of
its subject rolled it up. A schedule whose time has come is gone: the message that it made counts.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...client.connection import Client
from ...client.jetstream import JetStream
from ...errors import LedgerError, ReadTimeoutError, RequestTimeoutError
from ...outbox.messages import Messages
from ...outbox.targets import Target
from ...publish.lanes.tally import earliest
from ...sanitize import get_logger
from ..commandlines import ROW_ID
from .changes import Before, fewest

logger = get_logger(__name__)

ID_LINE: Final = re.compile(rb"\r\nNats-Msg-Id: ?([^\r]*)\r\n")
_ROLLUP: Final = re.compile(rb"\r\nNats-Rollup: ?(sub|all)\r\n")
_SCHEDULER: Final = re.compile(rb"\r\nNats-Scheduler: ?([^\r]*)\r\n")
_ROW_ID: Final = re.compile(rb"\r\n%b: ?([^\r]*)\r\n" % ROW_ID.encode())


def stored_messages(
    client: Client, stream: str, since: int, end: int, filter: str | None = None
) -> Iterator[tuple[int, bytes, bytes, int]]:
    """
    Sequence, subject, header lines and payload's size of the messages in `(since, end]`, by a
    consumer that is deleted behind it.
    """
    # Only who follows others reads: a first attempt need not import it.
    from ...fetch.decoding.rows import StoredBuilder
    from ...fetch.own import Own
    from ...fetch.pulling.alone import OwnAttempt

    read = Own(None, stream, filter, since, end, None, True, False)
    for batch in OwnAttempt(client, read, builder=StoredBuilder()).batches():
        columns = (batch.column(name).to_pylist() for name in ("sequence", "subject", "stored"))
        yield from zip(*columns, pc.binary_length(batch.column("data")).to_pylist(), strict=True)


class _StoredRow(NamedTuple):
    """A stored row with a made id."""

    subject: str
    size: int
    stream: str


class Recovery:
    """
    The rows of one task that are stored already.

    Args:
        task: for what errors say.
        since: by stream, what it was before any attempt published into it.
        id_prefix: of the ids that are made of a row's number.
        moves: whether an earlier attempt may have stored a row on another subject (`reroutes`).
    """

    def __init__(
        self,
        client: Client,
        task: str,
        since: Mapping[str, Before],
        id_prefix: str | None,
        moves: bool = False,
    ) -> None:
        self._moves = moves
        self._client = client
        self._task = task
        self._upto = dict(since)
        self._made = f"{id_prefix}-".encode() if id_prefix else None
        self._rows: dict[int, _StoredRow] = {}
        """Stored rows by their number, which the message ids this package makes tell."""
        self._of_subject: dict[tuple[str, str], list[int]] = {}
        """Rows of a stream that keeps few of a subject, ascending, by stream and subject."""
        self._rolled: dict[tuple[str, str], int] = {}
        """Rows below are rolled up, by stream and subject, "" for all."""
        self._rolling: set[str] = set()
        """Streams that have roll-ups."""
        self._ids: dict[str, dict[bytes, int]] = {}
        """All other ids, by stream, and where the first message with each is."""
        self.stored_in: dict[str, int] = {}
        """The streams that have rows, and the sequence of the first that was found."""
        self._scanned_at = -float("inf")

    def refresh(self, targets: Iterable[Target], max_age_s: float) -> None:
        """
        Reads what was stored since the last look, unless that was less than `max_age_s` ago.

        Raises:
            LedgerError: A stream no longer holds what an attempt may have stored.
        """
        if time.monotonic() - self._scanned_at < max_age_s:
            return
        for target in targets:
            if target.name in self._upto:
                self._scan(target)
        self._scanned_at = time.monotonic()

    def look_in(self, stream: str, since: Before) -> None:
        """Another stream that may have rows, which the next `refresh` reads."""
        self._upto.setdefault(stream, since)
        self._scanned_at = -float("inf")

    def missing(self, messages: Messages, target: Target) -> pa.Array:
        """
        Messages, all of one target, that are not stored; a mask.

        Raises:
            LedgerError: It cannot be told, or what is stored is not these rows.
        """
        ids: list[bytes] = messages.ids.to_pylist() if messages.ids is not None else []
        sizes = pc.binary_length(messages.data).to_pylist()
        others = self._ids.get(target.name, {})
        stored = []
        for place, (id, size) in enumerate(zip(ids, sizes, strict=True)):
            row = self._row(id)
            if row is None:
                if others and (self._kept(target) or target.name in self._rolling):
                    raise self._own_ids(target)
                stored.append(id in others)
                if id in others:
                    found = {target.name: others[id]}
                    self.stored_in = earliest((self.stored_in, found))
            else:
                subject = messages.distinct[messages.codes[place]]
                stored.append(self._is_stored(row, subject, size, target))
        return pc.invert(pa.array(stored, pa.bool_()))

    def check_end(self, rows: int) -> None:
        """
        Nothing is stored of rows that this attempt's input does not have.

        Raises:
            LedgerError: Something is.
        """
        beyond = max(self._rows, default=-1)
        if beyond >= rows:
            raise self._changed(f"row {beyond} is stored, but the input has {rows} rows now")

    def _is_stored(self, row: int, subject: str, size: int, target: Target) -> bool:
        known = self._rows.get(row)
        if known is not None:
            same = known.subject == subject or target.transforms or known.stream != target.name
            alike = known.size == size or target.allow_counter  # which stores the sum
            if not alike or not (same or self._moves):
                raise self._changed(
                    f"row {row} is stored on '{known.subject}' with {known.size} bytes, and is now"
                    f" for '{subject}' with {size}"
                )
            return True
        for key in ((target.name, subject), (target.name, "")):
            if row < self._rolled.get(key, -1):
                return True
        later = self._of_subject.get((target.name, subject))
        if later is None:
            return False
        return len(later) - bisect_right(later, row) >= self._kept(target)

    def _kept(self, target: Target) -> int:
        """The fewest messages of a subject that the stream kept, as far as is known; 0 for all."""
        before = self._upto.get(target.name)
        return fewest(target.max_per_subject, before.per_subject if before is not None else 0)

    def _own_ids(self, target: Target) -> LedgerError:
        return LedgerError(
            self._task,
            f"stream '{target.name}' replaces messages (max_msgs_per_subject or roll-ups), and"
            " rows have ids of their own: which of them were stored and replaced since cannot"
            " be told; leave msg_id out, or set exactlyOnce=false",
        )

    def _changed(self, what: str) -> LedgerError:
        return LedgerError(
            self._task,
            f"{what}: the input is not the same rows in the same order at every attempt. Give rows"
            " a msg_id, or make the plan above the write deterministic;"
            f" `nats kv del SPARK_LEDGER {self._task}` lets the task write all of its rows anew",
        )

    def _row(self, id: bytes) -> int | None:
        """The row's number in a made id; None if it is another one."""
        if self._made is None or not id.startswith(self._made):
            return None
        number = id[len(self._made) :]
        return int(number) if number.isdigit() else None

    # ── reading the stream ───────────────────────────────────────────────────────────────────

    def _scan(self, target: Target) -> None:
        info = JetStream(self._client).stream_info(target.name)
        upto = self._upto[target.name]
        # Made anew since, or set back: what there is of ours may lie anywhere in it.
        since = upto.end if upto.holds(info.created, info.last_seq) else 0
        # Of schedules the first ones leave when their time has come: then only limits lose rows.
        leaves = target.allow_ttl or target.max_per_subject
        loses = info.keeps_history or (target.allow_schedules and info.is_bounded and not leaves)
        if info.first_seq > since + 1 and loses and info.last_seq > since:
            raise LedgerError(
                self._task,
                f"stream '{target.name}' begins at sequence {info.first_seq}, but an earlier"
                f" attempt may have stored rows from {since + 1} on: which ones cannot be told."
                f" `nats kv del SPARK_LEDGER {self._task}` lets the task write all of its rows,"
                " those stored before for the second time",
            )
        if info.last_seq > since:
            logger.info("recovering task=%s stream=%s after=%d", self._task, target.name, since)
            self._read(target, since, info.last_seq)
        end = max(since, info.last_seq)
        self._upto[target.name] = Before(end, info.created, self._kept(target))

    def _read(self, target: Target, since: int, end: int) -> None:
        from ...fetch.pulling.alone import ConsumerRefusedError

        try:
            for message in stored_messages(self._client, target.name, since, end):
                self.note(target, *message)
        except ConsumerRefusedError as error:
            raise LedgerError(
                self._task,
                f"what is stored in '{target.name}' cannot be read: {error}; the write needs a"
                " consumer of its own for a moment",
            ) from error
        except ReadTimeoutError as error:
            timeout_s = self._client.options.request_timeout_s
            asked = f"CONSUMER.MSG.NEXT.{target.name}"
            raise RequestTimeoutError(asked, timeout_s, str(error)) from error

    def note(
        self, target: Target, sequence: int, subject: bytes, headers: bytes, size: int
    ) -> None:
        """Takes in a stored message, of which these are the header lines and the payload's size."""
        rollup = _ROLLUP.search(headers)
        if rollup is not None:
            self._rolling.add(target.name)
        match, scheduler = ID_LINE.search(headers), _SCHEDULER.search(headers)
        if scheduler is not None:  # what a schedule made stands for the schedule, which may be gone
            match, subject = _ROW_ID.search(headers), scheduler[1]
        if match is None:
            return
        row = self._row(match[1])
        if row is None:
            self._ids.setdefault(target.name, {}).setdefault(match[1], sequence)
            return
        self.stored_in.setdefault(target.name, sequence)
        name = subject.decode("utf-8", "replace")
        self._rows[row] = _StoredRow(name, size, target.name)
        if self._kept(target):
            same = self._of_subject.setdefault((target.name, name), [])
            place = bisect_left(same, row)
            if same[place : place + 1] != [row]:
                same.insert(place, row)
        if rollup is not None or scheduler is not None:
            key = (target.name, name if rollup is None or rollup[1] == b"sub" else "")
            self._rolled[key] = max(row, self._rolled.get(key, -1))
