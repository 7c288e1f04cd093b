"""
What an earlier attempt of a task has stored: the message ids behind the sequences it had noted.

The stream's duplicate window forgets an id after minutes; the stream itself does not. So an attempt
that follows another one reads the ids of all that was stored since, headers only, and leaves out
the rows that are there.

Where a stream keeps few messages of a subject, a row that is missing may have been stored and
replaced since. Rows of a subject are stored in the order of the input, so a row counts as stored,
too, when as many later ones of its subject are there as the stream keeps.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from . import wire
from .client import Client
from .errors import LedgerError, NotConnectedError, RequestTimeoutError
from .jetstream import JetStream
from .messages import Messages
from .targets import Target

__all__ = ["Recovery"]

logger = logging.getLogger(__name__)

_ID: Final = re.compile(rb"\r\nNats-Msg-Id: *([^\r]*)\r\n")
_PULL: Final = 20_000
_PULL_BYTES: Final = 8 << 20
_IDLE_S: Final = 30.0
"""After so long without a pull the server drops the consumer of a scan that was cut off."""


class Recovery:
    """
    The rows of one task that are stored already.

    Args:
        task: for what errors say.
        since: by stream, its last sequence before any attempt published into it.
        id_prefix: of the ids that are made of a row's number.
    """

    def __init__(
        self, client: Client, task: str, since: Mapping[str, int], id_prefix: str | None
    ) -> None:
        self.stored = 0
        """Rows found stored, so far."""
        self._client = client
        self._js = JetStream(client)
        self._task = task
        self._upto = dict(since)
        self._made = f"{id_prefix}-".encode() if id_prefix else None
        self._ids: dict[str, set[bytes]] = {}
        self._rows: dict[str, dict[str, list[int]]] = {}
        """By stream and subject, the rows found, where the stream keeps few of a subject."""
        self._scanned_at = -float("inf")

    def refresh(self, targets: Mapping[str, Target], max_age_s: float) -> None:
        """
        Reads what was stored since the last look, unless that was less than `max_age_s` ago.

        Raises:
            LedgerError: A stream no longer holds what an attempt may have stored.
        """
        if time.monotonic() - self._scanned_at < max_age_s:
            return
        for name in self._upto:
            if name in targets:
                self._scan(targets[name])
        self._scanned_at = time.monotonic()

    def fresh(self, messages: Messages, ids: pa.Array, target: Target) -> pa.Array:
        """
        Which of the messages, all of one target, are not stored; a mask.

        Raises:
            LedgerError: It cannot be told.
        """
        found = self._ids.get(target.name)
        if not found:
            return pa.array([True] * len(messages))
        stored = pc.is_in(ids, pa.array(list(found), pa.binary()))
        if target.max_per_subject:
            stored = pc.or_(stored, self._replaced(messages, ids, target))
        self.stored += pc.sum(stored).as_py() or 0
        return pc.invert(stored)

    def _replaced(self, messages: Messages, ids: pa.Array, target: Target) -> pa.Array:
        if self._made is None or not pc.all(pc.starts_with(ids, self._made)).as_py():
            raise LedgerError(
                self._task,
                f"stream '{target.name}' keeps {target.max_per_subject} messages of a subject, and"
                " rows have ids of their own: which of them were stored and replaced since cannot"
                " be told; leave msg_id out, or set exactlyOnce=false",
            )
        keep, found = target.max_per_subject, self._rows.get(target.name, {})
        # Row r is replaced when `keep` later ones are there: r is below the keep-th from the end.
        below = {
            subject: sorted(rows)[-keep] for subject, rows in found.items() if len(rows) >= keep
        }
        bounds = pa.array([below.get(each, -1) for each in messages.distinct], pa.int64())
        return pc.less(messages.rows, bounds.take(messages.indices))

    # ── reading the stream ───────────────────────────────────────────────────────────────────

    def _scan(self, target: Target) -> None:
        info = self._js.stream_info(target.name)
        since = self._upto[target.name]
        if info.last_seq < since:  # made anew since: nothing of ours is in it
            since = 0
        if info.first_seq > since + 1 and info.keeps_history and info.last_seq > since:
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
        self._upto[target.name] = max(since, info.last_seq)

    def _read(self, target: Target, since: int, end: int) -> None:
        timeout_s = self._client.options.request_timeout_s
        deadline = time.monotonic() + timeout_s
        position = since
        while position < end:
            before = position
            try:
                position = self._pull(target, position, end, deadline)
            except (NotConnectedError, RequestTimeoutError) as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                self._client.drop()
                time.sleep(0.1)
            if position > before:
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                raise RequestTimeoutError(f"CONSUMER.MSG.NEXT.{target.name}", timeout_s)

    def _pull(self, target: Target, position: int, end: int, deadline: float) -> int:
        """One consumer and its pulls, until the end or a failure; how far it came."""
        consumer = self._js.create_ephemeral(
            target.name,
            {
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": position + 1,
                "ack_policy": "none",
                "headers_only": True,
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": int(_IDLE_S * 1e9),
            },
        )
        connection = self._client.connection
        inbox = connection.new_inbox()
        sid = connection.subscribe(inbox)
        query = json.dumps({"batch": _PULL, "max_bytes": _PULL_BYTES, "no_wait": True}).encode()
        subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{target.name}.{consumer}"
        try:
            while position < end:
                connection.send(wire.pub(subject, query, inbox))
                before = position
                while True:
                    frame = connection.next_frame(deadline)
                    if frame is None:
                        raise RequestTimeoutError(subject, self._client.options.request_timeout_s)
                    if frame.sid != sid:
                        continue
                    if not frame.reply:
                        break  # a status ends the pull
                    position = self._note(target, frame)
                if position == before and self._ends_before(target.name, position, end):
                    return end
            return position
        finally:
            connection.unsubscribe(sid)
            self._js.delete_consumer(target.name, consumer)

    def _note(self, target: Target, frame: wire.Frame) -> int:
        sequence = int(frame.reply.split(b".")[-4])
        found = _ID.search(frame.headers)
        if found is not None:
            id = found[1].rstrip()
            self._ids.setdefault(target.name, set()).add(id)
            if target.max_per_subject and self._made and id.startswith(self._made):
                row = id[len(self._made) :]
                if row.isdigit():
                    subject = frame.subject.decode("utf-8", "replace")
                    by_subject = self._rows.setdefault(target.name, {})
                    by_subject.setdefault(subject, []).append(int(row))
        return sequence

    def _ends_before(self, stream: str, position: int, end: int) -> bool:
        """Whether the leader has nothing in `(position, end]`: a consumer's replica may lag."""
        following = self._js.message_get(stream, seq=position + 1, next_by_subj=">")
        return following is None or following[0] > end
