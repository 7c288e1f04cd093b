"""
The streams of a task's rows: the one that takes a subject, and its state when it was found.

While publishes are under way, requests go over connections of their own: on the task's PubAcks
arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import (
    OFF,
    ApiError,
    DuplicateIdError,
    JetStreamError,
    OptionError,
    StreamNotFoundError,
    TargetChangedError,
)
from ..outbox.messages import Messages
from ..outbox.targets import Target, TargetLookup, Targets
from ..publish.options import SinkOptions
from ..sanitize import get_logger
from .exactlyonce.changes import FoundStream

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


def duplicate_id(rows: Messages, target: Target) -> DuplicateIdError:
    """The error of the first of these rows, whose made id its stream knew though it was new."""
    id = rows.ids[0].as_py().decode() if rows.ids is not None else ""
    subject, row = rows.distinct[rows.codes[0]], rows.rows[0].as_py()
    return DuplicateIdError(subject, f"row {row}", 0, id, target.name, target.duplicate_window_s)


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
        self.requests = threading.RLock()
        """Held for requests over `client`, which the maker of rows and their publisher share."""
        self._options = options
        asks = options.rows.require_stream
        self._dead: set[str] = set()
        """Those of dead letters alone, as far as is known."""
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
            with self.requests:
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
            now = FoundStream.of(info)
            before = self.seen.setdefault(name, now)
            if now.created != before.created:
                raise TargetChangedError(name, before.made_anew(now))
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
        """
        The streams as they were found, each with the first of its sequences that is known to hold a
        row; those of dead letters alone only if one is known.
        """
        return [
            seen.holding(stored_in.get(name, 0))
            for name, seen in self.seen.items()
            if name in stored_in or name not in self._dead
        ]

    def look_up_dead(self, subject: str) -> None:
        """
        Notes the stream of dead letters before there is one.

        Args:
            subject: of them; where rows' own stand in it, which are not known yet, one like them.
        """
        known = set(self.seen)
        self.find([subject])
        self._dead = set(self.seen) - known

    def holding_dead(self, stored_in: Mapping[str, int]) -> list[FoundStream]:
        """The streams of dead letters as they were found, or else as they are at the end."""
        js = JetStream(self._client)
        found = []
        for name, first in stored_in.items():
            if (before := self.seen.get(name)) is not None:
                found.append(replace(before.holding(first), is_target=False))
                continue
            try:
                now = FoundStream.of(js.stream_info(name))
            except StreamNotFoundError:
                now = FoundStream(name, "", first, "", keeps=True)  # the commit looks again
            except JetStreamError as error:
                logger.warning(
                    "stream=%s: the commit goes on without the check whether the stream still has"
                    " the rows of this task: %s", name, error,
                )  # fmt: skip
                continue
            end = max(first, now.end)
            found.append(replace(now, end=end, first=first, is_target=False))
        return found
