"""
Dead letters as a source of chunks, and the stream their rows were meant for as their target.

A row has the id it had, so within the target's duplicate window nothing is stored twice, whoever
stored it. Beyond the window it is as with any copy into a stream (`relay`): the journal notes where
the target ends before a chunk is begun, and a run that finds such a note leaves out what the target
has stored behind it. A row without an id gets one of this replay.

Which dead letters are replayed depends on nothing that changes: on themselves, on the settings and
on the subjects that the target had when it was planned. So they can be named again, and removed,
when all is done.

Order: the rows of a subject are published in the order of their dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from pyspark_jetstream.client.connection import borrow
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.outbox.deadletters import restore
from pyspark_jetstream.subjects import pattern

from .chunks import Chunk
from .faults import BackfillError, UsageError
from .journal import Entry, Manifest, Plan
from .ranges import RangeSource
from .relay import RelayTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_RESTORED: Final = (
    "subject string, headers map<string, array<string>>, msg_id string, reason string,"
    " priority string"
)
_EXPECTED: Final = "Nats-Expected-Stream"
_COUNTED_SUBJECTS: Final = 1_000
"""
Upper bound of a chunk's counted subjects, those with the most rows; the others are counted
together.
"""

_DELETES: Final = 1_000
"""Messages deleted at one time."""


class Selection:
    """The dead letters to replay, among those whose subject is one of the target's."""

    def __init__(self, reasons: Sequence[str], priorities: Sequence[str]) -> None:
        self._words = (("reason", list(reasons)), ("priority", list(priorities)))

    def of(self, rows: DataFrame, subjects: Sequence[str]) -> DataFrame:
        """The rows that dead letters of a read were, with `is_ours` and `is_wanted`."""
        restored = F.arrow_udf(restore, returnType=_RESTORED)  # type: ignore[attr-defined]
        letters = rows.select("stream", "sequence", "data", restored("headers").alias("letter"))
        letters = letters.select("stream", "sequence", "data", "letter.*")
        is_ours = F.col("subject").rlike(f"^({'|'.join(map(pattern, subjects))})$")
        is_wanted = is_ours
        for name, words in self._words:
            if words:
                is_wanted &= F.col(name).isin(words)
        return letters.select(
            "*", _true(is_ours).alias("is_ours"), _true(is_wanted).alias("is_wanted")
        )


class ReplayTarget(RelayTarget):
    """Publishes dead letters as the rows they were."""

    way_out = "In a new directory all rows are published again, those that are stored too"

    def __init__(self, selection: Selection, *arguments: Any) -> None:
        """
        Args:
            arguments: those of a `RelayTarget`.
        """
        super().__init__(*arguments)
        self._selection = selection

    def check(self, plan: Plan) -> Plan:
        """Checks the plan like any relay; adds the subjects of the target to it."""
        target = super().check(plan)
        subjects = self._info().config.get("subjects")
        if not subjects:
            raise UsageError(f"target stream '{self._stream}' has no subjects of its own")
        return target | {"subjects": list(subjects)}

    def take(self, rows: DataFrame, number: int) -> Entry:
        """Publishes what of the chunk is wanted and not in the target."""
        end = self._info().last_seq
        start = int(self._journal.note(f"begin-{number:05d}", {"sequence": end})["sequence"])
        letters = self._selection.of(rows, self._journal.plan["subjects"]).persist()
        before = letters.select("msg_id").limit(0)
        try:
            counts = letters.agg(*_measures()).first()
            wanted = self._wanted(letters)
            once = wanted.where("is_first")
            if end > start:  # by an earlier run, or somebody else publishes there
                before = self._read(start, end).select("msg_id").persist()
                self._check_kept(before.count(), start, end)
            left = once.join(before, "msg_id", "left_anti").repartition(self._writers, "subject")
            self._publish(left.sortWithinPartitions("sequence"))
            last = self._info().last_seq
            stored = before.union(self._read(end, last).select("msg_id")).distinct()
            subjects = _counted(wanted, stored)
        finally:
            letters.unpersist()
            before.unpersist()
        return {
            **(counts.asDict() if counts is not None else {}),
            "duplicates": sum(duplicates for _, duplicates in subjects.values()),
            "subjects": dict(islice(subjects.items(), _COUNTED_SUBJECTS)),
            "first": start + 1,
            "last": last,
        }

    def result(self, entries: list[Entry]) -> dict[str, Any]:
        """Replayed rows: in all, and by the subjects with the most rows."""
        sums = {
            name: sum(entry[name] for entry in entries)
            for name in ("rows", "replayed", "duplicates", "elsewhere", "no_letters")
        }
        subjects: dict[str, list[int]] = {}
        for entry in entries:
            for subject, counts in entry["subjects"].items():
                known = subjects.get(subject, (0, 0))
                subjects[subject] = [a + b for a, b in zip(known, counts, strict=True)]
        first = sorted(subjects.items(), key=lambda item: -item[1][0])[:_COUNTED_SUBJECTS]
        return {
            **sums,
            "subjects_replayed": dict(first),
            "first": min((entry["first"] for entry in entries), default=None),
            "last": max((entry["last"] for entry in entries), default=None),
        }

    def faults(self, manifest: Manifest) -> list[str]:
        """None: a row that was not found in the target was acknowledged as a duplicate."""
        return []

    def _wanted(self, letters: DataFrame) -> DataFrame:
        """Rows as they are published; `is_first` where their id is not that of one before."""
        made = F.concat(F.lit(self._prefix), "stream", F.lit("-"), "sequence")
        expected = F.create_map(F.lit(_EXPECTED), F.array(F.lit(self._stream)))
        has_own = F.map_contains_key("headers", _EXPECTED)
        headers = F.when(has_own, F.col("headers")).otherwise(F.map_concat("headers", expected))
        rows = letters.where("is_wanted").select(
            "subject",
            "data",
            headers.alias("headers"),
            F.coalesce("msg_id", made).alias("msg_id"),
            "sequence",
        )
        # A task that was tried again after the dead letters' duplicate window sheds a row twice.
        place = F.row_number().over(Window.partitionBy("msg_id").orderBy("sequence"))
        return rows.withColumn("is_first", place == 1)


def check_removable(connection: Mapping[str, str], stream: str) -> None:
    """
    Raises:
        UsageError: Messages cannot be removed from this stream.
    """
    with borrow(parse_connection(connection), at_start=True) as client:
        if JetStream(client).stream_info(stream).config.get("deny_delete"):
            raise UsageError(f"stream '{stream}' denies deletes (deny_delete); drop --delete")


def remove(
    spark: SparkSession,
    source: RangeSource,
    selection: Selection,
    manifest: Manifest,
    connection: Mapping[str, str],
) -> int:
    """
    Removes what was replayed from the stream of dead letters, by sequence; how many there were.

    Args:
        source: one without `failOnDataLoss`: an earlier run may have removed some.

    Raises:
        BackfillError: The stream was made anew, or has more of them than were replayed; then none
            is removed.
    """
    source.check(manifest)
    found: dict[str, DataFrame] = {}
    for name, stream in manifest["streams"].items():
        start, end = stream["first_sequence"] - 1, stream["last_sequence"]
        if start < end:
            rows = source.read(spark, manifest, Chunk(name, None, start, end, None))
            wanted = selection.of(rows, manifest["subjects"]).where("is_wanted")
            found[name] = wanted.select("sequence")
    count = sum(wanted.count() for wanted in found.values())
    if count > manifest["replayed"]:
        raise BackfillError(
            f"{count} dead letters are to be removed, and {manifest['replayed']} were replayed;"
            " none is removed: replay them again in a new directory"
        )
    removed = 0
    for name, wanted in found.items():
        left = wanted.toLocalIterator()
        with borrow(parse_connection(connection)) as client:
            js = JetStream(client)
            while sequences := [int(row.sequence) for row in islice(left, _DELETES)]:
                js.delete_messages(name, sequences)
                removed += len(sequences)
    return removed


def _measures() -> list[Column]:
    """Measures of a chunk, selected rows and others."""
    is_letter = F.col("subject").isNotNull()
    return [
        F.count(F.lit(1)).alias("rows"),
        F.count_if("is_wanted").alias("replayed"),
        F.count_if(is_letter & ~F.col("is_ours")).alias("elsewhere"),
        F.count_if(~is_letter).alias("no_letters"),
    ]


def _counted(wanted: DataFrame, stored: DataFrame) -> dict[str, list[int]]:
    """Rows and duplicates of each subject, those with the most rows first."""
    ids = stored.where("msg_id is not null").withColumn("is_stored", F.lit(True))
    kept = F.count_if(F.col("is_first") & F.col("is_stored"))
    groups = wanted.join(ids, "msg_id", "left").groupBy("subject")
    counted = groups.agg(F.count(F.lit(1)).alias("rows"), kept.alias("kept"))
    counts = {row.subject: [row.rows, row.rows - row.kept] for row in counted.collect()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1][0], item[0])))


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
