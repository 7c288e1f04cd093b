"""
The last message of each subject, of any number of subjects: what memory does not hold lies in
temporary files.

Tables are held (`Runs`) until they have 8 MiB. Then they are made one, with each key once, and if
that is still more than half of it, it is written: a run, sorted by the key. At the end all runs are
read side by side, some thousand rows of each at a time. So memory is bounded by the number of runs,
and that by `_MOST_RUNS`, beyond which they are made one.

The files have no names, so nothing is left of them when the process ends. They lie where Spark
spills (`SPARK_LOCAL_DIRS`), else where `tempfile` says (`TMPDIR`).
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Final, Literal

import pyarrow as pa

from ..subjects import raw

_HELD_BYTES: Final = 8 << 20
"""Bytes of tables that are held before they are made one."""

_READ_ROWS: Final = 8_192
"""Rows of a run that are in memory while all are read."""

_MOST_RUNS: Final = 64

_LAST: Final = pa.schema([("subject", pa.binary()), ("sequence", pa.int64())])
"""Columns of a subject: last sequence at the pin."""

_FOUND: Final = pa.schema([*_LAST, ("later", pa.int64()), ("purged", pa.bool_())])
"""
Columns of one that may have messages beyond: the sequence or null, how many, if one is a purge.
"""


class Runs:
    """
    Rows of one schema by the key, each key once.

    Args:
        whole: makes of a table one that has each key once. If rows are to come by ascending key
            also while memory holds them all, it sorts them.
    """

    def __init__(self, key: str, whole: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> None:
        self._key = key
        self._whole = whole
        self.schema = schema
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._files: list[IO[bytes]] = []

    def __repr__(self) -> str:
        return f"<Runs by {self._key}: {self._bytes} bytes held, {len(self._files)} written>"

    def __del__(self) -> None:
        for file in self._files:
            file.close()

    def add(self, table: pa.Table) -> None:
        """Takes rows in any order."""
        self._held.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _HELD_BYTES:
            whole = self._settled()
            if whole.nbytes > _HELD_BYTES // 2:
                self._held, self._bytes = [], 0
                self._write(iter([whole.sort_by(self._key)]))
                if len(self._files) > _MOST_RUNS:
                    files, self._files = self._files, []
                    self._write(self._merged([*map(_batches, files)]))
                    for file in files:
                        file.close()

    def __iter__(self) -> Iterator[pa.Table]:
        """All rows, some at a time; as often as you like, and not while adding."""
        whole = self._settled()
        if not self._files:
            return iter([whole])
        whole = whole.sort_by(self._key)
        held = (whole.slice(low, _READ_ROWS) for low in range(0, whole.num_rows, _READ_ROWS))
        return self._merged([*map(_batches, self._files), held])

    def _settled(self) -> pa.Table:
        """Rows that are held, as one table."""
        if len(self._held) != 1 or self._bytes:
            whole = self._whole(pa.concat_tables([self.schema.empty_table(), *self._held]))
            self._held, self._bytes = [whole.combine_chunks()], 0
        return self._held[0]

    def _write(self, tables: Iterator[pa.Table]) -> None:
        directory = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        place = directory if os.path.isdir(directory) else tempfile.gettempdir()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        try:
            file = tempfile.TemporaryFile(prefix="jetstream-", dir=place)
            self._files.append(file)
            with pa.ipc.new_stream(file, self.schema, options=options) as writer:
                for table in tables:
                    writer.write_table(table, max_chunksize=_READ_ROWS)
            file.flush()
        except OSError as error:
            raise OSError(
                error.errno,
                f"more subjects than memory is to hold are kept in files in {place}, and that"
                f" failed ({error.strerror or error}); make room there, or set TMPDIR or"
                " spark.local.dir to another place",
            ) from error

    def _merged(self, runs: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
        """Rows of sorted runs by ascending key; rows of one key are together in one table."""
        heads = [(head, run) for run in runs if (head := next(run, None)) is not None]
        while heads:
            upto = min(head[self._key][-1].as_py() for head, _ in heads)
            parts, left = [], []
            for head, run in heads:
                keys = head[self._key].chunk(0)
                cut = bisect_right(keys, upto, key=lambda value: value.as_py())
                parts.append(head[:cut])
                rest = head[cut:] if cut < len(keys) else next(run, None)
                if rest is not None:
                    left.append((rest, run))
            heads = left
            yield self._whole(pa.concat_tables(parts)).sort_by(self._key)


def _batches(file: IO[bytes]) -> Iterator[pa.Table]:
    """Tables that were written into a file."""
    file.seek(0)
    with pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def by_sequence(schema: pa.Schema) -> Runs:
    """Rows by their sequences, of which none is there twice."""
    return Runs("sequence", lambda table: table.sort_by("sequence"), schema)


class LastOfEach:
    """
    Last message of each subject, of messages that come in any order.

    What lies beyond the pin has columns of its own only from the first such message on: most
    snapshots have none.

    Args:
        match: which subjects count; all without it.
        later: what is made of several counts of a subject's later messages.
    """

    def __init__(
        self,
        match: Callable[[str], bool] | None = None,
        later: Literal["sum", "max"] = "sum",
    ) -> None:
        self.messages = 0
        """Messages at or below the pin that were taken."""
        self._match = match
        self._of_columns = {"sequence": "max", "later": later, "purged": "any"}
        self._runs = Runs("subject", self._last, _LAST)

    def __repr__(self) -> str:
        return f"<LastOfEach of {self.messages} messages>"

    def __iter__(self) -> Iterator[pa.Table]:
        """
        All subjects, each once, some at a time: `subject` BINARY, `sequence` (null where nothing is
        at or below the pin), `later` messages beyond, and whether one of those is a purge or a
        marker, `purged`.
        """
        return map(_found, self._runs)

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes messages at or below the pin: the columns `subject`, BINARY, and `sequence`."""
        self.messages += batch.num_rows
        self._put(pa.Table.from_arrays([batch["subject"], batch["sequence"]], schema=_LAST))

    def put(self, last: Mapping[str, int]) -> None:
        """Takes sequences by subject."""
        names = pa.array(last, pa.string()).cast(pa.binary())
        columns = [names, pa.array(last.values(), pa.int64())]
        self.add(pa.RecordBatch.from_arrays(columns, names=["subject", "sequence"]))

    def put_later(self, subjects: list[bytes], later: list[int], purged: list[bool]) -> None:
        """Takes subjects that have so many messages beyond the pin."""
        if self._runs.schema == _LAST:
            until_now, self._runs = self._runs, Runs("subject", self._last, _FOUND)
            for table in map(_found, until_now):
                self._runs.add(table)
        columns = [pa.array(subjects, pa.binary()), pa.nulls(len(later), pa.int64())]
        columns += [pa.array(later, pa.int64()), pa.array(purged, pa.bool_())]
        self._put(pa.Table.from_arrays(columns, schema=_FOUND))

    def _put(self, table: pa.Table) -> None:
        if self._match is not None:
            match, names = self._match, table["subject"].combine_chunks().dictionary_encode()
            wanted = [match(raw(name)) for name in names.dictionary.to_pylist()]
            table = table.filter(pa.array(wanted, pa.bool_()).take(names.indices))
        self._runs.add(table if self._runs.schema == _LAST else _found(table))

    def _last(self, table: pa.Table) -> pa.Table:
        of = [(name, self._of_columns[name]) for name in table.column_names[1:]]
        found = table.group_by("subject").aggregate(of)
        columns = [found["subject"], *(found["_".join(each)] for each in of)]
        return pa.table(columns, schema=table.schema)


def _found(table: pa.Table) -> pa.Table:
    """The same with the columns of what lies beyond, where it has none."""
    if table.schema == _LAST:
        rows = table.num_rows
        for column, none in zip(list(_FOUND)[2:], (0, False), strict=True):
            table = table.append_column(column, pa.repeat(pa.scalar(none, column.type), rows))
    return table
