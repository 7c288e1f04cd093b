"""
Pulls of shared consumers: one of each at a time, and the claims that they bring.

A pull never outlives a call, so that a query which is busy with a batch gets no more than it asked
for. All are `no_wait` pulls; one that waits for a first message has an end besides, and the server
itself says when it is over. Only a pull of which nothing is heard is withdrawn: what a server
behind a route sends to it in that moment is dropped on its way, and comes again after the ack wait.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...client import wire
from ...client.blocks import ack_of
from ...client.connection import Connection
from ...errors import ReadError, RequestTimeoutError
from ...fetch.pulling.pulls import Status, status_of
from .claims import Claim, SharedConsumer

_GATHER_MESSAGES: Final = 1_000
_GATHER_S: Final = 0.005
_GATHER_BYTES: Final = 256 << 10
"""
Messages, seconds and bytes more that are waited for behind pulls that have brought something: many
cost less at one time.
"""

_QUIET_S: Final = 0.5
"""
A pull that brings nothing for so long, after its end if it has one, is withdrawn. At
max_ack_pending the server does not answer one without (measured, nats-server 2.15.1).
"""

_CLAIM: Final = re.compile(
    rb"HMSG [^ \t\r\n]+ (\d{1,9}) (\$JS\.ACK\.[^. \t\r\n]+\.[^. \t\r\n]+)"
    rb"\.(\d{1,18})\.(\d{1,18})\.\d{1,18}\.\d{1,19}\.\d{1,18} \d{1,9} (\d{1,9})\r\n"
)
"""
The first line of a delivery as it nearly always is: its subscription, the consumer, how often the
message was delivered, its sequence, the size of headers and payload.
"""


class ClaimPulls:
    """
    One pull each of some consumers, from the request to the end.

    Args:
        consumers: by partition.
        wanted: how many messages of each, by partition.
        claims: by partition; the pulls add to them what they bring, also where they break off.
    """

    def __init__(
        self,
        consumers: Sequence[SharedConsumer],
        wanted: Mapping[int, int],
        claims: Mapping[int, list[Claim]],
    ) -> None:
        self.open: dict[int, int] = {}
        """Pulls that may bring more: their partitions, by subscription."""
        self._consumers = consumers
        self._acks = {partition: consumers[partition].acks.encode() for partition in wanted}
        self._wanted = wanted
        self._left = sum(wanted.values())
        """Number of messages that open pulls may still bring."""
        self._full = {
            partition: len(claims[partition]) + count for partition, count in wanted.items()
        }
        """With how many claims each has brought what it was asked for, by partition."""
        self._claims = claims

    def run(
        self,
        connection: Connection,
        prefix: str,
        fields: Mapping[str, Any],
        wait_s: float,
        timeout_s: float,
    ) -> None:
        """
        Sends the pulls and reads what they bring, until the last one is over.

        Args:
            prefix: of the JetStream API.
            fields: what each request says beside the number of messages.
            wait_s: how long each pull may wait for its first message.
            timeout_s: how long the end of pulls that are withdrawn is waited for.

        Raises:
            ReadError: The server refuses a pull.
            RequestTimeoutError: Pulls that are withdrawn do not end.
        """
        requests = []
        for partition, count in self._wanted.items():
            consumer, inbox = self._consumers[partition], connection.new_inbox()
            self.open[connection.subscribe(inbox)] = partition
            body = {"batch": count, "no_wait": True} | dict(fields)
            if wait_s > 0:
                body["expires"] = round(wait_s * 1e9)
            subject = f"{prefix}.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}"
            requests.append(wire.pub(subject, json.dumps(body).encode(), inbox))
        sids = list(self.open)
        connection.send(b"".join(requests))
        while self.open:
            self.scan(connection)
            if not self.open:
                break
            if self._left >= _GATHER_MESSAGES and any(self._claims.values()):
                self._gather(connection)
            frame = connection.next_frame(time.monotonic() + wait_s + _QUIET_S)
            if frame is None:
                break
            self.receive(frame)
        connection.send(b"".join(map(wire.unsub, sids)))
        if self.open:
            self._drain(connection, timeout_s)

    def scan(self, connection: Connection) -> None:
        """
        Takes the claims that are in the buffer; stops at the first frame that is anything else, or
        not there as a whole. Where a frame ends is what its line says, whatever it holds.
        """
        buffer, pos = connection.buffer, connection.pos
        while found := _CLAIM.match(buffer, pos):
            sid, acks, deliveries, sequence, size = found.groups()
            partition = self.open.get(int(sid))
            end = found.end() + int(size)
            if (
                partition is None
                or acks != self._acks[partition]
                or not buffer.startswith(wire.CRLF, end)
            ):
                break
            self._claims[partition].append(Claim(int(sequence), int(deliveries)))
            self._left -= 1
            pos = end + len(wire.CRLF)
            if not self.room(partition):
                del self.open[int(sid)]
        connection.pos = pos

    def receive(self, frame: wire.Frame) -> None:
        """
        Takes one frame: a claim, or a status that ends its pull.

        Raises:
            ReadError: The server refuses the pull, or acknowledges on other subjects.
        """
        partition = self.open.get(frame.sid)
        if partition is None:
            return
        consumer = self._consumers[partition]
        if frame.reply:
            ack = ack_of(frame.reply)
            if ack.consumer != self._acks[partition]:
                raise ReadError(
                    consumer.stream,
                    consumer.number,
                    f"the server acknowledges on '{ack.consumer.decode('utf-8', 'replace')}.…', and"
                    f" not on {consumer.acks}.…; shared consumers need the plain form of ack"
                    " subjects",
                )
            self._claims[partition].append(Claim(ack.facts.sequence, ack.delivered))
            self._left -= 1
            if not self.room(partition):
                del self.open[frame.sid]
            return
        code, text = wire.status_of(frame.headers)
        status = status_of(code, text)
        if status is Status.OPEN:
            return
        del self.open[frame.sid]
        self._left -= self.room(partition)
        if status in (Status.ENDED, Status.LOST):
            return  # the look behind the claim says whether its consumer is gone
        raise ReadError(
            consumer.stream,
            consumer.number,
            f"the server answers pulls of consumer '{consumer.name}' with {code} {text}".strip(),
        )

    def room(self, partition: int) -> int:
        """Number of messages that the pull may still bring."""
        return self._full[partition] - len(self._claims[partition])

    def _gather(self, connection: Connection) -> None:
        """Waits a moment for more than has come, where no frame is there as a whole."""
        if wire.next_frame(connection.buffer, connection.pos)[0] is None:
            connection.fill(time.monotonic() + _GATHER_S, _GATHER_BYTES)

    def _drain(self, connection: Connection, timeout_s: float) -> None:
        """Takes what was sent to the pulls that are open, before their subscriptions ended."""
        mark = connection.new_inbox()
        own = connection.subscribe(mark)
        connection.send(wire.pub(mark, b"") + wire.unsub(own))
        # The server handles what one connection sends in its order, and so do we: our own message
        # comes behind everything that was sent to the pulls.
        deadline = time.monotonic() + timeout_s
        while True:
            frame = connection.next_frame(deadline)
            if frame is None:
                raise RequestTimeoutError("the end of a pull", timeout_s)
            if frame.sid == own:
                return
            self.receive(frame)
