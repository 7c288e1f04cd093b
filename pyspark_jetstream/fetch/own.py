"""
Reading a range through a consumer of the attempt's own: nothing is shared, so nothing is fenced.

It is made where the range begins, in memory, of one replica, without acks, and deleted when the
read ends, however it ends; where nobody comes back to do that, the server deletes it. It stands in
the query's priority group with the policy `overflow` and no thresholds: without a pin no message
has a header line of it, and the server spends a third less (docs/design.md, "Which way to read").

What makes the rows exactly the messages of the range: the server counts a consumer's deliveries,
without a gap, from 1 on. Where a number is missing, or the consumer is gone, its server is, or the
connection broke, another one is made behind the last row that was handed on. Only streams with
retention `limits` are read so: elsewhere a consumer decides what the stream keeps.

Where the server makes none (`ConsumerRefusedError`), another way has to read the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from ..client import wire
from ..client.blocks import stored_before
from ..client.connection import Client, Connection
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import (
    ApiError,
    JetStreamError,
    NotConnectedError,
    PermissionsError,
    ProtocolError,
)
from ..sanitize import get_logger
from .assumptions import Assumption, consumer_changes
from .consumer import edited_error
from .dataloss import check_loss, recount
from .decoding.rows import Builder
from .directget import of_bytes
from .layout import Slice
from .owner import NAMES, Owner
from .pace import FAR_S
from .pulls import HEARTBEAT_S, PULL_EXPIRES_S, Attempt, Status, Superseded, Taken

logger = get_logger(__name__)

GROUP: Final = "spark"
"""The priority group where no option names one."""

_INACTIVE_S: Final = 60.0
"""
The server deletes one that nobody has pulled from for so long. A reader that Spark keeps waiting
for longer makes another one.
"""

_DELETE_S: Final = 3.0
"""Time-out of the consumer's deletion at the end of a read."""


class ConsumerRefusedError(Exception):
    """The server makes no consumer for this user, none any more, or none to be pulled from so."""


@dataclass(frozen=True, slots=True)
class Own(Slice):
    """A slice by a consumer of the attempt's own."""

    group: str = GROUP
    owner: Owner | None = None
    """The run of the query whose task it is."""


def _config(read: Own, name: str, after: int) -> dict[str, Any]:
    """Configuration of a consumer that begins behind a sequence."""
    config: dict[str, Any] = {
        "name": name,
        "description": "pyspark-jetstream: one attempt of a task, which deletes it",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": round(_INACTIVE_S * 1e9),
        "priority_groups": [read.group],
        "priority_policy": "overflow",
    }
    if read.filter is not None:
        config["filter_subject"] = read.filter
    if read.owner is not None:
        config["metadata"] = read.owner.metadata
    return config


def _new_name() -> str:
    return f"{NAMES}{os.urandom(8).hex()}"


def is_allowed(js: JetStream, stream: str, group: str = GROUP) -> bool:
    """
    Whether the server makes such a consumer for this user, and deletes it: one is made.

    Raises:
        JetStreamError: It cannot be asked.
    """
    name, read = _new_name(), Own(None, stream, None, 0, 0, None, False, False, group)
    config = _config(read, name, 0)
    try:
        js.create_consumer(stream, config)
        js.delete_consumer(stream, name)
    except (PermissionsError, ApiError) as error:
        logger.info("stream=%s is read without consumers of the attempts' own: %s", stream, error)
        return False
    return True


def are_allowed(js: JetStream, streams: Sequence[str], group: str = GROUP) -> dict[str, bool]:
    """
    `is_allowed` of several streams in two round trips, where nothing is refused.

    Raises:
        JetStreamError: They cannot be asked.
    """
    name = _new_name()
    config = _config(Own(None, "", None, 0, 0, None, False, False, group), name, 0)
    made = [
        (
            f"{js.prefix}.CONSUMER.CREATE.{stream}.{name}",
            json.dumps({"stream_name": stream, "config": config}).encode(),
        )
        for stream in streams
    ]
    deleted = [(f"{js.prefix}.CONSUMER.DELETE.{stream}.{name}", b"") for stream in streams]
    try:
        replies = [*js.client.requests(made), *js.client.requests(deleted)]
        for (subject, _), reply in zip((*made, *deleted), replies, strict=True):
            js.answer(subject, reply)
        return dict.fromkeys(streams, True)
    except (ApiError, PermissionsError, ProtocolError):
        pass  # which one it is, and why, is told one by one
    return {stream: is_allowed(js, stream, group) for stream in streams}


class OwnAttempt:
    """
    One attempt.

    Args:
        classify: tells a subject's partition where neither filter nor beginning does.
        mine: how the subjects of the partition begin; what begins otherwise is dropped.
        builder: makes something else than rows for Spark.
    """

    def __init__(
        self,
        client: Client,
        read: Own,
        classify: Callable[[str], int | None] | None = None,
        mine: str = "",
        builder: Builder | None = None,
    ) -> None:
        self._client = client
        self._read = read
        self._hold = _Alone(client, read)
        of = of_bytes(classify) if classify is not None else None
        self._attempt = Attempt(client, read, self._hold, of, mine.encode(), builder)

    def __repr__(self) -> str:
        return f"<OwnAttempt at {self._read.stream}, behind {self.last}>"

    @property
    def last(self) -> int:
        """The last sequence handed on."""
        return self._attempt.last

    @property
    def rows(self) -> int:
        """Number of rows handed on."""
        return self._attempt.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        The messages of the range, in order, each exactly once.

        Raises:
            ConsumerRefusedError: The server makes no consumer, or refuses to be pulled from; what
                comes behind `last` is unread.
            ReadTimeoutError: No message came within `requestTimeout`, although some should.
            DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
        """
        read, hold = self._read, self._hold
        if read.end <= read.start:
            return
        try:
            yield from self._attempt.batches()
        except PermissionsError as error:
            hold.let_go(dial=False)
            raise ConsumerRefusedError(str(error)) from error
        except BaseException:
            hold.let_go(dial=False)
            raise
        try:
            if self._attempt.signs:
                hold.check_edited()
        finally:
            hold.let_go(waits=False)
        js = JetStream(self._client)
        again = partial(recount, js, read) if self._attempt.is_whole else None
        check_loss(js, read, read.partition or 0, self.rows, again)


class _Alone:
    """An attempt's hold of a consumer that nobody else knows (`pulls.Hold`)."""

    is_ours = True

    def __init__(self, client: Client, read: Own) -> None:
        self.consumer = ""
        """The one that was made and not deleted."""
        self._client = client
        self._read = read
        self._after = read.start
        """Behind which sequence it begins."""
        self._at: Connection | None = None
        """The connection on which it was made."""

    def __repr__(self) -> str:
        return f"<_Alone with {self.consumer or 'no consumer'}>"

    @property
    def _js(self) -> JetStream:
        return JetStream(self._client)

    def take_over(self, last: int, patience: Patience) -> Taken:
        """Makes a consumer behind `last`."""
        self.let_go()
        self.consumer, self._after = _new_name(), last
        try:
            info = self._js.create_consumer(self._read.stream, self._config())
        except (PermissionsError, ApiError) as error:
            self.consumer = ""
            raise ConsumerRefusedError(str(error)) from error
        self._at = self._client.connection
        return Taken(info.num_pending, 0)

    def let_go(self, dial: bool = True, waits: bool = True) -> None:
        """
        Deletes the consumer if the server can be asked now; else the server does in the end.

        Args:
            dial: whether again, where the connection broke.
            waits: whether for the answer also where the server is far away; it is not missed.
        """
        (name, at), self.consumer = (self.consumer, self._at), ""
        if not name or not (dial or at):
            return
        any_ = f"{self._js.prefix}.CONSUMER.DELETE.{self._read.stream}.*"
        subject = f"{any_[:-1]}{name}"
        try:
            connection = self._client.connection if dial or at is None else at
            if waits or connection.round_trip_s < FAR_S:
                connection.request(subject, b"", _DELETE_S)
            else:
                connection.tell(subject, b"", _DELETE_S, any_)
        except JetStreamError as error:
            logger.info("consumer %s is left to the server: %s", name, error)
            if isinstance(error, NotConnectedError):
                self._client.drop()

    def pull(self) -> dict[str, Any]:
        """The fields of a pull."""
        return {
            "expires": round(PULL_EXPIRES_S * 1e9),
            "idle_heartbeat": round(HEARTBEAT_S * 1e9),
            "group": self._read.group,
        }

    def admit(self, frame: wire.Frame) -> tuple[bytes, bytes]:
        """Each message is ours; see `pulls.Hold`."""
        return b"", stored_before(frame.headers)

    def lost(self, why: str) -> Exception:
        """A delivery that somebody else has had is read again, by another consumer."""
        return Superseded(why)

    def unpinned(self, text: str, delivered: int) -> Exception:
        """It has no pin: somebody has made it another consumer, so another one is made."""
        return Superseded(text)

    def refused(self, status: Status, words: str) -> Exception:
        """The error by which the read goes on in another way (`max_request_batch` is too small)."""
        return ConsumerRefusedError(f"consumer '{self.consumer}' refuses pulls: {words}")

    def check_others(self, last: int) -> None:
        """Nobody else can be at it."""

    def check_edited(self) -> None:
        """
        Raises:
            ConsumerEditedError: It is not as it was made.
        """
        read, name = self._read, self.consumer
        if not name:
            return
        (info,) = self._js.consumer_infos([(read.stream, name)])
        for change in consumer_changes(self._config(), info):
            if change.of is Assumption.CONSUMER_AS_MADE:
                raise edited_error(read, name, change, is_spare=True)

    def _config(self) -> dict[str, Any]:
        return _config(self._read, self.consumer, self._after)
