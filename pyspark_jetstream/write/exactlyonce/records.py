"""
Notes of the ledger as values.

Rule 1: no I/O; whatever a stranger wrote there is a `LedgerError`, and no note.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...client.info import StoredMessage
from ...errors import LedgerError
from ...foreign import Reader, each, number, read_json, record, text
from ..streams import FoundStream
from .ids import SECRET, TaskName

_STREAM: Final = re.compile(r"[^\s.*>/\\\x00-\x1f]+")
"""The name of a stream, which becomes a token of subjects."""

_MAX_COUNT: Final = 1 << 63

_STREAMS: Final = 1_000
"""Number of streams that a commit notes, those written to last."""

_FRESH_S: Final = 1.0
"""For so long a look into the ledger stands for one that is made now."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query has committed."""

    batch: int = -1
    """-1 for none."""
    streams: Mapping[str, FoundStream] = field(default_factory=dict)
    """Its target streams, and those of batches before, as their last commit found them."""

    def content(self, room: int, counts: Mapping[str, int]) -> bytes:
        """The note, with as many streams as it has room for."""
        streams = [*self.streams.values()][-_STREAMS:]
        while True:
            note = {"batch": self.batch, "streams": _noted(streams), **counts}
            data = json.dumps(note).encode()
            if len(data) <= room or not streams:
                return data
            streams = streams[len(streams) // 2 + 1 :]


@dataclass(slots=True)
class TaskRecord:
    """The note of a task's latest attempt, and its sequence."""

    name: TaskName
    attempt: str
    sequence: int
    """The sequence of the note in the bucket."""
    streams: dict[str, FoundStream]
    """Each stream before any attempt of this task published into it."""
    again: bool
    """Whether there was an earlier attempt: rows of it may be stored."""
    committed: Committed = field(default_factory=Committed)
    """The last batch before."""

    def content(self) -> bytes:
        """The note."""
        note = {"attempt": self.attempt, "streams": _noted(self.streams.values())}
        return json.dumps(note).encode()


@dataclass(frozen=True, slots=True)
class LedgerLook:
    """The ledger's notes for a task at one moment."""

    committed: Committed
    last: StoredMessage
    """The note of the task."""
    mapping: StoredMessage
    """Likewise of its batch's mapping."""
    secret: StoredMessage
    """Likewise of its query's secret."""
    at: float

    @property
    def is_fresh(self) -> bool:
        """Whether it stands for one that is made now."""
        return time.monotonic() - self.at < _FRESH_S


def committed_of(message: StoredMessage) -> Committed:
    """The last batch that a query has committed, as its note says."""
    if not message.data:
        return Committed()
    content = _read(message, _COMMITTED)
    return Committed(content["batch"], content["streams"])


def begun_of(message: StoredMessage) -> dict[str, FoundStream]:
    """The streams of a task before its first attempt; none without a note."""
    return _read(message, _BEGUN)["streams"] if message.data else {}


def attempt_of(message: StoredMessage) -> str:
    """The latest attempt of a task; "" without a note."""
    return str(_read(message, _BEGUN)["attempt"]) if message.data else ""


def mapping_of(message: StoredMessage) -> str:
    """The digest of the mapping of a batch; "" for none."""
    return _read(message, _MAPPING)["mapping"] if message.data else ""


def secret_of(message: StoredMessage) -> str:
    """The secret of a query; "" for none."""
    return _read(message, _SECRET)["secret"] if message.data else ""


def _noted(streams: Iterable[FoundStream]) -> dict[str, tuple[str, int]]:
    return {stream.name: (stream.created, stream.end) for stream in streams}


def _streams(value: Any) -> dict[str, FoundStream]:
    streams = {}
    for name, pair in each(each(lambda one: one), dict)(value).items():
        if not _STREAM.fullmatch(name) or len(pair) != 2:
            raise ValueError(" has what is no stream")
        streams[name] = FoundStream(name, text(pair[0]), number(0, _MAX_COUNT)(pair[1]))
    return streams


def _secret(value: Any) -> str:
    if not SECRET.fullmatch(text(value)):
        raise ValueError(" is no secret")
    return str(value)


_COMMITTED: Final = record({"batch": number(0, _MAX_COUNT), "streams": _streams})
_BEGUN: Final = record({"attempt": text, "streams": _streams})
_MAPPING: Final = record({"mapping": text})
_SECRET: Final = record({"secret": _secret})


def _read(message: StoredMessage, reader: Reader) -> Any:
    try:
        return reader(record({})(read_json(message.data)))
    except ValueError:
        what = f"this is no record: {message.data[:60]!r}"
        raise LedgerError(message.subject, what) from None
