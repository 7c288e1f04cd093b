"""
Takes a query's part of its shared consumers, one of each partition.

The consumers are durable, acknowledge explicitly and deliver headers only: what is claimed here is
a sequence and a number of deliveries, and the executors fetch the messages by direct get. Which
reader gets which message is the server's decision (ADR-42, `overflow` and `prioritized`).

A claim asks for messages round by round; `claimpulls` sends the pulls of one round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
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
    RequestTimeoutError,
    StreamNotFoundError,
)
from ...fetch.durable import create, misfit_of, refused
from ..options import Sharing
from .claimpulls import ClaimPulls
from .claims import Claim, SharedConsumer, shares

_ROUND_MESSAGES: Final = 10_000
"""
Messages that all pulls of one round ask for together. A delivery that is on its way for long may
expire, and be somebody else's as well.
"""

_IN_TIME: Final = 3
"""Claims are collected during this part, a third, of the ack wait."""

_TUNABLE: Final = frozenset({"max_ack_pending", "headers_only"})
"""Fields that an operator may change under queries that share: they change none of their rows."""

_FREE: Final = frozenset(
    {"deliver_policy", "replay_policy", "headers_only", "backoff"}
    | {"max_batch", "max_expires", "max_bytes", "rate_limit_bps"}
)
"""Fields in which a consumer that is there may differ from one that this query would make."""

_TOO_MANY_PENDING: Final = 10121
"""err_code of JSConsumerMaxPendingAckExcessErrF."""

_CONSUMER_EXISTS: Final = 10148
"""err_code of JSConsumerAlreadyExists: another query has just made it."""


class Claimant:
    """One query's claims of all its shared consumers."""

    def __init__(
        self, client: Client, consumers: Sequence[SharedConsumer], sharing: Sharing, group: str
    ) -> None:
        self.consumers = tuple(consumers)
        """By partition."""
        self.ack_wait_s = sharing.ack_wait_s
        """The shortest of the consumers; known once they are joined."""
        self.joined: dict[int, ConsumerInfo] = {}
        """Each consumer as it was when it was joined, by partition."""
        self._client = client
        self._js = JetStream(client)
        self._sharing = sharing
        self._group = group

    def join(self, starts: Sequence[int | None]) -> None:
        """
        Joins the consumers, and makes those that are missing.

        Args:
            starts: by partition the first sequence to deliver, None for all.

        Raises:
            OptionError: A consumer of that name is of another kind, or has other settings.
            StreamNotFoundError: A stream was deleted.
        """
        own = self._sharing.ack_wait_s * 1e9
        infos = self.infos()
        for consumer in self.consumers:
            info = infos.get(consumer.number)
            if info is None:
                info = self._create(consumer, starts[consumer.number])
            self.joined.pop(consumer.number, None)
            self.check(consumer, info)
            self.joined[consumer.number] = info
        configs = [info.config for info in self.joined.values()]
        waits = [c.get("backoff") or [c.get("ack_wait") or own] for c in configs]
        self.ack_wait_s = min(chain.from_iterable(waits), default=own) / 1e9

    def missing(self) -> list[SharedConsumer]:
        """The consumers that are not there."""
        there = self.infos()
        return [consumer for consumer in self.consumers if consumer.number not in there]

    def claim(self, limit: int, wait_s: float) -> dict[int, list[Claim]]:
        """
        Up to `limit` messages, by partition; waits up to `wait_s` for a first one.

        Nothing confirms these claims meanwhile, so a server that is slow is asked for no more once
        part of the ack wait is over.

        Raises:
            ReadError: The server refuses the pulls.
            RequestTimeoutError, NotConnectedError: It does not answer within `requestTimeout`.
        """
        claims: dict[int, list[Claim]] = {consumer.number: [] for consumer in self.consumers}
        patience = Patience(self._client.options.request_timeout_s)
        while True:
            try:
                self._sweep(self._client.connection, claims, limit, wait_s)
                break
            except (NotConnectedError, RequestTimeoutError) as error:
                # What was read is claimed; what was on its way returns after its ack wait.
                self._client.drop()
                if not error.retryable or patience.over:
                    raise
                if any(claims.values()):
                    break
                patience.pause()
        return claims

    def infos(self) -> dict[int, ConsumerInfo]:
        """Configurations and positions of the consumers that are there, by partition."""
        asked = [(consumer.stream, consumer.name) for consumer in self.consumers]
        infos = self._js.consumer_infos(asked)
        return {
            consumer.number: info
            for consumer, info in zip(self.consumers, infos, strict=True)
            if info is not None
        }

    def check(self, consumer: SharedConsumer, info: ConsumerInfo) -> None:
        """
        Raises:
            OptionError: The consumer cannot be shared in the way the options say.
            ConsumerEditedError: It delivers otherwise than when this query joined it.
        """
        joined = self.joined.get(consumer.number)
        if joined is not None:
            misfit = misfit_of(joined.config, info, _TUNABLE)
            if misfit is not None:
                raise ConsumerEditedError(
                    consumer.stream,
                    consumer.number,
                    f"{misfit}. Queries that share it would read other messages, or each"
                    " other's; set it back (`nats consumer edit`), or start them again with it."
                    " What another filter leaves out the consumer has passed over, and does not"
                    " deliver by itself any more",
                )
            return
        sharing = self._sharing
        unasked = {"ack_wait": "ackWait", "max_ack_pending": "maxAckPending"}
        free = _FREE | {field for field, option in unasked.items() if option not in sharing.asked}
        if misfit := misfit_of(self._config(consumer, None), info, free):
            raise OptionError(
                "consumer",
                f"stream '{consumer.stream}': {misfit}; leave the option out that asks for it,"
                " choose another name, or change it for all who share it (`nats consumer edit`)."
                " For max_deliver there is option maxDeliver",
            )
        minimum = sharing.min_ack_pending
        maximum = int(info.config.get("max_ack_pending") or 0)
        if minimum is not None and 0 < maximum < minimum:
            raise OptionError(
                "minAckPending",
                f"{minimum} is never reached: consumer '{consumer.name}' of stream"
                f" '{consumer.stream}' has max_ack_pending {maximum}",
            )

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
        make = self._js.create_consumer
        if "maxAckPending" not in self._sharing.asked:
            make = partial(create, self._js)
        try:
            return make(consumer.stream, self._config(consumer, start), action="create")
        except StreamNotFoundError:
            raise
        except ApiError as error:
            if error.err_code == _CONSUMER_EXISTS:
                return self._js.consumer_info(consumer.stream, consumer.name)
            if error.err_code == _TOO_MANY_PENDING:
                raise OptionError("maxAckPending", error.description) from None
            raise refused(consumer.stream, consumer.number, consumer.name, error) from None

    def _sweep(
        self, connection: Connection, claims: dict[int, list[Claim]], limit: int, wait_s: float
    ) -> None:
        """
        Claims what is there, in equal shares as far as there are such.

        A consumer that has nothing is waited for in the first round; the server ends the pull with
        the first message, and whatever else is there.
        """
        ends = time.monotonic() + self.ack_wait_s / _IN_TIME
        fields = {"group": self._group} | self._sharing.pull
        open_ = dict.fromkeys(claims, True)
        while True:
            left = limit - sum(map(len, claims.values()))
            wanted = shares(min(left, _ROUND_MESSAGES), list(open_.values()))
            allowed = {p: joined.config.get("max_batch") for p, joined in self.joined.items()}
            asked = {
                p: min(count, allowed.get(p) or count)
                for p, count in zip(open_, wanted, strict=True)
                if count
            }
            if not asked:
                return
            pulls = ClaimPulls(self.consumers, asked, claims)
            timeout_s = self._client.options.request_timeout_s
            pulls.run(connection, self._js.prefix, fields, wait_s, timeout_s)
            wait_s = 0
            open_ |= {partition: not pulls.room(partition) for partition in asked}
            if time.monotonic() >= ends:
                return
