"""
What the server says of the target streams of a write: which takes a subject, which lost rows.

A PubAck says that a row was stored, not that it still is. A stream that was made anew, or that ends
before the sequence at which it was seen to end, has lost rows that were acknowledged: a server lost
them, an older copy was put back, or somebody deleted the stream. That is an error wherever it
shows: before an attempt begins, when it looks for rows of an earlier one, and at the commit.

What is removed from the middle of a stream, and a stream that was taken back and has outgrown its
end since, does not show, and is not looked for (docs/reference/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..client.connection import Client
from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import OFF, ApiError, JetStreamError, OptionError, TargetChangedError
from ..outbox.targets import Target, Targets
from ..publish.settings import SinkOptions
from ..sanitize import get_logger

logger = get_logger(__name__)

SETTLES_S: Final = 3.0
"""Time for which a loss must show: a leader that was just elected may not know all that it has."""


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A target stream at one moment."""

    name: str
    created: str
    end: int
    """Its last sequence."""

    @classmethod
    def of(cls, info: StreamInfo) -> FoundStream:
        """The stream as STREAM.INFO shows it now."""
        return cls(info.name, info.created, info.last_seq)

    def upto(self, stored_in: Mapping[str, int]) -> FoundStream:
        """The same, once it has a row at this sequence."""
        return replace(self, end=max(self.end, stored_in.get(self.name, 0)))

    def loss(self, now: StreamInfo | None) -> str | None:
        """Proof that rows are gone, by the stream as it is now; None if there is none."""
        if now is None:
            return "it was deleted, and the rows in it are gone"
        if now.created != self.created:
            return (
                f"it was made anew at {now.created}; rows that were stored in the one of"
                f" {self.created} are gone"
            )
        if now.last_seq < self.end:
            return (
                f"it ended at sequence {self.end}, and ends at {now.last_seq} now: its server lost"
                " what it had acknowledged, or an older copy of it was put back"
            )
        return None


def check_unchanged(
    js: JetStream, seen: Iterable[FoundStream], remedy: str
) -> Mapping[str, StreamInfo]:
    """
    The streams as they are now, by their names.

    Args:
        seen: the streams as they were; one may stand there more than once.
        remedy: what to do where one has lost rows.

    Raises:
        TargetChangedError: One was made anew, ends before where it ended, or is gone.
    """
    seen, patience = list(seen), Patience(SETTLES_S, pause_s=0.1)
    names = list(dict.fromkeys(stream.name for stream in seen))
    while True:
        infos = dict(zip(names, js.stream_infos_there(names), strict=True)) if names else {}
        losses = [(each, why) for each in seen if (why := each.loss(infos[each.name]))]
        if not losses:
            return {name: info for name, info in infos.items() if info is not None}
        if patience.over:
            stream, why = losses[0]
            raise TargetChangedError(stream.name, f"{why}. {remedy}")
        patience.pause()


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
    """
    Looks up which stream takes a subject. While publishes are under way it has a connection of its
    own: on the task's PubAcks arrive.
    """

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
