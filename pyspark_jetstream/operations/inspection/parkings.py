"""
Rows of paused subjects that wait in a parking stream (`throttleParkStream`), as operators see them.

Rule 1: no I/O and no clock. Times are the server's: when it stored a row, and when it was asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...client.info import StoredMessage, StreamInfo, parse_time

SHOWN: Final = 20
"""Number of a stream's parked subjects that are shown, those with the most rows."""


@dataclass(frozen=True, slots=True)
class ParkedState:
    """Rows of one subject of a query that are parked."""

    query: str
    """Its id."""
    subject: str
    rows: int
    oldest: str
    """Time when the oldest of them was parked, RFC 3339; "" where it went out meanwhile."""
    age_s: float | None
    """Seconds since then."""


@dataclass(frozen=True, slots=True)
class ParkingState:
    """A parking stream; of a checkpoint with the rows of its query alone, but all its bytes."""

    stream: str
    rows: int = 0
    subjects: int = 0
    """Number of the subjects that have such rows, each query's by itself."""
    bytes: int = 0
    most_bytes: int | None = None
    """`throttleParkBytes`, as the last commit noted it; None where that is not known."""
    used: float | None = None
    """The part of `most_bytes` that is taken."""
    oldest: str = ""
    """Time when the oldest row was parked, "" without rows."""
    age_s: float | None = None
    parked: tuple[ParkedState, ...] = ()
    """The subjects with the most rows."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def most_rows(rows: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str]]:
    """The queries and subjects that are shown, of rows by query, by subject."""
    places = [(-count, query, name) for query, of in rows.items() for name, count in of.items()]
    return [(query, name) for _, query, name in sorted(places)[:SHOWN]]


def parking_state(
    info: StreamInfo,
    most_bytes: int | None,
    rows: Mapping[str, Mapping[str, int]],
    oldest: Sequence[StoredMessage | None],
) -> ParkingState:
    """
    A parking stream as a person wants it.

    Args:
        rows: by query, by subject.
        oldest: the oldest row of all, and then of each of `most_rows`.
    """

    def age(row: StoredMessage | None) -> tuple[str, float | None]:
        if row is None:
            return "", None
        return row.time, (info.now - parse_time(row.time)).total_seconds()

    is_full = most_bytes is not None and info.bytes >= most_bytes
    full = "is full: rows of paused subjects hold their batches"
    first, *others = oldest
    return ParkingState(
        info.name,
        sum(count for of in rows.values() for count in of.values()),
        sum(map(len, rows.values())),
        info.bytes,
        most_bytes,
        info.bytes / most_bytes if most_bytes else None,
        *age(first),
        parked=tuple(
            ParkedState(query, name, rows[query][name], *age(row))
            for (query, name), row in zip(most_rows(rows), others, strict=True)
        ),
        notes=(full,) if is_full else (),
    )


def gone(stream: str) -> ParkingState:
    """A parking stream that is not there."""
    problem = "is gone, and with it all that was parked: the query fails at its next batch"
    return ParkingState(stream, problems=(problem,))
