"""
The records of the ledger as values: what a task has noted, and what stood there at one moment.

Rule 1: no I/O; whatever a stranger wrote there is a `LedgerError`, and no record.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

from ...client.info import StoredMessage, parse_time
from ...errors import LedgerError
from ...foreign import read_json
from .changes import Before
from .committed import Committed
from .ids import Secrets

_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x1f]+")
"""The name of a stream, which becomes a token of subjects."""

_IDS: Final = re.compile(r"[!-~]{1,200}")
"""Valid beginnings of made ids."""

_FRESH_S: Final = 1.0
"""For so long a look into the ledger stands for one that is made now."""

_EPOCH: Final = "1970-01-01T00:00:00Z"

MAPPING: Final = "mapping"
"""Stands for the task in the key of a batch's mapping."""


@dataclass(frozen=True, slots=True)
class TaskName:
    """Task, batch and write; the same in every attempt."""

    write: str
    batch: int
    task: int

    def __str__(self) -> str:
        return f"{self.write}.{self.batch}.{self.task}"


@dataclass(slots=True)
class TaskRecord:
    """The ledger's record of a task, and its sequence."""

    name: TaskName
    attempt: str
    sequence: int
    """The sequence of the record in the bucket."""
    streams: dict[str, Before]
    """Each stream before any attempt of this task published into it."""
    again: bool
    """Whether there was an earlier attempt: rows of it may be stored."""
    mapping: str = ""
    """Digest of the mapping that rows go by; "" without one."""
    committed: Committed = field(default_factory=Committed)
    """Notes of the last batch before."""
    ids: str = ""
    """Prefix of the ids that are made for its rows; "" where none are."""
    forgotten: bool = False
    """Whether an operator has deleted what was known of attempts or batches before."""
    begun: str = ""
    """Time of its first attempt's look at its streams; "" where that is not known."""


@dataclass(frozen=True, slots=True)
class LedgerLook:
    """The ledger's records of a task at one moment."""

    committed: Committed
    last: StoredMessage | None
    """The record of the task."""
    forgotten: bool
    """Whether that, or what the query has committed, was deleted."""
    secrets: StoredMessage | None
    """Those of its query, if they were asked for."""
    mapping: StoredMessage | None
    """The mapping of its batch, likewise."""
    at: float

    @property
    def is_fresh(self) -> bool:
        """Whether it stands for one that is made now."""
        return time.monotonic() - self.at < _FRESH_S


def committed_of(message: StoredMessage | None) -> Committed:
    """The last batch that a query has committed, as its record says."""
    if message is None or not message.data:
        return Committed()
    try:
        return Committed.of(content_of(message))
    except ValueError:
        raise _no_record(message) from None


def begun_of(message: StoredMessage | None) -> dict[str, Any] | None:
    """
    What a task's first attempt noted: where streams ended before it, when they were created, by
    which mapping it went, which ids it made, how many messages of a subject they kept and when it
    began (all five not in old records); None without a record.
    """
    if message is None or not message.data:
        return None
    content = content_of(message)
    attempt, streams = content.get("attempt"), content.get("streams")
    created = content.setdefault("created", {})
    if not isinstance(attempt, str) or not isinstance(streams, dict):
        raise _no_record(message)
    if not isinstance(created, dict) or not all(isinstance(at, str) for at in created.values()):
        raise _no_record(message)
    limits = content.setdefault("per_subject", {})
    if not isinstance(limits, dict) or not all(
        type(limit) is int and limit >= 0 for limit in limits.values()
    ):
        raise _no_record(message)
    try:
        aware = parse_time(content.get("begun", _EPOCH)).tzinfo is not None
    except (TypeError, ValueError):
        aware = False
    if not aware:
        raise _no_record(message)
    ids = content.get("ids", "-")
    if not isinstance(ids, str) or not _IDS.fullmatch(ids):
        raise _no_record(message)
    if not all(type(sequence) is int and sequence >= 0 for sequence in streams.values()):
        raise _no_record(message)
    if not all(_STREAM.fullmatch(name) for name in streams):
        raise _no_record(message)
    return content


def secrets_of(message: StoredMessage) -> Secrets:
    try:
        return Secrets.of(content_of(message))
    except ValueError:
        raise _no_record(message) from None


def secrets_key(write: str) -> str:
    return f"{write}.ids"


def mapping_key(name: TaskName) -> str:
    return f"{name.write}.{name.batch}.{MAPPING}"


def streams_of(begun: dict[str, Any]) -> dict[str, Before]:
    """The streams of a task's record."""
    created, limits = begun["created"], begun["per_subject"]
    return {
        name: Before(end, created.get(name, ""), limits.get(name, 0))
        for name, end in begun["streams"].items()
    }


def content_of(message: StoredMessage) -> dict[str, Any]:
    """A record's fields."""
    try:
        content = read_json(message.data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _no_record(message)
    return content


def _no_record(message: StoredMessage) -> LedgerError:
    return LedgerError(message.subject, f"this is no record: {message.data[:60]!r}")
