"""
The streams of a task's rows: the one that takes a subject, and its state when it was found.

While publishes are under way, requests go over connections of their own: on the task's PubAcks
arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import (
    OFF,
    ApiError,
    JetStreamError,
    OptionError,
    TargetChangedError,
)
from ..outbox.targets import Target, TargetLookup, Targets
from ..publish.options import SinkOptions
from ..sanitize import get_logger
from .exactlyonce.targetstate import FoundStream

logger = get_logger(__name__)

_LOOK_S: Final = 1.0
"""Time-out of lookups that block publishing."""


def target_fault(target: Target, options: SinkOptions) -> OptionError | None:
    """Reason that rows cannot be written into this stream as the options say."""
    if not options.ledger:
        return None
    fault = target.fault(options.window.ack_timeout_s)
    if fault is None and options.dead_letter_subject:
        fault = target.later_rows_fault(
            "of rows that may be dead letters",
            "send them to a stream that keeps all its messages, leave deadLetterSubject out",
        )
    if fault is None and not options.rules.by_subject:
        fault = target.later_rows_fault(
            "where rows overtake each other (publishOrder=none)",
            "write into a stream that keeps all its messages, leave publishOrder out",
        )
    return None if fault is None else OptionError("exactlyOnce", fault)


class Streams(TargetLookup):
    """Looks up which stream takes a subject, over connections that carry no PubAcks."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self.publishing = False
        """Whether PubAcks are under way on the task's own connection."""
        self.seen: dict[str, FoundStream] = {}
        """Each stream at the moment it was found."""
        self._client = client
        self._control = Client(options.connection)
        # Its requests are made between two turns of the one loop there is: PubAcks wait meanwhile.
        brief_s = min(_LOOK_S, options.connection.request_timeout_s)
        self.hasty = Client(replace(options.connection, request_timeout_s=brief_s))
        """A connection with short time-outs, for requests that publishing waits for."""
        self._options = options
        asks = options.rows.require_stream
        self.targets = Targets(self)
        self.targets.is_blind = not (asks or options.rules.sheddable)

    def close(self) -> None:
        """Closes the connections beside the task's."""
        self._control.close()
        self.hasty.close()

    @property
    def client(self) -> Client:
        """The connection for requests."""
        return self._control if self.publishing else self._client

    def find(self, subjects: list[str]) -> list[Target | None]:
        js = JetStream(self.client)
        try:
            names = js.streams_of(subjects)
            there = list(dict.fromkeys(name for name in names if name is not None))
            infos = dict(zip(there, js.stream_infos(there), strict=True)) if there else {}
        except JetStreamError as error:
            # Without the permission to ask, rows go out all the same, and PubAcks tell.
            off = isinstance(error, ApiError) and error.err_code in OFF
            if self._options.ledger or error.retryable or off:
                raise
            logger.info("publishing subject=%s to an unknown stream: %s", subjects[0], error)
            self.targets.is_blind = True
            return [None] * len(subjects)
        for name, info in infos.items():
            before = self.seen.setdefault(name, FoundStream.of(info))
            if info.created != before.created:
                raise TargetChangedError(name, before.loss(info) or "")
        targets = {name: Target.parse(info.config) for name, info in infos.items()}
        return [None if name is None else targets[name] for name in names]

    def as_they_are(self, known: list[Target]) -> list[Target | None]:
        """These streams, all asked at once; None for one that does not say."""
        names = [target.name for target in known]
        try:
            infos = JetStream(self.hasty).stream_infos_there(names)
        except JetStreamError as error:
            asked = str(getattr(error, "subject", "")).rpartition(".")[2]
            silent = names.index(asked) if asked in names else 0
            logger.warning(
                "rows without a PubAck wait until stream=%s answers whether it has them, for"
                " publishTimeout at most: %s", names[silent], error,
            )  # fmt: skip
            return [None if i == silent else target for i, target in enumerate(known)]
        # One that is gone has no rows; publishes will hear so.
        return [
            target if info is None else Target.parse(info.config)
            for target, info in zip(known, infos, strict=True)
        ]

    def holding(self, stored_in: Mapping[str, int]) -> list[FoundStream]:
        """The streams that have rows, as they were found."""
        return [self.seen[name].upto(stored_in) for name in stored_in if name in self.seen]
