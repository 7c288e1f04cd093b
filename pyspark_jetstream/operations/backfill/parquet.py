"""
Parquet files as a target: a chunk is written aside, measured, moved into place, and then recorded.

    <output>/[day=2026-01-31/…]chunk-00017-003-1f2e3d4c.parquet

The name holds the chunk, the file's number in it and the run that wrote it. What a killed run
moved without an entry in the journal is removed at the end, before the manifest is written; until
then readers see it.

Every file is measured by reading it back: rows, first and last sequence, and a checksum over all
columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from . import checksums
from .faults import StorageError, UsageError
from .journal import Entry, Journal, Manifest, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS: Final = re.compile(r"(?:.*/)?chunk-\d{5,}-\d{3,}-[0-9a-f]{8}\.parquet")
_TOKEN: Final = re.compile(r"token:([1-9][0-9]?)")
_FIELDS: Final = ("rows", "first", "last", "checksum", "bytes")
"""Measures of a file."""


class Partitioning(NamedTuple):
    """The directories of the output, by the words of `--partition-by`."""

    columns: tuple[str, ...]
    words: tuple[str, ...]
    schema: StructType
    """Schema of the rows with all columns that partition them."""

    @classmethod
    def parse(cls, words: Sequence[str], rows: StructType) -> Partitioning:
        """
        Args:
            words: `day`, `token:N`, or one of the columns of the rows.

        Raises:
            UsageError: Another word, or one twice.
        """
        schema = StructType(list(rows.fields))
        columns = []
        for word in words:
            token = _TOKEN.fullmatch(word)
            if word == "day":
                schema.add(StructField("day", DateType()))
                columns.append("day")
            elif token is not None:
                columns.append(f"token{token[1]}")
                schema.add(StructField(columns[-1], StringType()))
            elif word in ("partition", "stream", "operation") and word in rows.names:
                columns.append(word)
            else:
                known = [n for n in ("partition", "stream", "operation") if n in rows.names]
                raise UsageError(
                    f"--partition-by: expected day, token:N (a token of the subject or key, from"
                    f" 1), {' or '.join(known)}, got '{word}'"
                )
        if len(set(columns)) < len(columns):
            raise UsageError(f"--partition-by: '{columns[-1]}' is there twice")
        return cls(tuple(columns), tuple(words), schema)

    def added(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns they lack."""
        name = "subject" if "subject" in rows.columns else "key"
        for word, column in zip(self.words, self.columns, strict=True):
            if word == "day":
                rows = rows.withColumn(column, F.to_date("timestamp"))
            elif column not in rows.columns:
                token = F.get(F.split(name, r"\."), int(word.partition(":")[2]) - 1)
                rows = rows.withColumn(column, token)
        return rows


class ParquetTarget:
    """Parquet files below the journal's directory."""

    def __init__(
        self, spark: SparkSession, journal: Journal, partitioning: Partitioning, order: str
    ) -> None:
        """
        Args:
            order: the column that orders the rows, `sequence` or `revision`.
        """
        self._spark = spark
        self._journal = journal
        self._storage = journal.storage
        self._partitioning = partitioning
        self._order = order

    def check(self, plan: Plan) -> Plan:
        """Parquet files take every plan."""
        return {}

    def take(self, rows: DataFrame, number: int) -> Entry:
        """Writes the chunk's files and moves them into place."""
        storage, run = self._storage, self._journal.run
        by = self._partitioning.columns
        aside = self._journal.scratch(f"chunk-{number:05d}")
        rows = self._partitioning.added(rows)
        if by:  # Spark would sort by them alone, and mix up the sequences
            rows = rows.sortWithinPartitions(*by, self._order)
        rows.write.partitionBy(*by).parquet(storage.path(aside))
        measured = self._measured(aside)
        entry: Entry = {"rows": 0, "files": []}
        for place, (name, file) in enumerate(sorted(measured.items())):
            directory = name[len(aside) + 1 :].rpartition("/")[0]
            path = f"chunk-{number:05d}-{place:03d}-{run}.parquet"
            path = f"{directory}/{path}" if directory else path
            try:
                storage.move(name, path)
            except StorageError:  # as when another run has ended, and removed what is aside
                self.undo(entry)
                raise
            entry["files"].append({"path": path, **file})
            entry["rows"] += file["rows"]
        storage.delete(aside)
        return entry

    def undo(self, entry: Entry) -> None:
        """Removes the chunk's files."""
        for file in entry["files"]:
            self._storage.delete(file["path"])

    def result(self, entries: list[Entry]) -> dict[str, Any]:
        """All files, once those of killed runs are removed."""
        files = [file for entry in entries for file in entry["files"]]
        for path in self._strangers({file["path"] for file in files}):
            self._storage.delete(path)
        return {
            "rows": sum(file["rows"] for file in files),
            "bytes": sum(file["bytes"] for file in files),
            "checksum": checksums.total(file["checksum"] for file in files),
            "files": files,
        }

    def faults(self, manifest: Manifest) -> list[str]:
        """Files that are missing, too many, or not what the manifest says."""
        measured = self._measured("")
        faults = []
        for file in manifest["files"]:
            stored = measured.pop(file["path"], None)
            if stored is None:
                faults.append(f"{file['path']} is missing, or holds no rows")
                continue
            faults += [
                f"{file['path']} has {name} {stored[name]}, not {file[name]}"
                for name in _FIELDS
                if stored[name] != file[name]
            ]
        return faults + [f"{path} is none of this backfill's" for path in sorted(measured)]

    def _measured(self, directory: str) -> dict[str, dict[str, Any]]:
        """
        Measures of the Parquet files below a directory, by path; files without rows are left out.
        """
        sizes = {
            path: size
            for path, size in self._storage.files(directory).items()
            if path.endswith(".parquet") and not _hidden(path[len(directory) :])
        }
        if not sizes:
            return {}
        schema = self._partitioning.schema
        rows = self._spark.read.schema(schema).parquet(self._storage.path(directory))
        files = rows.groupBy(F.col("_metadata.file_path").alias("file")).agg(
            F.count(F.lit(1)).alias("rows"),
            F.min(self._order).alias("first"),
            F.max(self._order).alias("last"),
            checksums.row_sum(schema, schema.names).alias("checksum"),
        )
        measured = {}
        for row in files.collect():
            name = self._relative(row["file"])
            measured[name] = {
                "rows": row["rows"],
                "first": row["first"],
                "last": row["last"],
                "checksum": checksums.text(int(row["checksum"])),
                "bytes": sizes[name],
            }
        return measured

    def _relative(self, uri: str) -> str:
        """A file's path below the root, of the URI by which Spark names it."""
        # Hadoop writes `file:/x`, Spark sometimes `file:///x`.
        root = self._storage.root.partition(":")[2]
        return unquote(uri).partition(f"{root}/")[2]

    def _strangers(self, known: set[str]) -> list[str]:
        """Files that a run of this backfill moved into place but did not record."""
        found = self._storage.files().keys() - known
        return [path for path in found if not _hidden(path) and _OURS.fullmatch(path)]


def _hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.strip("/").split("/")[:-1])
