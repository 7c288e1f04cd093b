"""
The streams of a task's rows: the one that takes a subject, and its state when it was found.

While publishes are under way, requests go over a connection of their own: on the task's PubAcks
arrive.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import OFF, ApiError, JetStreamError, OptionError, TargetChangedError
from ..outbox.targets import Target, Targets
from ..publish.settings import SinkOptions
from ..sanitize import get_logger
from .exactlyonce.targetstate import FoundStream

logger = get_logger(__name__)


def check_target(target: Target, options: SinkOptions) -> None:
    """
    Raises:
        OptionError: Rows cannot be written into this stream as the options say.
    """
    if not options.ledger:
        return
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
    if fault is not None:
        raise OptionError("exactlyOnce", fault)


class Streams:
    """Looks up which stream takes a subject, over a connection that carries no PubAcks."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self.publishing = False
        """Whether PubAcks are under way on the task's own connection."""
        self.seen: dict[str, FoundStream] = {}
        """Each stream at the moment it was found."""
        self._client = client
        self._control = Client(options.connection)
        self._options = options
        asks = options.rows.require_stream
        self.targets = Targets(self.find)
        self.targets.is_blind = not (asks or options.rules.sheddable)

    def close(self) -> None:
        """Closes the connection beside the task's."""
        self._control.close()

    @property
    def client(self) -> Client:
        """The connection for requests."""
        return self._control if self.publishing else self._client

    def find(self, subjects: list[str]) -> list[Target | None]:
        """The stream that takes each subject, or None."""
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

    def holding(self, stored_in: Mapping[str, int]) -> list[FoundStream]:
        """The streams that have rows, as they were found."""
        return [self.seen[name].upto(stored_in) for name in stored_in if name in self.seen]
