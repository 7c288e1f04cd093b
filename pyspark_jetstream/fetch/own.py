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
from dataclasses import dataclass, replace
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
    ReadError,
)
from ..sanitize import get_logger
from .consumer import Attempt, ConsumerRead, Superseded
from .dataloss import check_loss, recount
from .decoding.cuts import Delivered
from .directget import of_bytes
from .layout import Slice
from .owner import NAMES, Owner
from .pace import FAR_S

__all__ = ["GROUP", "ConsumerRefusedError", "Own", "OwnAttempt", "are_allowed", "is_allowed"]

logger = get_logger(__name__)

GROUP: Final = "spark"
"""The priority group where no option names one."""

_INACTIVE_S: Final = 60.0
"""
The server deletes one that nobody has pulled from for so long. A reader that Spark keeps waiting
for longer makes another one.
"""

_DELETE_S: Final = 3.0
"""How long a read waits until its consumer is deleted, at its end."""


class ConsumerRefusedError(Exception):
    """The server makes no consumer for this user, none any more, or none to be pulled from so."""


@dataclass(frozen=True, slots=True)
class Own(Slice):
    """A slice by a consumer of the attempt's own."""

    group: str = GROUP
    owner: Owner | None = None
    """The run of the query whose task it is."""


def _config(read: Own | ConsumerRead, name: str, after: int) -> dict[str, Any]:
    """Of a consumer that begins behind a sequence."""
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


class OwnAttempt(Attempt):
    """
    One attempt.

    Args:
        classify: tells a subject's partition where neither filter nor beginning does.
        mine: how the subjects of the partition begin; what begins otherwise is dropped.
    """

    def __init__(
        self,
        client: Client,
        read: Own,
        classify: Callable[[str], int | None] | None = None,
        mine: str = "",
    ) -> None:
        super().__init__(
            client,
            ConsumerRead(
                partition=read.partition or 0,
                stream=read.stream,
                filter=read.filter,
                consumer="",
                group=read.group,
                start=read.start,
                end=read.end,
                # Of which it is a share, it does not say how much is to be pulled.
                expected=read.expected if classify is None and not mine else None,
                include_headers=read.include_headers,
                fail_on_data_loss=read.fail_on_data_loss,
                mark=read.mark,
                owner=read.owner,
                on_invalid_subject=read.on_invalid_subject,
            ),
        )
        self._of = read
        self._classify = of_bytes(classify) if classify is not None else None
        self._mine = mine.encode()
        self._name = ""
        """The consumer that was made and not deleted."""
        self._after = read.start
        """Behind which sequence it begins."""
        self._at: Connection | None = None
        """Where it was made."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        The messages of the range, in order, each exactly once.

        Raises:
            ConsumerRefusedError: The server makes no consumer, or refuses to be pulled from; what
                comes behind `last` is unread.
            ReadTimeoutError: No message came within `requestTimeout`, although some should.
            DataLossError: Messages left the stream before they were read (`failOnDataLoss`).
        """
        if self.read.end <= self.read.start:
            return
        try:
            yield from super().batches()
        except PermissionsError as error:
            self._let_go(dial=False)
            raise ConsumerRefusedError(str(error)) from error
        except BaseException:
            self._let_go(dial=False)
            raise
        try:
            self.check_consumer()
        finally:
            self._let_go(waits=False)
        read, js = self._of, self._js
        whole = self._classify is None and not self._mine
        check_loss(
            js, read, read.partition or 0, self.rows, partial(recount, js, read) if whole else None
        )

    @property
    def _is_ours(self) -> bool:
        return True

    def _config(self) -> dict[str, Any]:
        return _config(self.read, self._name, self._after)

    def check_consumer(self) -> None:
        """See `Attempt`; here a count says nothing, since rows of others may have been dropped."""
        if self._signs and self._name:
            self._check_edited()

    def _check_foreign(self) -> None:
        """Nobody else can be at it."""

    def _take_over(self, patience: Patience) -> int:
        """Makes a consumer behind `last`; how many messages it has."""
        self._let_go()
        self._name, self._after = _new_name(), self.last
        name = self._name
        try:
            info = self._js.create_consumer(self.read.stream, _config(self.read, name, self.last))
        except (PermissionsError, ApiError) as error:
            self._name = ""
            raise ConsumerRefusedError(str(error)) from error
        self.read = replace(self.read, consumer=name)
        self._dseq = 0
        self._at = self._client.connection
        return info.num_pending

    def _let_go(self, dial: bool = True, waits: bool = True) -> None:
        """
        Deletes the consumer if the server can be asked now; else the server does in the end.

        Args:
            dial: whether again, where the connection broke.
            waits: whether for the answer also where the server is far away; it is not missed.
        """
        (name, at), self._name = (self._name, self._at), ""
        if not name or not (dial or at):
            return
        any_ = f"{self._js.prefix}.CONSUMER.DELETE.{self.read.stream}.*"
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

    def _status(self, frame: wire.Frame) -> int:
        try:
            return super()._status(frame)
        except ReadError as error:  # such as a server whose max_request_batch is smaller
            raise ConsumerRefusedError(str(error)) from error

    def _admit(self, frame: wire.Frame) -> tuple[bytes, bytes]:
        return b"", stored_before(frame.headers)

    def _rows(self, messages: Delivered) -> pa.RecordBatch:
        read = self._of
        return self._builder.consumer_batch(
            messages, read.partition, self.last, read.end, self._classify, self._mine
        )

    def _fenced(self, why: str) -> Exception:
        return Superseded(why)
