"""
Reading a range through a consumer of one attempt: it is not shared, so it needs no fence.

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

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from ...client import wire
from ...client.blocks import stored_before
from ...client.connection import Client, Connection
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import ApiError, JetStreamError, NotConnectedError, PermissionsError
from ...sanitize import get_logger
from ..assumptions import edit_of
from ..decoding.rows import Builder
from ..durable import edited_error
from ..own import Own, new_name, own_config
from ..pace import FAR_S
from .pulls import HEARTBEAT_S, PULL_EXPIRES_S, Attempt, Signs, Status, Superseded, Taken

logger = get_logger(__name__)

_DELETE_S: Final = 3.0
"""Time-out of the consumer's deletion at the end of a read."""


class ConsumerRefusedError(Exception):
    """The server makes no consumer for this user, none any more, or none to be pulled from so."""


class OwnAttempt(Attempt):
    """
    An attempt with a consumer of its own. Where the server makes none, or refuses to be pulled
    from, it ends with `ConsumerRefusedError`; what comes behind `last` is unread then.
    """

    def __init__(self, client: Client, read: Own, builder: Builder | None = None) -> None:
        super().__init__(client, read, _OwnConsumer(client, read), builder)

    def _sessions(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from super()._sessions()
        except PermissionsError as error:
            raise ConsumerRefusedError(str(error)) from error


class _OwnConsumer:
    """An attempt's hold of a consumer that nobody else knows (`pulls.Hold`)."""

    is_ours = True

    def __init__(self, client: Client, read: Own) -> None:
        self.consumer = ""
        """The one that was made and not deleted."""
        self._client = client
        self._read = read
        self._after = read.start
        """Sequence behind which it begins."""
        self._at: Connection | None = None
        """The connection on which it is made."""

    def __repr__(self) -> str:
        return f"<_OwnConsumer with {self.consumer or 'no consumer'}>"

    @property
    def _js(self) -> JetStream:
        return JetStream(self._client)

    def take_over(self, last: int, patience: Patience) -> Taken:
        """Makes a consumer behind `last`."""
        self._at = self._client.connection
        self.let_go(is_over=False)
        self.consumer, self._after = new_name(), last
        try:
            info = self._js.create_consumer(self._read.stream, self._config())
        except (PermissionsError, ApiError) as error:
            self.consumer = ""
            raise ConsumerRefusedError(str(error)) from error
        return Taken(info.num_pending, 0)

    def let_go(self, is_over: bool) -> None:
        """
        Deletes the consumer if the server can be asked now; else the server does in the end. Far
        away nobody waits for the answer at the end of a read.
        """
        name, at, self.consumer = self.consumer, self._at, ""
        if not name or at is None:
            return
        any_ = f"{self._js.prefix}.CONSUMER.DELETE.{self._read.stream}.*"
        subject = f"{any_[:-1]}{name}"
        try:
            if is_over and at.round_trip_s >= FAR_S:
                at.tell(subject, b"", _DELETE_S, any_)
            else:
                at.request(subject, b"", _DELETE_S)
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

    def check_edited(self, signs: Signs, rows: int) -> None:
        """
        Raises:
            ConsumerEditedError: It is not as it was made.
        """
        read, name = self._read, self.consumer
        if not name or not signs:
            return
        (info,) = self._js.consumer_infos([(read.stream, name)])
        change = edit_of(self._config(), info)
        if change is not None:
            raise edited_error(read, name, change, is_spare=True)

    def _config(self) -> dict[str, Any]:
        read = self._read
        config = own_config(self.consumer, read.group, self._after)
        if read.filter is not None:
            config["filter_subject"] = read.filter
        if read.owner is not None:
            config["metadata"] = read.owner.metadata
        return config
