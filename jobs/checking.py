"""What the demo compares: of every subject, how many payloads there are and in which order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa


class Payloads(NamedTuple):
    """The payloads of one subject, in order."""

    messages: int
    digest: str


class Expected:
    """What the input (`n`, `subject`, `data`, `delay`) says that must come out."""

    def __init__(self, flights: pa.Table) -> None:
        self._flights = flights.sort_by("n")
        self.rows = self._flights.num_rows
        self.subjects: list[str] = self._flights["subject"].to_pylist()
        self.flights = by_subject(self._flights)
        self.delays: dict[str, tuple[int, int]] = {}
        """Flights and minutes of delay by origin."""
        delays = self._flights["delay"].to_pylist()
        for subject, delay in zip(self.subjects, delays, strict=True):
            origin = subject.split(".")[1]
            flights, minutes = self.delays.get(origin, (0, 0))
            self.delays[origin] = flights + 1, minutes + delay

    def alerts(self, minutes: int) -> dict[str, Payloads]:
        """The flights that are later than so many minutes, by `alerts.<origin>`."""
        late = self._flights.filter(pc.greater(self._flights["delay"], minutes))
        subjects = [f"alerts.{subject.split('.')[1]}" for subject in late["subject"].to_pylist()]
        return _payloads(subjects, late["data"].to_pylist())


def by_subject(rows: pa.Table) -> dict[str, Payloads]:
    """The payloads of every subject, in the order of the rows."""
    return _payloads(rows["subject"].to_pylist(), rows["data"].to_pylist())


def by_subject_without(rows: pa.Table, token: int) -> dict[str, Payloads]:
    """
    The same, with the partition's number taken out of the subjects.

    Raises:
        ValueError: The number in a subject is not the row's partition.
    """
    subjects = []
    for subject, partition in zip(
        rows["subject"].to_pylist(), rows["partition"].to_pylist(), strict=True
    ):
        parts = subject.split(".")
        if parts.pop(token) != str(partition):
            raise ValueError(f"'{subject}' was read as partition {partition}")
        subjects.append(".".join(parts))
    return _payloads(subjects, rows["data"].to_pylist())


def span(rows: pa.Table, partition: int, first: int, last: int) -> list[bytes]:
    """The payloads of one partition from one sequence to another, both included."""
    sequence = rows["sequence"]
    inside = pc.and_(pc.greater_equal(sequence, first), pc.less_equal(sequence, last))
    chosen = rows.filter(pc.and_(pc.equal(rows["partition"], partition), inside))
    payloads: list[bytes] = chosen.sort_by("sequence")["data"].to_pylist()
    return payloads


def _payloads(subjects: Iterable[str], payloads: Iterable[bytes | str]) -> dict[str, Payloads]:
    digests: dict[str, xxhash.xxh3_128] = defaultdict(xxhash.xxh3_128)
    counts: dict[str, int] = defaultdict(int)
    for subject, payload in zip(subjects, payloads, strict=True):
        data = payload.encode() if isinstance(payload, str) else payload
        digests[subject].update(b"%d:" % len(data) + data)  # where one ends is part of it
        counts[subject] += 1
    return {
        subject: Payloads(counts[subject], digest.hexdigest())
        for subject, digest in digests.items()
    }
