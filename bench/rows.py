"""
The rows that every measurement moves: flights as JSON, or one payload of so many bytes.

Flights are the repository's 100,000, repeated to the wanted number, on subjects with a partition
token. Nothing between Spark and a stream's file looks into a payload, so one serves all rows of its
size. Must not know servers or Spark.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.publish.lanes.flight import Publishes, framed
from pyspark_jetstream.write.rows import MessageBuilder

_DATA: Final = Path(__file__).parent.parent / "jobs" / "data" / "flights-100k.parquet"

PARTITIONS: Final = 2
SUBJECTS: Final = 1_000
"""Of payloads, unless told."""

MAPPING: Final = '{"flights.*.*": "flights.{{partition(2,1)}}.$1.$2"}'
"""As a user writes it in `subjectMapping`: the origin decides the partition."""

_OPTIONS: Final = parse_sink({"subjectMapping": MAPPING})
_BLOCK_ROWS: Final = 10_000
_BLOCK_BYTES: Final = 64 << 20
"""As large as the batches that Spark hands to a sink."""


class Flights:
    """`rows` flights; row i is row i modulo their number of the file."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        table = pq.read_table(_DATA, columns=["date", "delay", "distance", "origin", "destination"])
        table = table.slice(0, rows).combine_chunks()
        origin, destination = (table[name].cast(pa.string()) for name in table.column_names[3:])
        seconds = table["date"].cast(pa.timestamp("s"))
        self._file = pa.table({
            "subject": _join("flights.", origin, ".", destination),
            "data": _join(
                '{"date":"', pc.strftime(seconds, "%Y-%m-%dT%H:%M:%S"),
                '","delay":', table["delay"].cast(pa.string()),
                ',"distance":', table["distance"].cast(pa.string()),
                ',"origin":"', origin,
                '","destination":"', destination, '"}',
            ).cast(pa.binary()),
        }).combine_chunks()  # fmt: skip

    def tables(self, first: int, last: int) -> Iterator[pa.Table]:
        """The rows `[first, last)`, with the columns subject and data, in slices of the file."""
        while first < last:
            at = first % self._file.num_rows
            count = min(last - first, self._file.num_rows - at)
            yield self._file.slice(at, count)
            first += count

    def counts(self) -> list[int]:
        """How many rows each partition gets."""
        counts = [0] * PARTITIONS
        for table in self.tables(0, self.rows):
            for subject in _mapped(table):
                counts[int(subject.split(".", 2)[1])] += 1
        return counts

    def write_parquet(self, directory: Path) -> None:
        """One file a partition, halves of the rows in order."""
        for part in range(PARTITIONS):
            bounds = (self.rows * part // PARTITIONS, self.rows * (part + 1) // PARTITIONS)
            pq.write_table(pa.concat_tables(self.tables(*bounds)), directory / f"{part}.parquet")


class Payloads:
    """
    `rows` rows of `size` bytes; row i goes to the subject `payloads.<i mod 1,000>`.

    With `subjects`, each of these has as many rows as any other, give or take one, and they are
    shuffled: the last row of a subject may be anywhere.
    """

    def __init__(self, size: int, rows: int, subjects: int | None = None) -> None:
        self.rows = rows
        chance = random.Random(size)
        self.data = chance.randbytes(size)
        self._subjects = subjects or SUBJECTS
        self._numbers: Sequence[int] = (
            range(rows) if subjects is None else chance.sample(range(rows), rows)
        )

    def tables(self, first: int, last: int) -> Iterator[pa.Table]:
        """The rows `[first, last)`, with the columns subject and data."""
        maximum = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // len(self.data)))
        for low in range(first, last, maximum):
            numbers = self._numbers[low : min(low + maximum, last)]
            subjects = [f"payloads.{number % self._subjects}" for number in numbers]
            data = pa.repeat(pa.scalar(self.data), len(subjects))
            yield pa.table({"subject": pa.array(subjects), "data": data})


def frames(
    rows: Flights | Payloads, first: int, last: int, inbox: str, ids: str | None
) -> Iterator[Publishes]:
    """
    The rows `[first, last)` as our writer puts them on the wire, mapped.

    Args:
        inbox: PubAcks go to `<inbox>.<row>`.
        ids: prefix of the `Nats-Msg-Id` of each; None for publishes without headers.
    """
    builder = MessageBuilder(_OPTIONS, id_prefix=ids)
    row = 0
    for table in rows.tables(first, last):
        for batch in table.to_batches(max_chunksize=_BLOCK_ROWS):
            yield framed(builder.build(batch), row, inbox)
            row += batch.num_rows


def pairs(rows: Flights | Payloads, first: int, last: int) -> list[tuple[str, bytes]]:
    """Subject, mapped, and payload of the rows `[first, last)`."""
    return [
        row
        for table in rows.tables(first, last)
        for row in zip(_mapped(table), table["data"].to_pylist(), strict=True)
    ]


def rows_of(rows: int, size: int = 0, subjects: int | None = None) -> Flights | Payloads:
    """Flights, or payloads of so many bytes."""
    return Payloads(size, rows, subjects) if size else Flights(rows)


def _join(*parts: str | pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(
        *(pa.scalar(part) if isinstance(part, str) else part for part in parts), pa.scalar("")
    )


def _mapped(table: pa.Table) -> list[str]:
    """The subjects of the rows, mapped."""
    column = table["subject"].combine_chunks().dictionary_encode()
    mapped: list[str] = SubjectMapping.parse(MAPPING).map_rows(column).subjects.to_pylist()
    return mapped
