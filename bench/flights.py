"""
The rows that every measurement moves: flights as JSON, on subjects with a partition token.

The repository's 100,000 flights, repeated to the wanted number. Must not know servers or Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.publish.lanes.frames import Publishes
from pyspark_jetstream.publish.lanes.lane import framed
from pyspark_jetstream.write.rows import MessageBuilder

DATA: Final = Path(__file__).parent.parent / "jobs" / "data" / "flights-100k.parquet"

PARTITIONS: Final = 2

MAPPING: Final = '{"flights.*.*": "flights.{{partition(2,1)}}.$1.$2"}'
"""As a user writes it in `subjectMapping`: the origin decides the partition."""

_ROWS: Final = parse_sink({"subjectMapping": MAPPING}).rows
_BLOCK_ROWS: Final = 10_000


class Flights:
    """`rows` flights; row i is row i modulo their number of the file."""

    def __init__(self, path: Path, rows: int) -> None:
        self.rows = rows
        table = pq.read_table(path, columns=["date", "delay", "distance", "origin", "destination"])
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

    def __repr__(self) -> str:
        return f"<Flights {self.rows} rows, {self._file.num_rows} of them different>"

    def tables(self, first: int, last: int) -> Iterator[pa.Table]:
        """The rows `[first, last)`, with the columns subject and data, in slices of the file."""
        while first < last:
            at = first % self._file.num_rows
            count = min(last - first, self._file.num_rows - at)
            yield self._file.slice(at, count)
            first += count

    def frames(self, first: int, last: int, inbox: str, ids: str | None) -> Iterator[Publishes]:
        """
        The rows `[first, last)` as our writer puts them on the wire, mapped.

        Args:
            inbox: PubAcks go to `<inbox>.<row>`.
            ids: prefix of the `Nats-Msg-Id` of each; None for publishes without headers.
        """
        builder = MessageBuilder(options=_ROWS, id_prefix=ids)
        row = 0
        for table in self.tables(first, last):
            for batch in table.to_batches(max_chunksize=_BLOCK_ROWS):
                yield framed(builder.build(batch), row, inbox)
                row += batch.num_rows

    def rows_between(self, first: int, last: int) -> list[tuple[str, bytes]]:
        """Subject, mapped, and payload of the rows `[first, last)`."""
        return [
            row
            for table in self.tables(first, last)
            for row in zip(_mapped(table), table["data"].to_pylist(), strict=True)
        ]

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


def _join(*parts: str | pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(
        *(pa.scalar(part) if isinstance(part, str) else part for part in parts), pa.scalar("")
    )


def _mapped(table: pa.Table) -> list[str]:
    """The subjects of the rows, mapped."""
    column = table["subject"].combine_chunks().dictionary_encode()
    subjects = SubjectMapping.parse(MAPPING).map_subjects(column.dictionary).subjects
    mapped: list[str] = subjects.take(column.indices).to_pylist()
    return mapped
