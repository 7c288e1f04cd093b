"""
Takes a query's part of its shared consumers, one of each partition.

The consumers are durable, acknowledge explicitly and deliver headers only: what is claimed here is
a sequence and a number of deliveries, and the executors fetch the messages by direct get. Which
reader gets which message is the server's decision (ADR-42, `overflow` and `prioritized`).

How many messages a claim asks for is decided here; `claimpulls` asks for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

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
    StreamNotFoundError,
    further,
)
from ...fetch.assumptions import changed_fields, edit_of, in_words
from ...fetch.durable import refused
from ...sanitize import get_logger
from ..options import Sharing
from .claimpulls import ClaimPulls, LastClaim
from .claims import Claim, SharedConsumer, shares
from .manyclaims import ManyClaims

logger = get_logger(__name__)

_PULL_MESSAGES: Final = 50_000
"""The most messages of one pull, headers only."""

_LEAST_MESSAGES: Final = 10_000
"""
Messages that all pulls of one round ask for together where it is not known how fast they come, or
they come slowly. A delivery that is on its way for long may expire, and be somebody else's as well.
"""

_FEWER: Final = 10
"""A claim that came too late is followed by one of this part, a tenth, of its messages."""

_PACE_MESSAGES: Final = 1_000
"""Least number of messages of a pull by which the rate is measured."""

_MANY: Final = 5_000
"""
A claim of so many messages waits for the end of other readers' pulls, where they leave as many.
"""

_ALONE_S: Final = 0.5
"""Time for which that end is waited for; a pull of as much as fits in one takes half of it."""

_LOOK_S: Final = 0.01
"""Between two looks whether others pull."""

_YOUNG: Final = 4
"""
A message that is younger than this part, a quarter, of the ack wait need not be "in progress" at
once: the first heartbeat comes after a third of the ack wait.
"""

_IN_TIME: Final = 3
"""Claims are collected during this part, a third, of the ack wait."""

_TUNABLE: Final = frozenset({"max_ack_pending", "headers_only"})
"""Fields that an operator may change under queries that share: they change none of their rows."""

_ANOTHER: Final = ("consumer", "choose another name")
_TUNED: Final = "leave the option out, or change it for all who share it (`nats consumer edit`)"
_REMEDIES: Final = {
    "deliver_subject": _ANOTHER,
    "ack_policy": _ANOTHER,
    "filter_subject": _ANOTHER,
    "filter_subjects": _ANOTHER,
    "priority_groups": ("priorityGroup", "a consumer has one group for all who share it"),
    "priority_policy": ("priorityPolicy", "a consumer has one policy for all who share it"),
    "max_deliver": (
        "consumer",
        "after so many deliveries the server drops a message without a word. Set it to -1 (`nats"
        " consumer edit --max-deliver=-1`) and use option maxDeliver, which keeps it as a dead"
        " letter",
    ),
    "ack_wait": ("ackWait", _TUNED),
    "max_ack_pending": ("maxAckPending", _TUNED),
}
"""
Settings that a consumer that is there must have as this query would make it: by field the option
that the error names, and what can be done.
"""

_CONSUMER_EXISTS: Final = 10148
"""err_code of JSConsumerAlreadyExists: another query has just made it."""


@dataclass(slots=True)
class ClaimSizes:
    """Sizes of a claim and of its pulls: as many messages as come in time."""

    most: float = math.inf
    """Upper bound of one claim; lower after a claim that came too late."""
    _rate: float = 0.0
    """Messages a second that the last large pulls brought; 0 before any."""

    def each_pull(self, pulling: int, ack_wait_s: float) -> int:
        """The most that each of so many pulls of one round may ask for."""
        in_time = round(self._rate * ack_wait_s / _IN_TIME)
        return min(_PULL_MESSAGES, max(1, max(_LEAST_MESSAGES, in_time) // pulling))

    def measure(self, count: int, took_s: float) -> None:
        """Notes how long the pulls of one round took for what they brought."""
        if count >= _PACE_MESSAGES:
            self._rate = count / took_s

    def shrink(self, count: int) -> None:
        """A claim of so many messages came too late."""
        self.most = max(1, count // _FEWER)

    def grow(self, count: int, lasted_s: float, ack_wait_s: float) -> None:
        """A claim came in time: if it was full, and twice as many would have come, too, so many."""
        if count >= self.most and lasted_s * 2 * _IN_TIME <= ack_wait_s:
            self.most *= 2


class Claimant:
    """One query's claims of all its shared consumers."""

    def __init__(
        self, client: Client, consumers: Sequence[SharedConsumer], sharing: Sharing, group: str
    ) -> None:
        self.consumers = tuple(consumers)
        self.by_partition = {consumer.partition: consumer for consumer in consumers}
        """The consumers, and those of streams that were deleted since."""
        self.ack_wait_s = sharing.ack_wait_s
        """The shortest of the consumers; known once they are joined."""
        self.nak_delay_s = sharing.nak_delay_s
        """Time after which claims that are given back are dealt out again."""
        self.joined: dict[str, ConsumerInfo] = {}
        """Each consumer as it was when it was joined, by partition."""
        self.last = LastClaim({})
        self.sizes = ClaimSizes()
        self._client = client
        self._js = JetStream(client)
        self._sharing = sharing
        self._group = group
        self._ahead_ns = math.inf
        """The server's clock minus our monotonic one, at the most; not known yet."""
        self._crowded = False
        """Whether others were pulling at each look, the last time that was looked."""
        self._many = ManyClaims()

    def set_consumers(self, consumers: Iterable[SharedConsumer]) -> None:
        """Goes on with these: some streams come, some go, and some are made anew."""
        self.consumers = tuple(consumers)
        for consumer in self.consumers:
            if self.by_partition.get(consumer.partition) != consumer:
                self.by_partition[consumer.partition] = consumer
                self.joined.pop(consumer.partition, None)

    def join(self, starts: Mapping[str, int | None]) -> None:
        """
        Joins the consumers that are new, and makes those that are missing.

        Args:
            starts: by partition the first sequence to deliver, None for all.

        Raises:
            OptionError: A consumer of that name is of another kind, or has other settings.
            StreamNotFoundError: A stream was deleted.
        """
        own = self._sharing.ack_wait_s * 1e9
        new = [consumer for consumer in self.consumers if consumer.partition not in self.joined]
        infos = self.infos(new)
        for consumer in new:
            info = infos.get(consumer.partition)
            if info is None:
                info = self._create(consumer, starts[consumer.partition])
            self._check(consumer, info)
            self.joined[consumer.partition] = info
        configs = [info.config for info in self.joined.values()]
        waits = [c.get("backoff") or [c.get("ack_wait") or own] for c in configs]
        self.ack_wait_s = min(chain.from_iterable(waits), default=own) / 1e9

    def on_client(self, client: Client) -> Claimant:
        """One of the same consumers, which are joined, with a connection of its own."""
        other = Claimant(client, self.consumers, self._sharing, self._group)
        other.ack_wait_s = self.ack_wait_s
        return other

    def missing(self) -> list[SharedConsumer]:
        """The consumers that are not there."""
        there = self.infos()
        return [consumer for consumer in self.consumers if consumer.partition not in there]

    def claim(self, limit: int, wait_s: float) -> dict[str, list[Claim]]:
        """
        Up to `limit` messages, by partition; waits up to `wait_s` for a first one.

        Nothing confirms these claims meanwhile, so a server that is slow is asked for no more once
        part of the ack wait is over.

        Raises:
            ReadError: The server refuses the pulls.
            RequestTimeoutError, NotConnectedError: It does not answer within `requestTimeout`.
        """
        claim = self.last = LastClaim({consumer.partition: [] for consumer in self.consumers})
        if not self.consumers:  # all of several streams are gone
            time.sleep(wait_s)
            return claim.claims
        limit = int(min(limit, self.sizes.most))
        patience = Patience(self._client.options.request_timeout_s)
        if wait_s <= 0:
            self._find_alone(limit)
        while True:
            try:
                claim.began_s = time.monotonic()
                connection = self._client.connection
                claim.server = connection.info.get("server_id", "")
                self._sweep(connection, claim, limit, wait_s)
                break
            except (NotConnectedError, RequestTimeoutError) as error:
                # What was read is claimed; what was on its way returns after its ack wait.
                self._client.drop()
                if not error.retryable or patience.over:
                    raise
                if claim.count:
                    break
                patience.pause()
        return claim.claims

    def infos(self, of: Sequence[SharedConsumer] | None = None) -> dict[str, ConsumerInfo]:
        """Configurations and positions of the consumers, or of these, by partition."""
        asked_s = time.monotonic()
        consumers = self.consumers if of is None else of
        infos = self._js.consumer_infos(
            [(consumer.stream, consumer.name) for consumer in consumers]
        )
        self.note_clock([info for info in infos if info is not None], asked_s)
        return {
            consumer.partition: info
            for consumer, info in zip(consumers, infos, strict=True)
            if info is not None
        }

    def note_clock(self, infos: Iterable[ConsumerInfo], asked_s: float) -> None:
        """Takes in the server's clock of answers to a question of that moment."""
        clocks = [info.now.timestamp() for info in infos if info.now]
        if clocks:  # the answer took no time, for all we know
            self._ahead_ns = (max(clocks) - asked_s) * 1e9

    def check_edited(self, consumer: SharedConsumer, info: ConsumerInfo) -> None:
        """
        Raises:
            ConsumerEditedError: The consumer delivers otherwise than when this query joined it.
        """
        change = edit_of(self.joined[consumer.partition].config, info, ignored=_TUNABLE)
        if change is not None:
            raise ConsumerEditedError(
                consumer.stream,
                consumer.number,
                f"{change.text}. Queries that share it would read other messages, or each"
                " other's; set it back (`nats consumer edit`), or start them again with it."
                " What another filter leaves out the consumer has passed over, and does not"
                f" deliver by itself any more{further('guides/sharing')}",
            )

    @property
    def is_young(self) -> bool:
        """
        Whether all messages of the last claim were stored so recently that a server which takes
        that for the time of their delivery finds none expired before part of the ack wait is over.
        """
        age_s = time.monotonic() + (self._ahead_ns - self.last.oldest_ns) / 1e9
        return age_s < self.ack_wait_s / _YOUNG

    def doubtful(self) -> set[str]:
        """
        The partitions of which the last claim may be somebody else's as well.

        Where the ack wait is over since it began; and where the consumer has had another leader or
        a restart since: then the server goes by what is stored, of a delivery the time of its
        message, and may have dealt it out again before it heard that it is in progress.

        Raises:
            ReadError: The ack wait is too short for the claim of a single message.
        """
        infos, last = self.infos(), self.last
        same = self._client.connection.info.get("server_id", "") == last.server
        lasted_s = time.monotonic() - last.began_s
        if lasted_s >= self.ack_wait_s:
            if last.count <= 1:
                at = next((c for c in self.consumers if last.claims.get(c.partition)), None)
                at = at or self.consumers[0]
                raise ReadError(
                    at.stream,
                    at.number,
                    f"consumer '{at.name}': a claim of one message took {lasted_s:.1f}s, and others"
                    f" have it after {self.ack_wait_s:g}s; give a longer ackWait",
                )
            self.sizes.shrink(last.count)
            return {consumer.partition for consumer in self.consumers}
        self.sizes.grow(last.count, lasted_s, self.ack_wait_s)
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
        except StreamNotFoundError:
            raise
        except ApiError as error:
            if error.err_code == _CONSUMER_EXISTS:
                return self._js.consumer_info(consumer.stream, consumer.name)
            raise refused(consumer.stream, consumer.number, consumer.name, error) from None

    def _check(self, consumer: SharedConsumer, info: ConsumerInfo) -> None:
        """
        Raises:
            OptionError: The consumer cannot be shared in the way the options say.
        """
        sharing, config = self._sharing, info.config
        at = f"consumer '{consumer.name}' of stream '{consumer.stream}'"
        for key, has, needs in changed_fields(self._config(consumer, None), config):
            option, remedy = _REMEDIES.get(key, ("", ""))
            if not option or (remedy is _TUNED and option not in sharing.asked):
                continue
            if has is None:  # nobody shares it
                option, remedy = _ANOTHER
            raise OptionError(
                option,
                f"{at} has {in_words(key, has)} where this query needs {in_words(key, needs)};"
                f" {remedy}",
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
        patience = Patience(_ALONE_S, pause_s=_LOOK_S)
        while limit >= _MANY:
            infos = self.infos().values()
            if not any(info.num_waiting and info.num_pending >= _MANY for info in infos):
                self._crowded = False
                return
            self._crowded = self._crowded or patience.over
            if self._crowded:
                return
            patience.pause()

    def _sweep(self, connection: Connection, claim: LastClaim, limit: int, wait_s: float) -> None:
        """
        Claims what is there, in equal shares as far as there are such.

        A consumer that has nothing is waited for in the first round; the server ends the pull with
        the first message, and whatever else is there.
        """
        consumers = {consumer.partition: consumer for consumer in self.consumers}
        fields = {"group": self._group} | self._sharing.pull
        open_ = dict.fromkeys(consumers, True)
        left = limit - claim.count
        while any(wanted := shares(left, list(open_.values()))):
            most = self.sizes.each_pull(sum(count > 0 for count in wanted), self.ack_wait_s)
            asked = {
                partition: min(count, most)
                for partition, count in zip(open_, wanted, strict=True)
                if count
            }
            began, before = time.monotonic(), claim.count
            pulls = ClaimPulls(consumers, asked, self._many, claim)
            timeout_s = self._client.options.request_timeout_s
            pulls.run(connection, self._js.prefix, fields, wait_s, timeout_s)
            self.sizes.measure(claim.count - before, time.monotonic() - began)
            left = limit - claim.count
            wait_s = 0
            open_ |= {partition: not pulls.room(partition) for partition in asked}
            if time.monotonic() >= claim.began_s + self.ack_wait_s / _IN_TIME:
                return
