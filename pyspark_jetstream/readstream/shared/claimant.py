"""
Takes a query's part of its shared consumers, one of each partition.

The consumers are durable, acknowledge explicitly and deliver headers only: what is claimed here is
a sequence and a number of deliveries, and the executors fetch the messages by direct get. Which
reader gets which message is the server's decision (ADR-42, `overflow` and `prioritized`).

A pull never outlives a call, so that a query which is busy with a batch gets no more than it asked
for. All are `no_wait` pulls; one that waits for a first message has an end besides, and the server
itself says when it is over. Only a pull of which nothing is heard is withdrawn: what a server
behind a route sends to it in that moment is dropped on its way, and comes again after the ack wait.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...client import wire
from ...client.acksubjects import ack_of
from ...client.connection import Client, Connection
from ...client.info import ConsumerInfo
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import (
    ApiError,
    ConsumerEditedError,
    NotConnectedError,
    OptionError,
    ReadError,
    RequestTimeoutError,
)
from ...fetch.assumptions import Assumption, consumer_changes
from ...fetch.pulls import Status, status_of
from ...sanitize import get_logger
from ..options import Sharing
from .claims import Claim, shares
from .manyclaims import WINDOW_BYTES, ManyClaims

__all__ = ["Claimant", "SharedConsumer"]

logger = get_logger(__name__)

_PULL_MESSAGES: Final = 50_000
_LEAST_MESSAGES: Final = 10_000
"""
Of one pull, headers only: the most; and what all pulls at one time ask for where it is not known
how fast they come, or they come slowly. What is sent for long might expire on its way, and be
somebody else's as well.
"""

_FEWER: Final = 10
"""How many times fewer messages are claimed after a claim that came too late."""

_PACE_MESSAGES: Final = 1_000
"""Of pulls of so many it is learned how fast they come."""

_GATHER_S: Final = 0.005
"""How long more is waited for where a pull brings many, which cost less at one time."""

_QUIET_S: Final = 0.5
"""
A pull that brings nothing for so long, after its end if it has one, is withdrawn. At
max_ack_pending the server does not answer one without (measured, nats-server 2.15.1).
"""

_MANY: Final = 5_000
"""Messages that are worth a wait for the end of other readers' pulls; and what they leave."""

_ALONE_S: Final = 0.5
"""How long that end is waited for; a pull of as much as fits in one takes half of it."""

_LOOK_S: Final = 0.01
"""Between two looks whether others pull."""

_YOUNG: Final = 4
"""
The part of the ack wait, a quarter, that a message is old at most whose claim the server need not
note: the first heartbeat comes after a third of it.
"""

_IN_TIME: Final = 3
"""The part of the ack wait, a third, in which claims are collected."""

_CLAIM: Final = re.compile(
    rb"HMSG [^ \t\r\n]+ (\d{1,9}) (\$JS\.ACK\.[^. \t\r\n]+\.[^. \t\r\n]+)"
    rb"\.(\d{1,18})\.(\d{1,18})\.(\d{1,18})\.(\d{1,19})\.\d{1,18} \d{1,9} (\d{1,9})\r\n"
)
"""
The first line of a delivery as it nearly always is: its subscription, the consumer, how often the
message was delivered, its sequence, the number of the delivery, when it was stored, the size of
headers and payload.
"""

_TUNABLE: Final = frozenset({"max_ack_pending", "headers_only"})
"""What an operator may change under queries that share: it changes none of their rows."""

_CONSUMER_EXISTS: Final = 10148
"""err_code of JSConsumerAlreadyExists: another query has just made it."""


@dataclass(frozen=True, slots=True)
class SharedConsumer:
    """The consumer of one partition."""

    partition: int
    stream: str
    name: str
    filter: str | None
    replicated: bool = False
    """Whether its leader may change."""

    @property
    def acks(self) -> str:
        """How the subjects begin on which its messages are acknowledged."""
        return f"$JS.ACK.{self.stream}.{self.name}"


class Claimant:
    """One query's claims of all its shared consumers."""

    def __init__(
        self, client: Client, consumers: Sequence[SharedConsumer], sharing: Sharing, group: str
    ) -> None:
        self.consumers = tuple(consumers)
        self._acks = [consumer.acks.encode() for consumer in self.consumers]
        self.ack_wait_s = sharing.ack_wait_s
        """The shortest of the consumers; known once they are joined."""
        self.joined: dict[int, ConsumerInfo] = {}
        """Each consumer as it was when it was joined, by partition."""
        self.delivered = dict.fromkeys(range(len(self.consumers)), 1)
        """The number of the last delivery that each consumer made to us, by its place."""
        self._client = client
        self._js = JetStream(client)
        self._sharing = sharing
        self._group = group
        self._oldest_ns = math.inf
        """When the oldest message of the last claim was stored, by the server's clock."""
        self._ahead_ns = math.inf
        """That clock against our monotonic one, as far ahead as it can be; not known yet."""
        self._began = -math.inf
        """When the last claim began."""
        self._server = ""
        """The run of the server that it was made through."""
        self._pace = 0.0
        """Messages a second that pulls brought of late; not known yet."""
        self._most = math.inf
        """How many a claim may have; fewer after one that came too late."""
        self._count = 0
        """How many the last one had."""
        self._crowded = False
        """Whether others were pulling at each look, the last time that was looked."""
        self._doubted: set[SharedConsumer] = set()
        """Consumers that may not be there any more."""
        self._many = ManyClaims()

    def join(self, starts: Mapping[int, int | None]) -> list[SharedConsumer]:
        """
        Makes the consumers that are missing; returns those.

        Args:
            starts: by partition the first sequence to deliver, None for all.

        Raises:
            OptionError: A consumer of that name is of another kind, or has other settings.
        """
        made = []
        waits: list[float] = []
        own = self._sharing.ack_wait_s * 1e9
        infos = self._js.consumer_infos([(shared.stream, shared.name) for shared in self.consumers])
        for consumer, info in zip(self.consumers, infos, strict=True):
            if info is None:
                info = self._create(consumer, starts[consumer.partition])
                made.append(consumer)
            self._check(consumer, info)
            self.joined[consumer.partition] = info
            config = info.config
            waits += config.get("backoff") or [config.get("ack_wait") or own]
        self.ack_wait_s = min(waits) / 1e9
        return made

    def another(self, client: Client) -> Claimant:
        """One of the same consumers, which are joined, with a connection of its own."""
        other = Claimant(client, self.consumers, self._sharing, self._group)
        other.ack_wait_s = self.ack_wait_s
        return other

    def missing(self) -> list[SharedConsumer]:
        """The consumers that are not there."""
        infos = self._js.consumer_infos(
            [(consumer.stream, consumer.name) for consumer in self.consumers]
        )
        return [
            consumer for consumer, info in zip(self.consumers, infos, strict=True) if info is None
        ]

    def claim(self, limit: int, wait_s: float) -> dict[int, list[Claim]]:
        """
        Up to `limit` messages, by partition; waits up to `wait_s` for a first one.

        Nothing confirms these claims meanwhile, so a server that is slow is asked for no more once
        part of the ack wait is over.

        Raises:
            ReadError: The server refuses the pulls.
            RequestTimeoutError, NotConnectedError: It does not answer within `requestTimeout`.
            ConsumerNotFoundError: A consumer was deleted.
        """
        claims: dict[int, list[Claim]] = {shared.partition: [] for shared in self.consumers}
        self._oldest_ns = math.inf
        limit = int(min(limit, self._most))
        patience = Patience(self._client.options.request_timeout_s)
        if wait_s <= 0:
            self._find_alone(limit)
        while True:
            try:
                self._began = time.monotonic()
                connection = self._client.connection
                self._server = connection.info.get("server_id", "")
                self._sweep(connection, claims, limit, wait_s)
                break
            except (NotConnectedError, RequestTimeoutError) as error:
                # What was read is claimed; what was on its way returns after its ack wait.
                self._client.drop()
                if not error.retryable or patience.over:
                    raise
                if any(claims.values()):
                    break
                patience.pause()
        self._count = sum(map(len, claims.values()))
        doubted, self._doubted = self._doubted, set()
        for consumer in doubted:
            # Nobody answers for it: its leader is being elected, or it is gone, which this raises.
            self._js.consumer_info(consumer.stream, consumer.name)
        return claims

    def infos(self) -> dict[int, ConsumerInfo]:
        """Where the consumers stand, by partition."""
        asked_s = time.monotonic()
        infos = self._js.consumer_infos(
            [(consumer.stream, consumer.name) for consumer in self.consumers]
        )
        self.saw([info for info in infos if info is not None], asked_s)
        return {
            consumer.partition: info
            for consumer, info in zip(self.consumers, infos, strict=True)
            if info is not None
        }

    def saw(self, infos: Iterable[ConsumerInfo], asked_s: float) -> None:
        """Takes in the server's clock of answers to a question of that moment."""
        clocks = [info.now.timestamp() for info in infos if info.now]
        if clocks:  # the answer took no time, for all we know
            self._ahead_ns = (max(clocks) - asked_s) * 1e9

    def check_edited(self, consumer: SharedConsumer, info: ConsumerInfo) -> None:
        """
        Raises:
            ConsumerEditedError: The consumer delivers otherwise than when this query joined it.
        """
        for change in consumer_changes(
            self.joined[consumer.partition].config, info, ignored=_TUNABLE
        ):
            if change.of is Assumption.CONSUMER_AS_MADE:
                raise ConsumerEditedError(
                    consumer.stream,
                    consumer.partition,
                    f"{change.text}. Queries that share it would read other messages, or each"
                    " other's; set it back (`nats consumer edit`), or start them again with it",
                )

    @property
    def is_young(self) -> bool:
        """
        Whether all messages of the last claim were stored so recently that a server which takes
        that for the time of their delivery finds none expired before part of the ack wait is over.
        """
        age_s = time.monotonic() + (self._ahead_ns - self._oldest_ns) / 1e9
        return age_s < self.ack_wait_s / _YOUNG

    def doubtful(self) -> set[int]:
        """
        The partitions of which the last claim may be somebody else's as well.

        Where the ack wait is over since it began; and where the consumer has had another leader or
        a restart since: then the server goes by what is stored, of a delivery the time of its
        message, and may have dealt it out again before it heard that it is in progress.

        Raises:
            ReadError: The ack wait is too short for the claim of a single message.
        """
        infos = self.infos()
        same = self._client.connection.info.get("server_id", "") == self._server
        lasted_s = time.monotonic() - self._began
        if lasted_s >= self.ack_wait_s:
            if self._count <= 1:
                at = self.consumers[0]
                raise ReadError(
                    at.stream,
                    at.partition,
                    f"consumer '{at.name}': a claim of one message took {lasted_s:.1f}s, and others"
                    f" have it after {self.ack_wait_s:g}s; give a longer ackWait",
                )
            self._most = max(1, self._count // _FEWER)
            return {consumer.partition for consumer in self.consumers}
        if self._count >= self._most and lasted_s * 2 * _IN_TIME <= self.ack_wait_s:
            self._most *= 2  # twice as many would be in time as well
        sure = set()
        for partition, info in infos.items():
            if same if info.led_s is None else info.led_s > lasted_s:
                sure.add(partition)
        return {consumer.partition for consumer in self.consumers} - sure

    # ── consumers ────────────────────────────────────────────────────────────────────────────

    def _config(self, consumer: SharedConsumer, start: int | None) -> dict[str, Any]:
        sharing = self._sharing
        config: dict[str, Any] = {
            "durable_name": consumer.name,
            "description": "pyspark-jetstream, shared",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": round(sharing.ack_wait_s * 1e9),
            "max_ack_pending": sharing.max_ack_pending,
            "headers_only": True,
            "priority_groups": [self._group],
            "priority_policy": sharing.policy,
        }
        if start is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        if consumer.filter is not None:
            config["filter_subject"] = consumer.filter
        return config

    def _create(self, consumer: SharedConsumer, start: int | None) -> ConsumerInfo:
        try:
            return self._js.create_consumer(
                consumer.stream, self._config(consumer, start), action="create"
            )
        except ApiError as error:
            if error.err_code == _CONSUMER_EXISTS:
                return self._js.consumer_info(consumer.stream, consumer.name)
            raise ReadError(
                consumer.stream,
                consumer.partition,
                f"the server refuses the consumer '{consumer.name}': {error.description} (err_code"
                f" {error.err_code})",
            ) from None

    def _check(self, consumer: SharedConsumer, info: ConsumerInfo) -> None:
        """
        Raises:
            OptionError: The consumer cannot be shared in the way the options say.
        """
        sharing, config = self._sharing, info.config
        at = f"consumer '{consumer.name}' of stream '{consumer.stream}'"
        if config.get("deliver_subject"):
            raise OptionError(
                "consumer",
                f"{at} is a push consumer, which has no priority groups (ADR-42); choose another"
                " name",
            )
        if not config.get("priority_groups"):
            raise OptionError(
                "consumer",
                f"{at} has no priority group, so nobody can share it by policy; choose another"
                " name",
            )
        if config["priority_groups"] != [self._group]:
            names = ", ".join(config["priority_groups"])
            raise OptionError(
                "priorityGroup", f"{at} has the group {names}, this query '{self._group}'"
            )
        if config.get("priority_policy") != sharing.policy:
            raise OptionError(
                "priorityPolicy",
                f"{at} has {config.get('priority_policy')}, this query {sharing.policy}; a consumer"
                " has one policy for all who share it",
            )
        for key, wanted in (
            ("ack_policy", "explicit"),
            ("filter_subject", consumer.filter),
        ):
            if (config.get(key) or None) != wanted or config.get("filter_subjects"):
                raise OptionError(
                    "consumer",
                    f"{at} has {key} {config.get(key)!r}, this query needs {wanted!r}; choose"
                    " another name",
                )
        if int(config.get("max_deliver") or -1) > 0:
            raise OptionError(
                "consumer",
                f"{at} has max_deliver {config['max_deliver']}: after so many deliveries the server"
                " drops a message without a word. Set it to -1 (`nats consumer edit"
                " --max-deliver=-1`) and use option maxDeliver, which keeps it as a dead letter",
            )
        for option, key, wished in (
            ("ackWait", "ack_wait", round(sharing.ack_wait_s * 1e9)),
            ("maxAckPending", "max_ack_pending", sharing.max_ack_pending),
        ):
            has = int(config.get(key) or 0)
            if option in sharing.asked and wished != has:
                raise OptionError(
                    option,
                    f"{at} has {key} {has}, this query wants {wished}; leave the option out, or"
                    " change it for all who share it (`nats consumer edit`)",
                )
        minimum = sharing.min_ack_pending
        maximum = int(config.get("max_ack_pending") or 0)
        if minimum is not None and 0 < maximum < minimum:
            raise OptionError(
                "minAckPending",
                f"{minimum} is never reached: {at} has max_ack_pending {maximum}",
            )

    def _find_alone(self, limit: int) -> None:
        """
        Returns once no other reader pulls from a backlog, or that has taken long enough.

        The server deals to all open pulls in turn. What two readers pull at one time lies between
        each other's, and each reads the other's along. Where pulls are always open, as those of
        readers are whose thresholds nothing meets, this waits once.
        """
        until = time.monotonic() + _ALONE_S
        while limit >= _MANY:
            infos = self.infos().values()
            if not any(info.num_waiting and info.num_pending >= _MANY for info in infos):
                self._crowded = False
                return
            self._crowded = self._crowded or time.monotonic() >= until
            if self._crowded:
                return
            time.sleep(_LOOK_S)

    # ── pulls ────────────────────────────────────────────────────────────────────────────────

    def _sweep(
        self,
        connection: Connection,
        claims: dict[int, list[Claim]],
        limit: int,
        wait_s: float,
    ) -> None:
        """
        Takes what is there, in equal shares as far as there are such.

        A consumer that has nothing is waited for in the first round; the server ends the pull with
        the first message, and whatever else is there.
        """
        open_ = [True] * len(self.consumers)
        left = limit - sum(map(len, claims.values()))
        while any(wanted := shares(left, open_)):
            in_time = round(self._pace * self.ack_wait_s / _IN_TIME)
            pulling = sum(count > 0 for count in wanted)
            most = min(_PULL_MESSAGES, max(1, max(_LEAST_MESSAGES, in_time) // pulling))
            pulls = {i: min(count, most) for i, count in enumerate(wanted) if count}
            began = time.monotonic()
            pulled = self._pull(connection, claims, pulls, wait_s)
            count = sum(map(len, pulled.values()))
            if count >= _PACE_MESSAGES:
                self._pace = count / (time.monotonic() - began)
            wait_s = 0
            for index, messages in pulled.items():
                open_[index] = len(messages) >= pulls[index]
                left -= len(messages)
            if time.monotonic() >= self._began + self.ack_wait_s / _IN_TIME:
                return

    def _pull(
        self,
        connection: Connection,
        claims: dict[int, list[Claim]],
        pulls: Mapping[int, int],
        wait_s: float,
    ) -> dict[int, list[Claim]]:
        """
        Pulls of some consumers at one time, and what they bring.

        Args:
            claims: gets what they bring, also where the connection breaks meanwhile.
            wait_s: how long each may wait for its first message.
        """
        pulled: dict[int, list[Claim]] = {index: [] for index in pulls}
        open_: dict[int, int] = {}
        requests = []
        for index, count in pulls.items():
            consumer, inbox = self.consumers[index], connection.new_inbox()
            open_[connection.subscribe(inbox)] = index
            body = {"batch": count, "group": self._group, "no_wait": True} | self._sharing.pull
            if wait_s > 0:
                body["expires"] = round(wait_s * 1e9)
            subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}"
            requests.append(wire.pub(subject, json.dumps(body).encode(), inbox))
        sids = dict(open_)
        try:
            connection.send(b"".join(requests))
            while open_:
                self._scan(connection, open_, pulled, pulls)
                if not open_:
                    break
                left = sum(pulls[index] - len(pulled[index]) for index in open_.values())
                if left >= _PACE_MESSAGES and any(pulled.values()):
                    self._gather(connection)
                frame = connection.next_frame(time.monotonic() + wait_s + _QUIET_S)
                if frame is None:
                    break
                self._take(frame, open_, pulled, pulls)
            connection.send(b"".join(map(wire.unsub, sids)))
            if open_:
                self._drain(connection, open_, pulled, pulls)
        finally:
            for index, messages in pulled.items():
                claims[self.consumers[index].partition] += messages
        return pulled

    def _gather(self, connection: Connection) -> None:
        """Waits a moment for more than has come, where no frame is there as a whole."""
        if wire.next_frame(connection.buffer, connection.pos)[0] is None:
            connection.fill(time.monotonic() + _GATHER_S, WINDOW_BYTES)

    def _drain(
        self,
        connection: Connection,
        open_: dict[int, int],
        pulled: dict[int, list[Claim]],
        pulls: Mapping[int, int],
    ) -> None:
        """Takes what was sent to the pulls that are open, before their subscriptions ended."""
        mark = connection.new_inbox()
        own = connection.subscribe(mark)
        connection.send(wire.pub(mark, b"") + wire.unsub(own))
        # The server handles what one connection sends in its order, and so do we: our own message
        # comes behind everything that was sent to the pulls.
        timeout_s = self._client.options.request_timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            frame = connection.next_frame(deadline)
            if frame is None:
                raise RequestTimeoutError("the end of a pull", timeout_s)
            if frame.sid == own:
                return
            self._take(frame, open_, pulled, pulls)

    def _scan(
        self,
        connection: Connection,
        open_: dict[int, int],
        pulled: dict[int, list[Claim]],
        pulls: Mapping[int, int],
    ) -> None:
        """
        Takes the claims that are in the buffer; stops at the first frame that is anything else, or
        not there as a whole. Where a frame ends is what its line says, whatever it holds.
        """
        buffer, pos = connection.buffer, connection.pos
        while found := _CLAIM.match(buffer, pos):
            sid, consumer, deliveries, sequence, delivery, stored, size = found.groups()
            index = open_.get(int(sid))
            end = found.end() + int(size)
            if (
                index is None
                or consumer != self._acks[index]
                or not buffer.startswith(wire.CRLF, end)
            ):
                break
            end += len(wire.CRLF)
            room = pulls[index] - len(pulled[index])
            many = self._many.cut(buffer, pos, end - pos, int(sid), consumer, room)
            if many:
                pulled[index] += many.claims
                self.delivered[index] = many.delivery
                self._oldest_ns = min(self._oldest_ns, many.oldest_ns)
                end = pos + many.size
            else:
                pulled[index].append(Claim(int(sequence), int(deliveries)))
                self.delivered[index] = int(delivery)
                self._oldest_ns = min(self._oldest_ns, int(stored))
            self._many.passed(end - pos)
            pos = end
            if len(pulled[index]) >= pulls[index]:
                del open_[int(sid)]
        connection.pos = pos

    def _take(
        self,
        frame: wire.Frame,
        open_: dict[int, int],
        pulled: dict[int, list[Claim]],
        pulls: Mapping[int, int],
    ) -> None:
        """One frame: a claim, or a status that ends its pull."""
        index = open_.get(frame.sid)
        if index is None:
            return
        consumer = self.consumers[index]
        if frame.reply:
            ack = ack_of(frame.reply)
            if ack.consumer != self._acks[index]:
                raise ReadError(
                    consumer.stream,
                    consumer.partition,
                    f"the server acknowledges on '{ack.consumer.decode('utf-8', 'replace')}.…', and"
                    f" not on {consumer.acks}.…; shared consumers need the plain form of ack"
                    " subjects",
                )
            pulled[index].append(Claim(ack.facts.sequence, ack.delivered))
            self.delivered[index] = ack.facts.delivery
            self._oldest_ns = min(self._oldest_ns, ack.facts.time)
            if len(pulled[index]) >= pulls[index]:
                del open_[frame.sid]
            return
        code, text = wire.status_of(frame.headers)
        status = status_of(code, text)
        if status is Status.HEARTBEAT:
            return
        del open_[frame.sid]
        if status in (Status.ENDED, Status.MOVED):
            return
        if status is Status.AWAY:
            self._doubted.add(consumer)
            return
        raise ReadError(
            consumer.stream,
            consumer.partition,
            f"the server answers pulls of consumer '{consumer.name}' with {code} {text}".strip(),
        )
