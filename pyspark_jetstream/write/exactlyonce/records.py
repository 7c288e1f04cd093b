"""
Records of the ledger as values: the note of a task, and all notes at one moment.

Rule 1: no I/O; whatever a stranger wrote there is a `LedgerError`, and no record.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

from ...client.info import StoredMessage
from ...errors import LedgerError
from ...foreign import Reader, each, number, read_json, record, text
from ...foreign import time as time_text
from .changes import Before
from .committed import MAX_COUNT, Committed
from .ids import Secrets

_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x1f]+")
"""The name of a stream, which becomes a token of subjects."""

_IDS: Final = re.compile(r"[!-~]{1,200}")
"""Valid beginnings of made ids."""


def _streams(value: Any) -> dict[str, int]:
    ends: dict[str, int] = each(number(0, MAX_COUNT), dict)(value)
    if not all(_STREAM.fullmatch(name) for name in ends):
        raise ValueError(" has what is no stream")
    return ends


def _ids(value: Any) -> str:
    if not _IDS.fullmatch(text(value)):
        raise ValueError(" is no beginning of ids")
    return str(value)


_BEGUN: Final = record(
    {"attempt": text, "streams": _streams},
    {
        "created": each(text, dict),
        "per_subject": each(number(0, MAX_COUNT), dict),
        "begun": time_text,
        "ids": _ids,
    },
)

_FRESH_S: Final = 1.0
"""For so long a look into the ledger stands for one that is made now."""

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
    last: StoredMessage
    """The record of the task."""
    forgotten: bool
    """Whether that, or what the query has committed, was deleted."""
    secrets: StoredMessage
    """Secrets of its query, if they were asked for."""
    mapping: StoredMessage
    """The mapping of its batch, likewise."""
    at: float

    @property
    def is_fresh(self) -> bool:
        """Whether it stands for one that is made now."""
        return time.monotonic() - self.at < _FRESH_S


def committed_of(message: StoredMessage) -> Committed:
    """The last batch that a query has committed, as its record says."""
    return _read(message, Committed.of) if message.data else Committed()


def begun_of(message: StoredMessage) -> dict[str, Any] | None:
    """
    Notes of a task's first attempt: where streams ended before it, when they were created, by which
    mapping it went, which ids it made, how many messages of a subject they kept and when it began
    (all five not in old records); None without a record.
    """
    return _read(message, _BEGUN) if message.data else None


def secrets_of(message: StoredMessage) -> Secrets:
    return _read(message, Secrets.of) if message.data else Secrets()


def content_of(message: StoredMessage) -> dict[str, Any]:
    """A record's fields; none where there is no record."""
    return _read(message, dict) if message.data else {}


def secrets_key(write: str) -> str:
    return f"{write}.ids"


def mapping_key(name: TaskName) -> str:
    return f"{name.write}.{name.batch}.{MAPPING}"


def streams_of(begun: dict[str, Any]) -> dict[str, Before]:
    """The streams of a task's record."""
    created, limits = begun.get("created", {}), begun.get("per_subject", {})
    return {
        name: Before(end, created.get(name, ""), limits.get(name, 0))
        for name, end in begun["streams"].items()
    }


def _read(message: StoredMessage, reader: Reader) -> Any:
    try:
        return reader(record({})(read_json(message.data)))
    except ValueError:
        what = f"this is no record: {message.data[:60]!r}"
        raise LedgerError(message.subject, what) from None
