"""
Reading one partition of one batch through its pinned consumer.

The consumer is the partition's fence (ADR-42, `pinned_client`): an attempt takes the pin from
whoever holds it, puts the consumer where the batch starts, and pulls. What makes an attempt's rows
exactly the messages of its range, whoever else pulls:

* every message carries the pin id it was delivered under; another id than ours is not our turn;
* the server counts deliveries (dseq), and starts at 1 after a reset: a gap means that somebody
  else received a message in between;
* each attempt has its own inbox, so nothing of an earlier one can reach it.

An attempt that was superseded ends with `ConsumerFencedError`; where the query's driver, which
hears of every attempt's pin, knows nothing of the one that is pinned, with `ForeignClientError`. A
broken connection, a lost pin or
a deleted consumer is repaired from the last row handed on, until `requestTimeout` has passed
without a message.

Somebody else may edit the consumer (`nats consumer edit`). The next pull obeys, and no message says
so. So its configuration is compared when it is taken over, in the answer that is awaited anyway,
and again after a read that looks as if it had changed since: rows with empty payloads, on other
subjects, or fewer or more of them than were counted. By then it may have been set back. So what it
delivered is compared with what the stream holds, too: subjects with the filter, empty payloads with
those that are stored, a count that is too low with another one (`check_loss`). A paused consumer
(`nats consumer pause`) is waited for.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from .. import subjects
from ..arrays import is_all
from ..client import wire
from ..client.acksubjects import ACKS
from ..client.blocks import pinned
from ..client.connection import Client, Connection
from ..client.info import ConsumerInfo
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import (
    ApiError,
    ConsumerEditedError,
    ConsumerFencedError,
    ConsumerNotFoundError,
    DataLossError,
    ForeignClientError,
    JetStreamError,
    NotConnectedError,
    ReadError,
    ReadTimeoutError,
    RequestTimeoutError,
)
from ..sanitize import get_logger
from ..worker import query_name
from .appetite import appetite_of
from .assumptions import Assumption, Change, consumer_changes
from .dataloss import History, check_loss, lost, recount
from .decoding.cuts import Delivered
from .decoding.deliveries import Deliveries
from .decoding.rows import RowBuilder
from .layout import Slice
from .owner import ANNOUNCED_WITHIN_S, STRANGER, Owner
from .pace import pull_bytes, pulls_ahead

__all__ = [
    "DESCRIPTION",
    "Attempt",
    "ConsumerRead",
    "Superseded",
    "consumer_config",
    "edited",
    "read_consumer",
]

logger = get_logger(__name__)

DESCRIPTION: Final = "pyspark-jetstream"
"""Of a query's own durable consumers."""

_PULL_MESSAGES: Final = 20_000
"""Messages of one pull; two pulls are open at most, far from the server more (`pace`)."""

_PULL_EXPIRES_S: Final = 30.0
_FIRST_PULL_EXPIRES_S: Final = 3.0
"""
Of a pull without a pin id. It must have ended before the next session unpins: the server would
give the pin to a pull that nobody listens to any more, and to the next one again.
"""

_PULLS_A_PIN: Final = 3
"""
Only a new pull with the pin's id keeps the pin, so a pull ends after a third of `priority_timeout`
at the latest, and the next one is on its way long before the pin ends.
"""

_HEARTBEAT_S: Final = 1.0
_SILENCE_S: Final = 4.0
"""Without a heartbeat for so long the server has forgotten the pulls, or never saw them."""

_ANSWERS_S: Final = 2.0
"""The query's driver says within it whose a pin is."""

_ASKS_EVERY_S: Final = 0.1

_PAUSED_LOOK_S: Final = 1.0
"""A paused consumer is looked at so often."""

_SKIPPABLE: Final = 1_000
"""A consumer that stands at most so many sequences before the start is not reset, only read."""

_COMPARED: Final = 64
"""So many messages that came without payload are compared at one time."""

_ACK_WAIT_NS: Final = 365 * 86_400 * 10**9
"""
A year: longer than any batch. Not the largest the server takes, which overflows its timer and
keeps a core busy for every consumer with unacknowledged messages (measured on 2.15.1).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRead(Slice):
    """A slice of one partition, by its consumer."""

    partition: int
    consumer: str
    group: str
    priority_timeout_s: float | None = None
    retention: str = "limits"
    owner: Owner | None = None
    """The run of the query that made it; its driver hears of pins."""

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        return read_consumer(client, self)


def consumer_config(read: ConsumerRead) -> dict[str, Any]:
    """
    The durable's configuration.

    `limits` streams need no acks: the consumer stands where Spark read to. On the others a
    message leaves the stream when it is settled, which the driver does after the commit; until
    then nothing may be redelivered behind our back, so the ack wait is a year.
    """
    config: dict[str, Any] = {
        "durable_name": read.consumer,
        "description": DESCRIPTION,
        "deliver_policy": "all",
        "ack_policy": {"limits": "none", "interest": "all"}.get(read.retention, "explicit"),
        "priority_groups": [read.group],
        "priority_policy": "pinned_client",
    }
    if read.filter is not None:
        config["filter_subject"] = read.filter
    if read.priority_timeout_s is not None:
        config["priority_timeout"] = round(read.priority_timeout_s * 1e9)
    if read.owner is not None:
        config["metadata"] = read.owner.metadata
    if read.retention == "limits":
        # Nothing is lost with it, so one whose query is gone may go, too.
        config["inactive_threshold"] = 86_400 * 10**9
    else:
        config["max_ack_pending"] = -1
        config["ack_wait"] = _ACK_WAIT_NS
    return config


def edited(read: Slice, change: Change) -> ConsumerEditedError:
    """The error for a consumer of a read whose configuration was changed."""
    what = "set it back (`nats consumer edit`)"
    if isinstance(read, ConsumerRead) and read.retention == "limits":
        what += (
            f", or delete it (`nats consumer rm {read.stream} {read.consumer}`): the query makes"
        )
        what += " it anew, and nothing is lost"
    else:
        what += ", and do not delete it: the stream keeps messages for it alone"
    detail = f"{change.text}. Rows would be empty, missing or others'; {what}"
    return ConsumerEditedError(read.stream, read.partition or 0, detail)


class Superseded(Exception):
    """The session cannot go on; another one of the same attempt may."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def read_consumer(client: Client, read: ConsumerRead) -> Iterator[pa.RecordBatch]:
    """
    The messages of the range, in order, each exactly once.

    Raises:
        ConsumerFencedError: Another attempt took over.
        ForeignClientError: Another client did, or was pinned as long as `requestTimeout`.
        ReadTimeoutError: No message came within `requestTimeout`, although some should.
        DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
        ReadError: The server refuses the pulls.
    """
    if read.end <= read.start:
        return
    attempt = Attempt(client, read)
    yield from attempt.batches()
    js = JetStream(client)
    attempt.check_consumer()
    check_loss(js, read, read.partition, attempt.rows, partial(recount, js, read))


class _Signs:
    """What in an attempt's rows looks as if its consumer had been edited since it took it over."""

    def __init__(self, beginning: bytes) -> None:
        self.others = False
        """Whether messages came on subjects that are not the consumer's."""
        self.empty: list[int] = []
        """Of the rows without payload (`headers_only`) the first and the last of each batch."""
        self._beginning = beginning

    def __bool__(self) -> bool:
        return self.others or bool(self.empty)

    def see(self, messages: Delivered) -> None:
        """Looks at messages; the subjects of all that the consumer has begin alike."""
        empty = messages.sequences.filter(pc.equal(pc.binary_length(messages.payloads), 0))
        if len(empty):
            self.empty += [empty[0].as_py(), empty[-1].as_py()]
        mine = self._beginning
        self.others |= bool(mine) and not is_all(pc.starts_with(messages.subjects, mine))


class Attempt:
    """
    State of one attempt: how far it is, and the session it has with the consumer.

    `own` has one with a consumer that nobody else knows; what differs are the methods that it has.
    """

    def __init__(self, client: Client, read: ConsumerRead) -> None:
        self.read = read
        self.last = read.start
        """The last sequence handed on."""
        self.rows = 0
        self.done = False
        self._client = client
        self._builder = RowBuilder(read.stream, read.include_headers, read.on_invalid_subject)
        self._history = History(self._js, read)
        self._signs = _Signs(subjects.literal_beginning(read.filter or "").encode())
        self._frames = Deliveries(read.include_headers)
        self._dseq = 0
        """Deliveries the consumer has made up to `last`."""
        self._pin = ""
        self._rewound = False
        """Whether the consumer stands before `last`."""
        self._appetite = appetite_of(client.options)
        self._pull_bytes = pull_bytes(0.0)
        self._too_large = False
        """
        Whether the next message is larger than a pull's bytes: it was stored under a larger
        `max_payload`. The next pull is for it alone, without a limit.
        """

    @property
    def _js(self) -> JetStream:
        return JetStream(self._client)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Sessions until the range is read; whether all was there is for the caller to check."""
        read, client = self.read, self._client
        patience = Patience(client.options.request_timeout_s, self.last)
        why = "no message came"
        while True:
            try:
                yield from self._session(patience)
            except Superseded as reason:
                why = reason.why
            except (NotConnectedError, RequestTimeoutError) as error:
                client.drop()
                why = str(error)
                if not error.retryable:
                    raise
            if self.done:
                return
            if not patience.progress(self.last) and patience.over:
                self._check_foreign()  # or whatever else is seen of the consumer
                raise ReadTimeoutError(
                    read.stream,
                    read.partition,
                    f"no progress beyond sequence {self.last} of ({read.start}, {read.end}] within"
                    f" {patience.timeout_s:.0f}s (requestTimeout): {why}",
                )
            logger.info(
                "reopening stream=%s partition=%d last=%d why=%s",
                read.stream, read.partition, self.last, why,
            )  # fmt: skip
            patience.pause()

    def check_consumer(self) -> None:
        """
        Looks once more at the consumer, if what it delivered looks as if it had been edited.

        Raises:
            ConsumerEditedError: It was.
        """
        if self._signs or self.rows != self.read.expected:
            self._check_edited()
        self._check_set_back()

    def _check_set_back(self) -> None:
        """
        Compares what a consumer delivered that looks as it was made with what the stream holds.

        Raises:
            ConsumerEditedError: It was another one for a while.
        """
        read, empty = self.read, sorted(set(self._signs.empty))
        strange = f"it brought messages that are not on '{read.filter}'" * self._signs.others
        for low in range(0, len(empty), _COMPARED):
            some = [(read.stream, {"seq": each}) for each in empty[low : low + _COMPARED]]
            for message in self._js.messages_of(some):
                if message is not None and message.data:
                    strange = f"sequence {message.sequence} came without its payload"
        if strange:
            detail = (
                f"the consumer '{read.consumer}' was edited while it was read, and set back:"
                f" {strange}; Spark runs the task again"
            )
            raise ConsumerEditedError(read.stream, read.partition or 0, detail)

    def _check_edited(self, info: ConsumerInfo | None = None) -> None:
        """
        Args:
            info: the consumer now; without, it is looked at.

        Raises:
            ConsumerEditedError: It is not as it was made.
        """
        if info is None:
            (info,) = self._js.consumer_infos([(self.read.stream, self.read.consumer)])
        for change in consumer_changes(self._config(), info):
            if change.of is Assumption.CONSUMER_AS_MADE:
                raise edited(self.read, change)

    def _config(self) -> dict[str, Any]:
        """As the consumer was made."""
        return consumer_config(self.read)

    def _check_foreign(self) -> None:
        """
        Raises:
            ForeignClientError: Somebody else is pinned.
            ConsumerEditedError: The consumer is not as it was made.
        """
        read = self.read
        try:
            info = self._js.consumer_info(read.stream, read.consumer)
        except JetStreamError:
            return  # the caller has an error of its own
        self._check_edited(info)
        if info.pinned_id not in ("", self._pin):
            raise ForeignClientError(
                read.stream,
                read.partition,
                f"no progress beyond sequence {self.last} of ({read.start}, {read.end}]: another"
                f" client keeps the pin of consumer '{read.consumer}', with id '{info.pinned_id}',"
                f" and {info.num_waiting} pulls wait; let no other client pull from it, or give the"
                " query another name in option consumer",
            )

    def _session(self, patience: Patience) -> Iterator[pa.RecordBatch]:
        """Pulls until the range is read, or until something ends the session."""
        if not self._take_over(patience) and self._is_read():
            self.done = True
            return
        connection = self._client.connection
        inbox = connection.new_inbox()
        sid = connection.subscribe(inbox)
        self._frames.clear()
        try:
            yield from self._pull(connection, inbox, sid, patience.deadline)
        except NotConnectedError:
            self._appetite.cut()
            yield from self._rest()
            raise
        finally:
            # A pull that is still open finds no interest, and the server forgets it.
            try:
                connection.unsubscribe(sid)
            except NotConnectedError:
                logger.debug("unsubscribe failed", exc_info=True)

    def _rest(self) -> Iterator[pa.RecordBatch]:
        """What came of a session that ends."""
        if len(self._frames):
            yield from self._flush()

    def _is_read(self) -> bool:
        """
        Whether the range has nothing more behind `last`, by the stream's leader.

        The consumer's leader delivers from its own replica of the stream, which may lag behind the
        one the range was planned by. And the server counts what a consumer has pending, which comes
        out too low where messages are deleted meanwhile (2.15.1, docs/design.md); a pull brings
        them all the same.
        """
        read = self.read
        following = self._js.message_get(
            read.stream, seq=self.last + 1, next_by_subj=read.filter or ">"
        )
        return following is None or following[0] > read.end

    @property
    def _is_ours(self) -> bool:
        """Whether it is our turn for certain, so that pulls may wait behind each other."""
        return bool(self._pin)

    # ── taking over ──────────────────────────────────────────────────────────────────────────

    def _take_over(self, patience: Patience) -> int:
        """
        Unpins whoever is pinned, puts the consumer at `last` or before; how many are pending.

        Raises:
            ConsumerEditedError: The consumer is not as it was made.
        """
        read = self.read
        try:
            info = self._js.unpin(read.stream, read.consumer, read.group)
            self._announce({"unpin": True})
        except ConsumerNotFoundError:
            info = self._recreate()
        except ApiError:  # as where it has no such group any more
            self._check_edited()
            raise
        self._check_edited(info)
        if info.pause_s > 0:
            info = self._await_resumed(info, patience)
        self._pin = ""
        self._dseq = info.consumer_seq
        self._rewound = False
        if not self.last - _SKIPPABLE <= info.stream_seq <= self.last:
            # What a reset skips counts as acknowledged, and before the commit nothing may be: on
            # such streams go back to the batch's start, and drop what was handed on already.
            self._rewound = read.retention != "limits" and self.last > read.start
            to = read.start if self._rewound else self.last
            info = self._js.reset(read.stream, read.consumer, to + 1)
            # Not what the answer says: a delivery under way at the reset may still show in it.
            self._dseq = 0
        return info.num_pending

    def _await_resumed(self, info: ConsumerInfo, patience: Patience) -> ConsumerInfo:
        """Waits for a paused consumer, which delivers nothing to anybody; where it stands then."""
        read = self.read
        logger.warning(
            "stream=%s partition=%d waits: consumer %s is paused until %s",
            read.stream, read.partition, read.consumer, info.config.get("pause_until"),
        )  # fmt: skip
        while info.pause_s > 0:
            patience.renew()
            time.sleep(min(_PAUSED_LOOK_S, info.pause_s))
            info = self._js.consumer_info(read.stream, read.consumer)
        patience.renew()
        return info

    def _stranger(self) -> ConsumerInfo | None:
        """The consumer, if whoever is pinned there has not said to be an attempt of this query."""
        owner = self.read.owner
        if owner is None:
            return None
        try:
            info = self._js.consumer_info(self.read.stream, self.read.consumer)
            if info.pinned_id in ("", self._pin):
                return None
            # An attempt announces its pin when its first message comes, which may be on its way.
            deadline = time.monotonic() + ANNOUNCED_WITHIN_S
            note = json.dumps({"partition": self.read.partition, "pin": info.pinned_id}).encode()
            while True:
                reply = self._client.connection.request(f"{owner.inbox}.whose", note, _ANSWERS_S)
                if reply.data != STRANGER:
                    return None  # an attempt's; or the driver cannot know, or is gone
                if time.monotonic() >= deadline:
                    return info
                time.sleep(_ASKS_EVERY_S)
        except JetStreamError as error:
            logger.info("nobody says who took the consumer over: %s", error)
            return None

    def _announce(self, what: dict[str, Any]) -> None:
        """Tells the driver about the pin, which cannot tell this attempt's from a stranger's."""
        read = self.read
        if read.owner is not None:
            note = json.dumps({"partition": read.partition} | what).encode()
            self._client.connection.tell(f"{read.owner.inbox}.pins", note)

    def _recreate(self) -> ConsumerInfo:
        read = self.read
        if read.retention == "interest":
            what = (
                f"the consumer '{read.consumer}' is gone, and with it the stream's interest in what"
                f" came after sequence {self.last}; with failOnDataLoss=false the query makes a new"
                " one and goes on with what is left"
            )
            lost(DataLossError(read.stream, read.partition, what), read.fail_on_data_loss)
        return self._js.create_consumer(read.stream, consumer_config(read))

    # ── pulling ──────────────────────────────────────────────────────────────────────────────

    def _pull(
        self, connection: Connection, inbox: str, sid: int, deadline: float
    ) -> Iterator[pa.RecordBatch]:
        frames, read = self._frames, self.read
        timeout_s = self._client.options.request_timeout_s
        # A message of max_payload should fit; what is larger is asked for alone.
        largest = max(pull_bytes(connection.round_trip_s), connection.max_payload + (64 << 10))
        self._pull_bytes = self._appetite.of(largest)
        budget = read.end - self.last
        if self._rewound:
            budget = read.end - read.start
        elif read.expected is not None:
            budget = min(budget, max(1, read.expected - self.rows))
        open_ = 0  # messages that open pulls may still bring
        pin_tail: bytes | None = None
        quiet_since = heard = time.monotonic()
        while True:
            # Exactly one pull until its first message brought the pin id: the server would park
            # a second one without it for as long as the pin is held (ADR-42).
            # As many if they are small because an answer broke off: all together are to be fewer.
            ahead = _PULL_MESSAGES * pulls_ahead(connection.round_trip_s, largest)
            enough = ahead + _PULL_MESSAGES // 2 if self._is_ours and not self._too_large else 0
            asked = b""
            while budget > 0 and open_ <= enough:
                batch = 1 if self._too_large else min(budget, _PULL_MESSAGES)
                asked += self._pull_request(inbox, batch)
                open_ += batch
                budget -= batch
            if asked:
                connection.send(asked)
            if pin_tail is not None:
                had = len(frames)
                connection.pos = frames.scan(connection.buffer, connection.pos, sid, pin_tail)
                open_ -= len(frames) - had
                if len(frames) > had:
                    quiet_since = time.monotonic()
                if frames.full or (len(frames) and open_ <= 0):
                    yield from self._flush()
                    deadline = time.monotonic() + timeout_s
                    quiet_since = time.monotonic()
                    if self.done:
                        return
                    if budget <= 0 and open_ <= 0:
                        # Fewer in the range than planned are left before `last`, more behind.
                        budget = min(read.end - self.last, 256)
                    continue
            received, where = wire.next_frame(connection.buffer, connection.pos)
            if received is None:
                if len(frames) and frames.reaches(read.end):
                    yield from self._flush()
                    return
                now = time.monotonic()
                unread = len(connection.buffer) - connection.pos
                connection.fill(min(deadline, now + _HEARTBEAT_S), where)
                if len(connection.buffer) - connection.pos > unread:
                    heard = time.monotonic()
                elif now >= deadline:  # and nothing had come by then
                    self._appetite.cut()
                    yield from self._rest()
                    raise Superseded("the deadline passed")
                elif time.monotonic() - max(heard, quiet_since) > _SILENCE_S:
                    # Not even heartbeats: the server has forgotten the pulls.
                    if len(frames):
                        yield from self._flush()
                        if self.done:
                            return
                    raise Superseded("the pulls stayed without an answer")
                continue
            connection.pos = where
            if isinstance(received, wire.Control):
                connection.control(received)
                continue
            if received.sid != sid:
                continue
            if received.reply.startswith(ACKS):
                pin_tail, stored = self._admit(received)
                frames.add(received, stored)
                open_ -= 1
                quiet_since = time.monotonic()
                if frames.full or open_ <= 0:
                    yield from self._flush()
                    deadline = time.monotonic() + timeout_s
                    if self.done:
                        return
                    if budget <= 0 and open_ <= 0:
                        budget = min(read.end - self.last, 256)
                continue
            if len(frames):
                # What came before a status counts before what the status says.
                yield from self._flush()
                deadline = time.monotonic() + timeout_s
                if self.done:
                    return
            ended = self._status(received)
            open_ -= ended
            budget += ended
            quiet = time.monotonic() - quiet_since > 3 * _HEARTBEAT_S
            if (quiet and not ended) if self._is_ours else (ended and not self._too_large):
                # Heartbeats but no messages: parked behind somebody else, or nothing is left.
                raise Superseded("parked without a message; someone else may be pinned")

    def _pull_request(self, inbox: str, batch: int) -> bytes:
        read = self.read
        third_s = (read.priority_timeout_s or math.inf) / _PULLS_A_PIN
        longest_s = _PULL_EXPIRES_S if self._is_ours else _FIRST_PULL_EXPIRES_S
        body: dict[str, Any] = {
            "batch": batch,
            "expires": round(min(longest_s, third_s) * 1e9),
            "idle_heartbeat": round(min(_HEARTBEAT_S, third_s / 3) * 1e9),  # half is allowed
            "group": read.group,
        }
        if not self._too_large:
            body["max_bytes"] = self._pull_bytes
        self._too_large = False
        if self._pin:
            body["id"] = self._pin
        subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{read.stream}.{read.consumer}"
        return wire.pub(subject, json.dumps(body).encode(), inbox)

    def _admit(self, frame: wire.Frame) -> tuple[bytes, bytes]:
        """
        Checks a message's pin id, notes the first; how its header block ends from now on, and what
        stands before that.
        """
        stored, id = pinned(frame.headers) or (b"", b"")
        pin = id.decode()
        if not pin or (self._pin and pin != self._pin):
            raise self._fenced(f"a message came under pin id '{pin}', ours is '{self._pin}'")
        if not self._pin:
            self._pin = pin
            self._announce({"pinned": pin, "name": query_name()})
        return frame.headers[len(stored) :], stored

    def _status(self, frame: wire.Frame) -> int:
        """What a status means: messages that its pull will no longer bring, or an exception."""
        code, text = wire.status_of(frame.headers)
        read = self.read
        if code == 100:  # idle heartbeat
            return 0
        headers = dict(wire.parse_headers(frame.headers))
        left = wire.number_of(headers.get("Nats-Pending-Messages", "0"))
        if code in (404, 408):  # nothing left for it, or expired
            return left
        if code == 409 and text == "Message Size Exceeds MaxBytes":
            # If it has brought nothing yet, no pull of these bytes ever will.
            if headers.get("Nats-Pending-Bytes") == str(self._pull_bytes):
                self._too_large = True
            return left
        if code == 409 and "Batch Completed" in text:
            return left
        if code == 423:
            info = self._js.consumer_info(read.stream, read.consumer)
            if info.pinned_id not in ("", self._pin) or info.consumer_seq != self._dseq:
                raise self._fenced(text)
            raise Superseded(f"the pin was lost ({text}); nobody else took it")
        if code not in (409, 503) or "Exceeded" in text or "push based" in text:
            self._check_edited()
        if code in (409, 503):
            for fatal in ("Exceeded", "push based"):
                if fatal in text:
                    raise ReadError(
                        read.stream,
                        read.partition,
                        f"consumer '{read.consumer}' refuses pulls: {code} {text}; take its limits"
                        f" off (`nats consumer edit {read.stream} {read.consumer}`), or give"
                        " another name in option consumer",
                    )
            raise Superseded(f"{code} {text}".strip())
        raise ReadError(
            read.stream, read.partition, f"consumer '{read.consumer}' answers {code} {text}"
        )

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Gathered messages as a record batch, after the checks that make them ours."""
        frames, read = self._frames, self.read
        first, last = frames.first, frames.last
        messages, rows = frames.columns(), len(frames)
        frames.clear()
        sequences = messages.sequences
        ascending = is_all(pc.less(sequences[:-1], sequences[1:]))
        if first.delivery != self._dseq + 1 or last.delivery != self._dseq + rows or not ascending:
            raise self._fenced(
                f"deliveries {first.delivery} to {last.delivery} came where {self._dseq + 1} to"
                f" {self._dseq + rows} were due"
            )
        self._signs.see(messages)
        batch = self._rows(messages)
        self._dseq = last.delivery
        self.last = max(self.last, min(last.sequence, read.end))
        self.rows += batch.num_rows
        self._appetite.fed()
        self.done = self.last >= read.end
        if batch.num_rows:
            self._history.check(batch)
            yield batch
        if last.pending == 0 and not self.done:
            if not self._is_read():
                raise Superseded(f"the consumer sees nothing behind sequence {self.last} yet")
            self.done = True

    def _rows(self, messages: Delivered) -> pa.RecordBatch:
        read = self.read
        return self._builder.consumer_batch(messages, read.partition, self.last, read.end)

    def _fenced(self, why: str) -> Exception:
        self._check_edited()
        stranger = self._stranger()
        if stranger is not None:
            return ForeignClientError(
                self.read.stream,
                self.read.partition,
                f"another client took consumer '{self.read.consumer}' over ({why}), and has not"
                f" said within {ANNOUNCED_WITHIN_S:g}s that it is an attempt of this query: it is"
                f" pinned with id '{stranger.pinned_id}' since {stranger.pinned_ts}, and"
                f" {stranger.num_waiting} pulls wait (the server tells no more of it). Let no other"
                " client pull from this consumer, or give the query another name in option"
                " consumer; if none does, an attempt was slower than that, and Spark runs the task"
                " again",
            )
        return ConsumerFencedError(
            self.read.stream,
            self.read.partition,
            f"another attempt took consumer '{self.read.consumer}' over ({why}); Spark runs the"
            " task again if it still needs it",
        )
