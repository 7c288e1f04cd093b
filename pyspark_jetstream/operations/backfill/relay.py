"""
Another stream as a target: each message of a chunk exactly once, whatever the duplicate window.

A message's id in the target is `<backfill>-<source stream>-<sequence>`, the same in every run, and
of this backfill alone. Before a chunk is begun, the journal notes where the target ends. A run that
finds such a note and no entry reads what the target has stored behind it, and publishes what is not
there. So it does not matter what the duplicate window or the sink remembers, as long as

* the target keeps what it stores meanwhile: one that drops messages by design (per subject, as a
  work queue, by interest) is refused, and one that has dropped some behind the note is an error;
* nobody publishes for a killed run any more. Spark's executors end when their driver does; what
  they still send in that moment, the duplicate window drops.

Order: with one writer the target has the messages of a stream in their order. With more, each
subject is written by one of them, so it keeps its order. Either holds while no publish has to be
sent again.

Headers are copied, but for those that are commands or ids of the first publish (`_LEFT_OUT`). Each
message says which stream it is for (`Nats-Expected-Stream`), so a subject that belongs to another
stream is refused by the server rather than stored there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from pyspark_jetstream.client.connection import borrow
from pyspark_jetstream.client.options import parse_connection

from ...client.info import StreamInfo
from ...client.jetstream import JetStream
from . import checksums
from .faults import BackfillError, UsageError
from .journal import Entry, Journal, Manifest, Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ID: Final = "nats-msg-id"
_LEFT_OUT: Final = (_ID, "nats-rollup")
_EXPECTED: Final = "nats-expected-"


class RelayTarget:
    """Publishes chunks into a stream."""

    way_out = "Purge the copy and begin in a new directory"
    """Advice where it cannot be told what was stored."""

    def __init__(
        self,
        spark: SparkSession,
        journal: Journal,
        stream: str,
        options: Mapping[str, str],
        connection: Mapping[str, str],
        writers: int,
    ) -> None:
        """
        Args:
            options: those of the write.
            connection: those of them that say how to reach the target.
        """
        self._spark = spark
        self._journal = journal
        self._stream = stream
        self._options = dict(options)
        self._connection = dict(connection)
        self._writers = writers

    def check(self, plan: Plan) -> Plan:
        """
        The target, for the plan.

        Raises:
            UsageError: The target cannot be copied into exactly once.
            BackfillError: It was made anew since it was planned.
            StreamNotFoundError: It is not there.
        """
        info = self._info(at_start=True)
        name = f"target stream '{self._stream}'"
        if plan["streams"].get(self._stream, {}).get("created") == info.created:
            raise UsageError(f"{name} is the one to read; its messages would be doubled")
        if not info.allow_direct:
            raise UsageError(
                f"{name} has direct get off, so what it stores cannot be read again; set"
                f" allow_direct on it (`nats stream edit {self._stream} --allow-direct`)"
            )
        # A limit per subject that refuses what comes new takes nothing away.
        replaces = not info.config.get("discard_new_per_subject")
        limited = int(info.config.get("max_msgs_per_subject") or 0) > 0 and replaces
        if info.retention != "limits" or limited:
            raise UsageError(
                f"{name} does not keep all it stores (retention {info.retention}, max_msgs_per_"
                f"subject {info.config.get('max_msgs_per_subject')}), so a run that is killed"
                " could not be taken up; give one with limits retention and no limit per subject"
            )
        target = {"stream": self._stream, "created": info.created}
        if plan.get("target", target) != target:
            raise BackfillError(
                f"{name} was made anew at {info.created}, after this backfill was planned: what was"
                " copied is gone; begin again in a new directory"
            )
        return {"target": target}

    def take(self, rows: DataFrame, number: int) -> Entry:
        """Publishes what of the chunk is not in the target."""
        end = self._info().last_seq
        start = int(self._journal.note(f"begin-{number:05d}", {"sequence": end})["sequence"])
        messages = self._messages(rows)
        before: dict[str, Any] = {"rows": 0, "checksum": 0}
        if end > start:  # by an earlier run, or somebody else publishes there
            stored = self._stored(start, end)
            before = self._measured(stored, start, end)
            messages = messages.join(stored.select("msg_id"), "msg_id", "left_anti")
        if end > start or self._writers > 1:
            messages = messages.repartition(self._writers, "subject")
            messages = messages.sortWithinPartitions("sequence")
        else:
            messages = messages.coalesce(1)  # the tasks of a chunk one by one, in their order
        published = Observation()
        self._publish(messages.observe(published, *_measures(messages)))
        now = published.get
        return {
            "rows": before["rows"] + now["rows"],
            "checksum": checksums.text(int(before["checksum"]) + int(now["checksum"])),
            "first": start + 1,
            "last": self._info().last_seq,
        }

    def undo(self, entry: Entry) -> None:
        """Nothing: what is published stays, and the next run finds it."""

    def result(self, entries: list[Entry]) -> dict[str, Any]:
        """Copied rows, and the sequences of the target between which they lie."""
        return {
            "rows": sum(entry["rows"] for entry in entries),
            "checksum": checksums.total(entry["checksum"] for entry in entries),
            "first": min((entry["first"] for entry in entries), default=None),
            "last": max((entry["last"] for entry in entries), default=None),
        }

    def faults(self, manifest: Manifest) -> list[str]:
        """Whether the target holds every message once, with the payloads that were read."""
        first, last = manifest["first"], manifest["last"]
        if first is None or last < first:
            return []
        stored = self._stored(first - 1, last)
        (row,) = stored.agg(*_measures(stored), F.countDistinct("msg_id").alias("ids")).collect()
        faults = []
        if row["rows"] != row["ids"]:
            faults.append(f"it holds {row['rows'] - row['ids']} messages more than once")
        if row["ids"] != manifest["rows"]:
            faults.append(f"it holds {row['ids']} of {manifest['rows']} messages")
        checksum = checksums.text(int(row["checksum"]))
        if not faults and checksum != manifest["checksum"]:
            faults.append(f"its payloads have checksum {checksum}, not {manifest['checksum']}")
        return [f"stream '{self._stream}', sequences {first} to {last}: {f}" for f in faults]

    # ── messages ─────────────────────────────────────────────────────────────────────────────

    @property
    def _prefix(self) -> str:
        """Prefix of this backfill's ids."""
        return f"{self._journal.plan['id']}-"

    def _messages(self, rows: DataFrame) -> DataFrame:
        """Rows as they are published."""
        kept = F.map_filter(F.col("headers"), lambda name, _: ~_left_out(F.lower(name)))
        expected = F.create_map(F.lit("Nats-Expected-Stream"), F.array(F.lit(self._stream)))
        return rows.select(
            "subject",
            "data",
            F.coalesce(F.map_concat(kept, expected), expected).alias("headers"),
            F.concat(F.lit(self._prefix), "stream", F.lit("-"), "sequence").alias("msg_id"),
            "sequence",
        )

    def _publish(self, messages: DataFrame) -> None:
        self._journal.check_owner()
        (
            messages.select("subject", "data", "headers", "msg_id")
            .write.format("jetstream")
            .options(**self._options)
            .mode("append")
            .save()
        )

    def _stored(self, start: int, end: int) -> DataFrame:
        """Ids and payloads of the target in `(start, end]`; others' messages have null as id."""
        ours = F.col("msg_id").startswith(self._prefix)
        stored = self._read(start, end)
        return stored.select(F.when(ours, F.col("msg_id")).alias("msg_id"), "data")

    def _read(self, start: int, end: int) -> DataFrame:
        """Ids, null for none, and payloads of the target in `(start, end]`."""
        options = {
            **self._connection,
            "stream": self._stream,
            "subject": ">",  # as one, whatever its partitions
            "includeHeaders": "true",
            "startingOffsets": json.dumps({"0": start + 1}),
            "endingOffsets": json.dumps({"0": end}),
            "failOnDataLoss": "false",  # what is missing is said here
        }
        rows = self._spark.read.format("jetstream").options(**options).load()
        id = F.get(F.element_at("headers", "Nats-Msg-Id"), 0)
        return rows.select(id.alias("msg_id"), "data")

    def _measured(self, stored: DataFrame, start: int, end: int) -> dict[str, Any]:
        """
        The measures of what an earlier run has stored in `(start, end]`.

        Raises:
            BackfillError: Messages left it since, so it cannot be told what was there.
        """
        (row,) = stored.agg(*_measures(stored), F.count(F.lit(1)).alias("all")).collect()
        self._check_kept(row["all"], start, end)
        return row.asDict()

    def _check_kept(self, count: int, start: int, end: int) -> None:
        """
        Raises:
            BackfillError: The target has fewer messages in `(start, end]` than it had stored.
        """
        left = end - start - count
        if left:
            raise BackfillError(
                f"stream '{self._stream}' has dropped {left} of its messages in {start + 1} to"
                f" {end}, which an interrupted run of this backfill may have stored; it cannot be"
                f" told what is missing. {self.way_out}"
            )

    def _info(self, at_start: bool = False) -> StreamInfo:
        """The target, by its leader."""
        with borrow(parse_connection(self._connection), at_start) as client:
            return JetStream(client).stream_info(self._stream)


def _measures(messages: DataFrame) -> list[Column]:
    """Rows that have an id, and their checksum."""
    ours = F.col("msg_id").isNotNull()
    return [
        F.count("msg_id").alias("rows"),
        checksums.row_sum(messages.schema, ("msg_id", "data"), ours).alias("checksum"),
    ]


def _left_out(name: Column) -> Column:
    return name.isin(*_LEFT_OUT) | name.startswith(_EXPECTED)
