"""
Reading a range through a consumer: pulls that queue at the server, and their messages.

An `Attempt` reads the range, in as many sessions as it takes. A session begins where the consumer
is taken over (`Hold`: it is pinned, or made for the attempt alone) and ends with the range, or
where the server or somebody else ends it; `Pulls` are those of one session. What makes the rows
exactly the messages of the range: the server numbers a consumer's deliveries, and each is the one
that is due. Where one is missing the session ends, and what follows the last row that was handed on
is read in another one, until `requestTimeout` has passed without a message.

What a status means stands in one table (`status_of`), for all that pull.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ... import subjects
from ...arrays import is_all
from ...client import wire
from ...client.acksubjects import ACKS, DeliveryFacts
from ...client.connection import Client
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import NotConnectedError, ReadTimeoutError, RequestTimeoutError
from ...sanitize import get_logger
from ...worker import core_time
from ..dataloss import History, check_loss, is_read
from ..decoding.deliveries import Deliveries
from ..decoding.replies import Columns
from ..decoding.rows import Builder, RowBuilder
from ..layout import Slice
from ..pace import Appetite, Waits, appetite_of, courtesy_of, pull_bytes, pulls_ahead

logger = get_logger(__name__)

PULL_EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 1.0

_PULL_MESSAGES: Final = 20_000
"""Messages of one pull at the most; two pulls are open, far from the server more (`pace`)."""

_FEW_MESSAGES: Final = 256
"""Messages of a pull where all counted messages have come, and the range is not read."""

_SILENCE_S: Final = 4.0
"""Without a heartbeat for so long the server has forgotten the pulls, or never saw them."""


# ── what a status says ───────────────────────────────────────────────────────────────────────


class Status(Enum):
    """The server's statuses of a pull."""

    HEARTBEAT = "it is open"
    ENDED = "it brings no more: it expired, or has brought all there was, or all it asked for"
    TOO_LARGE = "the next message is larger than what it has left of its bytes"
    UNPINNED = "the consumer is pinned to somebody else, or to nobody"
    REFUSED = "the consumer takes no such pulls"
    MOVED = "the consumer goes to another server, or its server stops"
    AWAY = "nobody answers for the consumer: it is gone, or its leader is elected"
    ENDED_OTHERWISE = "it ended, for a reason that is not in the table"
    UNKNOWN = "nothing that a pull is answered"


_STATUSES: Final = (
    (100, "", Status.HEARTBEAT),
    (404, "", Status.ENDED),
    (408, "", Status.ENDED),
    (409, "Message Size Exceeds MaxBytes", Status.TOO_LARGE),
    (409, "Batch Completed", Status.ENDED),
    (409, "Exceeded", Status.REFUSED),
    (409, "push based", Status.REFUSED),
    (409, "Leadership Change", Status.MOVED),
    (409, "Server Shutdown", Status.MOVED),
    (409, "Consumer Deleted", Status.AWAY),
    (409, "", Status.ENDED_OTHERWISE),
    (423, "", Status.UNPINNED),
    (wire.NO_RESPONDERS, "", Status.AWAY),
)
"""Code, what is in the text, and what it means: the first row that fits counts."""


def status_of(code: int, text: str) -> Status:
    """Meaning of a status for its pull."""
    fits = (status for number, words, status in _STATUSES if number == code and words in text)
    return next(fits, Status.UNKNOWN)


# ── one session ──────────────────────────────────────────────────────────────────────────────


class Superseded(Exception):
    """The session cannot go on; another one of the same attempt may."""


class Taken(NamedTuple):
    """A consumer as an attempt has taken it over."""

    pending: int
    """Messages that it has, by the server's count."""
    delivered: int
    """The number of its last delivery."""
    is_rewound: bool = False
    """Whether it stands at the beginning of the range, before rows that were handed on."""


class Hold(Protocol):
    """An attempt's hold of its consumer, and the meaning of its loss."""

    @property
    def consumer(self) -> str:
        """Its name."""

    @property
    def is_ours(self) -> bool:
        """Whether it is our turn for certain, so that pulls may wait behind each other."""

    def take_over(self, last: int, patience: Patience) -> Taken:
        """Puts the consumer behind the sequence `last`, or before."""

    def pull(self) -> dict[str, Any]:
        """The fields of a pull, but for how much it asks for."""

    def admit(self, frame: wire.Frame) -> tuple[bytes, bytes]:
        """
        Checks that a message was delivered to us; how its header block ends, as those of the
        messages that follow, and what stands before that.
        """

    def lost(self, why: str) -> Exception:
        """The error for a delivery that is not ours, or was somebody else's."""

    def unpinned(self, text: str, delivered: int) -> Exception:
        """The error for a pull that is refused for its pin."""

    def refused(self, status: Status, words: str) -> Exception:
        """The error for pulls that are refused whoever asks."""

    def check_others(self, last: int) -> None:
        """Raises where it is somebody else's doing that nothing has come for long."""

    def check_edited(self, signs: Signs, rows: int) -> None:
        """Raises where the consumer was edited while it brought so many rows with these signs."""

    def let_go(self, is_over: bool) -> None:
        """Ends the hold; `is_over` says whether the range is read."""


class Pulls:
    """The pulls of one session: how much they may bring, and whether the server still has them."""

    def __init__(self, client: Client, stream: str, hold: Hold, appetite: Appetite) -> None:
        self.connection = client.connection
        self.open = 0
        """Messages that open pulls may still bring."""
        self.budget = 0
        """Messages that are still to be asked for."""
        self._hold = hold
        self._subject = f"{client.options.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{hold.consumer}"
        self._inbox = self.connection.new_inbox()
        self.sid = self.connection.subscribe(self._inbox)
        # A message of max_payload should fit; what is larger is asked for alone.
        largest = self.connection.max_payload + (64 << 10)
        self._largest = max(pull_bytes(self.connection.round_trip_s), largest)
        self._bytes = appetite.limit(self._largest)
        self._is_too_large = False
        """
        Whether the next message is larger than a pull's bytes: it was stored under a larger
        `max_payload`. The next pull is for it alone, without a limit.
        """
        self._waits = Waits(courtesy_of(client.options, stream))
        self._asked = 0
        """Messages that all pulls together were for."""
        self._heard = self._quiet_since = time.monotonic()

    def __repr__(self) -> str:
        return f"<Pulls of {self._hold.consumer}: {self.open} open, {self.budget} to ask for>"

    def close(self) -> None:
        """Lets go of what is open: the server forgets a pull that finds no interest."""
        try:
            self.connection.unsubscribe(self.sid)
        except NotConnectedError:
            logger.debug("unsubscribe failed", exc_info=True)

    def ask(self) -> None:
        """Sends the pulls that may be open now."""
        # Exactly one pull until its first message brought the pin id: the server would park a
        # second one without it for as long as the pin is held (ADR-42).
        # As many if they are small because an answer broke off: all together are to be fewer.
        most, enough = self._waits.limit(_PULL_MESSAGES, self.connection.round_trip_s), 0
        if self._hold.is_ours and not self._is_too_large:
            ahead = pulls_ahead(self.connection.round_trip_s, self._largest)
            enough = ahead * most + most // 4
        asked = b""
        while self.budget > 0 and self.open <= enough:
            batch = 1 if self._is_too_large else min(self.budget, most)
            body = {"batch": batch, **self._hold.pull()}
            if not self._is_too_large:
                body["max_bytes"] = self._bytes
            self._is_too_large = False
            asked += wire.pub(self._subject, json.dumps(body).encode(), self._inbox)
            self.open += batch
            self.budget -= batch
            self._asked += batch
            self._waits.asked(self._asked, core_time(), self.connection.round_trip_s)
        if asked:
            self.connection.send(asked)

    def count(self, messages: int, size: int, last: DeliveryFacts) -> None:
        """Counts messages that have come, with so many bytes, and the facts of the last of them."""
        self.open -= messages
        self._waits.courtesy.count(messages, size)
        self._quiet_since = time.monotonic()
        self._waits.found(last.delivery + last.pending, self._quiet_since)
        self._answered()

    def _answered(self) -> None:
        """The pulls have ended for which all has come."""
        if self._waits:
            round_trip_s = self.connection.round_trip_s
            self._waits.settle(self._asked - self.open, core_time(), round_trip_s)

    def note_away(self, away_s: float) -> None:
        """Nobody has been waiting until now, for so long, for what comes."""
        self._quiet_since = time.monotonic()
        self._waits.away_s += away_s

    def end_pull(self, status: Status, headers: bytes) -> None:
        """
        A pull has ended, with what it has not brought.

        Raises:
            Superseded: It should not have.
        """
        fields = dict(wire.parse_headers(headers))
        left = wire.number_of(fields.get("Nats-Pending-Messages", "0"))
        if status is Status.TOO_LARGE and fields.get("Nats-Pending-Bytes") == str(self._bytes):
            # It has brought nothing, so no pull of these bytes ever will.
            self._is_too_large = True
        self.open -= left
        self.budget += left
        self._answered()
        if not left:
            self.beats()
        elif not self._hold.is_ours and not self._is_too_large:
            raise Superseded(_PARKED)

    def beats(self) -> None:
        """
        A pull is open.

        Raises:
            Superseded: There have been nothing but heartbeats for long.
        """
        if self._hold.is_ours and time.monotonic() - self._quiet_since > 3 * HEARTBEAT_S:
            raise Superseded(_PARKED)

    def wait(self, deadline: float, need: int) -> str:
        """
        Reads until `need` more bytes have come, for a heartbeat's time at the most.

        Returns:
            Why there is nothing to be waited for; "" where there may be.
        """
        connection, now = self.connection, time.monotonic()
        unread = len(connection.buffer) - connection.pos
        connection.fill(min(deadline, now + HEARTBEAT_S), need)
        if len(connection.buffer) - connection.pos > unread:
            self._heard = time.monotonic()
        elif now >= deadline:  # and nothing had come by then
            return _LATE
        elif time.monotonic() - max(self._heard, self._quiet_since) > _SILENCE_S:
            return "the pulls stayed without an answer"  # not even heartbeats: they are forgotten
        return ""


_LATE: Final = "the deadline passed"
_PARKED: Final = "parked without a message; someone else may be pinned"


# ── one attempt ──────────────────────────────────────────────────────────────────────────────


class Signs:
    """Signs in an attempt's rows that its consumer was edited since the take-over."""

    def __init__(self, beginning: bytes) -> None:
        self.others = False
        """Whether messages came on subjects that are not the consumer's."""
        self.empty: list[int] = []
        """First and last sequence of the rows without payload (`headers_only`) of each batch."""
        self._beginning = beginning

    def __bool__(self) -> bool:
        return self.others or bool(self.empty)

    def see(self, messages: Columns) -> None:
        """Looks at messages; the subjects of all that the consumer has begin alike."""
        empty = messages.sequences.filter(pc.equal(pc.binary_length(messages.payloads), 0))
        if len(empty):
            self.empty += [empty[0].as_py(), empty[-1].as_py()]
        mine = self._beginning
        self.others |= bool(mine) and not is_all(pc.starts_with(messages.subjects, mine))


class Attempt:
    """
    The messages of a range, each exactly once, whatever happens to the consumer meanwhile.

    Args:
        hold: how it has its consumer.
        builder: makes something else of them than rows of the slice's partition.
    """

    def __init__(
        self, client: Client, read: Slice, hold: Hold, builder: Builder | None = None
    ) -> None:
        self.last = read.start
        """The last sequence handed on."""
        self.rows = 0
        self.signs = Signs(subjects.literal_beginning(read.filter or "").encode())
        self._read = read
        self._client = client
        self._hold = hold
        self._builder = builder or RowBuilder.of(read)
        self._history = History(JetStream(client), read)
        self._frames = Deliveries(read.include_headers)
        self._appetite = appetite_of(client.options)
        self._delivered = 0
        """Deliveries the consumer has made up to `last`."""
        self._is_done = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        The rows.

        Raises:
            ReadTimeoutError: No message came within `requestTimeout`, although some should.
            DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
            Exception: What the hold of the consumer says.
        """
        read, is_over = self._read, False
        if read.end <= read.start:
            return
        try:
            yield from self._sessions()
            is_over = True
            self._hold.check_edited(self.signs, self.rows)
        finally:
            self._hold.let_go(is_over)
        check_loss(JetStream(self._client), read, self.rows, recounts=self._builder.takes_all)

    def _sessions(self) -> Iterator[pa.RecordBatch]:
        """Sessions until the range is read."""
        read, client = self._read, self._client
        patience = Patience(client.options.request_timeout_s, self.last)
        why = "no message came"
        while True:
            try:
                yield from self._session(patience)
            except Superseded as reason:
                why = str(reason)
            except (NotConnectedError, RequestTimeoutError) as error:
                client.drop()
                why = str(error)
                if not error.retryable:
                    raise
            if self._is_done:
                return
            if not patience.progress(self.last) and patience.over:
                self._hold.check_others(self.last)
                raise ReadTimeoutError(
                    read.stream,
                    read.partition or 0,
                    f"no progress beyond sequence {self.last} of ({read.start}, {read.end}] within"
                    f" {patience.timeout_s:.0f}s (requestTimeout): {why}",
                )
            logger.info(
                "reopening stream=%s partition=%d last=%d why=%s",
                read.stream, read.partition or 0, self.last, why,
            )  # fmt: skip
            patience.pause()

    def _session(self, patience: Patience) -> Iterator[pa.RecordBatch]:
        """Pulls until the range is read, or until something ends the session."""
        taken = self._hold.take_over(self.last, patience)
        if not taken.pending and self._is_read():
            self._is_done = True
            return
        self._delivered = taken.delivered
        self._frames.clear()
        pulls = Pulls(self._client, self._read.stream, self._hold, self._appetite)
        pulls.budget = self._wanted(taken)
        try:
            yield from self._pull(pulls, patience)
        except NotConnectedError:
            self._appetite.shrink()
            yield from self._rest()
            raise
        finally:
            pulls.close()

    def _wanted(self, taken: Taken) -> int:
        """Number of messages to ask for; the answers show whether that is enough."""
        read = self._read
        if taken.is_rewound:
            return read.end - read.start
        if read.expected is None or not self._builder.takes_all:
            return read.end - self.last
        return min(read.end - self.last, max(1, read.expected - self.rows))

    def _pull(self, pulls: Pulls, patience: Patience) -> Iterator[pa.RecordBatch]:
        frames, connection = self._frames, pulls.connection
        tail: bytes | None = None
        deadline = patience.deadline
        while True:
            pulls.ask()
            if frames.full or (len(frames) and pulls.open <= 0):
                yield from self._hand_on(pulls)
                deadline = time.monotonic() + patience.timeout_s
                if self._is_done:
                    return
                if pulls.budget <= 0 and pulls.open <= 0:
                    # Fewer in the range than planned are left before `last`, more behind.
                    pulls.budget = min(self._read.end - self.last, _FEW_MESSAGES)
            pulls.ask()
            if tail is not None and self._scan(pulls, tail):
                continue
            received, where = wire.next_frame(connection.buffer, connection.pos)
            if received is None:
                if len(frames) and frames.reaches(self._read.end):
                    yield from self._flush()
                    return
                why = pulls.wait(deadline, where)
                if why:
                    if why == _LATE:
                        self._appetite.shrink()
                    yield from self._rest()
                    if self._is_done:
                        return
                    raise Superseded(why)
                continue
            begin, connection.pos = connection.pos, where
            if isinstance(received, wire.Control):
                connection.control(received)
            elif received.sid == pulls.sid and received.reply.startswith(ACKS):
                tail, stored = self._hold.admit(received)
                frames.add(received, stored)
                pulls.count(1, where - begin, frames.last)
            elif received.sid == pulls.sid:
                if len(frames) and not self._ends(received):
                    # What came before a status counts before what the status says.
                    yield from self._hand_on(pulls)
                    deadline = time.monotonic() + patience.timeout_s
                    if self._is_done:
                        return
                self._heed(received, pulls)

    def _hand_on(self, pulls: Pulls) -> Iterator[pa.RecordBatch]:
        """The batch of what came. While Spark has it nobody reads what the pulls bring."""
        since = time.monotonic()
        yield from self._flush()
        pulls.note_away(time.monotonic() - since)

    def _scan(self, pulls: Pulls, tail: bytes) -> bool:
        """Takes what has come of messages that end so; whether a batch is to be made of them."""
        frames, connection, had = self._frames, pulls.connection, len(self._frames)
        begin = connection.pos
        connection.pos = frames.scan(connection.buffer, begin, pulls.sid, tail)
        if len(frames) > had:
            pulls.count(len(frames) - had, connection.pos - begin, frames.last)
        return frames.full or bool(len(frames) and pulls.open <= 0)

    def _ends(self, frame: wire.Frame) -> bool:
        """Whether a status says no more than that a pull has brought what it should."""
        return self._hold.is_ours and status_of(*wire.status_of(frame.headers)) is Status.ENDED

    def _heed(self, frame: wire.Frame, pulls: Pulls) -> None:
        """Does what a status asks for, or raises."""
        code, text = wire.status_of(frame.headers)
        status, words = status_of(code, text), f"{code} {text}".strip()
        if status is Status.HEARTBEAT:
            pulls.beats()
        elif status in (Status.ENDED, Status.TOO_LARGE):
            pulls.end_pull(status, frame.headers)
        elif status is Status.UNPINNED:
            raise self._hold.unpinned(text, self._delivered)
        elif status in (Status.REFUSED, Status.UNKNOWN):
            raise self._hold.refused(status, words)
        else:
            raise Superseded(words)

    def _rest(self) -> Iterator[pa.RecordBatch]:
        """Remaining rows of a session that ends."""
        if len(self._frames):
            yield from self._flush()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Gathered messages as a record batch, after the checks that make them ours."""
        frames, read, due = self._frames, self._read, self._delivered + 1
        first, last = frames.first, frames.last
        messages, rows = frames.columns(), len(frames)
        frames.clear()
        sequences = messages.sequences
        ascending = is_all(pc.less(sequences[:-1], sequences[1:]))
        if first.delivery != due or last.delivery != due + rows - 1 or not ascending:
            raise self._hold.lost(
                f"deliveries {first.delivery} to {last.delivery} came where {due} to"
                f" {due + rows - 1} were due"
            )
        self.signs.see(messages)
        batch = self._builder.batch(messages, self.last, read.end)
        self._delivered = last.delivery
        self.last = max(self.last, min(last.sequence, read.end))
        self.rows += batch.num_rows
        self._appetite.grow()
        self._is_done = self.last >= read.end
        if batch.num_rows:
            self._history.check(batch)
            yield batch
        if last.pending == 0 and not self._is_done:
            if not self._is_read():
                raise Superseded(f"the consumer sees nothing after sequence {self.last} yet")
            self._is_done = True

    def _is_read(self) -> bool:
        """
        Whether the range has nothing more behind `last`, by the stream's leader.

        The consumer's leader delivers from its own replica of the stream, which may lag behind the
        one the range was planned by. And the server counts what a consumer has pending, which comes
        out too low where messages are deleted meanwhile (2.15.1, docs/design.md); a pull brings
        them all the same.
        """
        return is_read(JetStream(self._client), self._read, self.last)
