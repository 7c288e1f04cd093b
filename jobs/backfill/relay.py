"""
Another stream as a target: each message of a chunk exactly once, whatever the duplicate window.

A message's id in the target is `<source stream>-<sequence>`, the same in every run. Before a chunk
is begun, the journal notes where the target ends. A run that finds such a note and no entry reads
what the target has stored behind it, and publishes what is not there (`Nats-Msg-Id`). So neither
the window nor what the sink remembers matters, as long as

* the target keeps what it stores meanwhile: one that drops messages by design (per subject, as a
  work queue, by interest) is refused, and one that has dropped some behind the note is an error;
* nobody publishes for a killed run any more. Spark's executors end when their driver does; what
  they still send in that moment, the duplicate window drops.

Order: with one writer the target has the messages in the order of the source. With more, each
subject is written by one of them, so it keeps its order. Either holds while no publish has to be
sent again.

Headers are copied, but for those that are commands or ids of the first publish (`_LEFT_OUT`). Each
message says which stream it is for (`Nats-Expected-Stream`), so a subject that belongs to another
stream is refused by the server rather than stored there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from pyspark_jetstream.client import borrow
from pyspark_jetstream.jetstream import JetStream
from pyspark_jetstream.options import parse_connection

from . import checksums
from .faults import BackfillError, UsageError
from .journal import Entry, Journal, Manifest, Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["RelayTarget"]

_ID: Final = "nats-msg-id"
_LEFT_OUT: Final = (_ID, "nats-rollup")
_EXPECTED: Final = "nats-expected-"


class RelayTarget:
    """Publishes chunks into a stream."""

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
        self._options = {"exactlyOnce": "true", **options}
        self._connection = dict(connection)
        self._writers = writers

    def check(self, plan: Plan) -> None:
        """
        Raises:
            UsageError: The target cannot be copied into exactly once.
            StreamNotFoundError: It is not there.
        """
        with borrow(parse_connection(self._connection)) as client:
            info = JetStream(client).stream_info(self._stream)
        name = f"target stream '{self._stream}'"
        if plan["streams"].get(self._stream, {}).get("created") == info.created:
            raise UsageError(f"{name} is the one to read; its messages would be doubled")
        if not info.allow_direct:
            raise UsageError(
                f"{name} has direct get off, so what it stores cannot be read again; set"
                f" allow_direct on it (`nats stream edit {self._stream} --allow-direct`)"
            )
        if info.retention != "limits" or int(info.config.get("max_msgs_per_subject") or 0) > 0:
            raise UsageError(
                f"{name} does not keep all it stores (retention {info.retention}, max_msgs_per_"
                f"subject {info.config.get('max_msgs_per_subject')}), so a run that is killed"
                " could not be taken up; give one with limits retention and no limit per subject"
            )

    def take(self, rows: DataFrame, number: int) -> Entry:
        """Publishes what of the chunk is not in the target."""
        end = self._end()
        start = int(self._journal.note(f"begin-{number:05d}", {"sequence": end})["sequence"])
        messages = self._messages(rows)
        measures = self._measures(messages)
        begun = end > start
        seen: Mapping[str, Any] = {}
        if begun:  # by an earlier run, or somebody else publishes there
            seen = messages.agg(*measures).first().asDict()  # type: ignore[union-attr]
            messages = messages.join(self._stored(start, end), "msg_id", "left_anti")
        if begun or self._writers > 1:
            messages = messages.repartition(self._writers, "subject")
            messages = messages.sortWithinPartitions("sequence")
        else:
            messages = messages.coalesce(1)  # the tasks of a chunk one by one, in their order
        published = Observation()
        self._journal.check_owner()
        (
            messages.observe(published, *measures)
            .select("subject", "data", "headers", "msg_id")
            .write.format("jetstream")
            .options(**self._options)
            .mode("append")
            .save()
        )
        written = published.get
        seen = seen or written
        return {
            "rows": seen["rows"],
            "published": written["rows"],
            "checksum": checksums.text(int(seen["checksum"])),
            "target": [start + 1, self._end()],
        }

    def result(self, entries: list[Entry]) -> dict[str, Any]:
        """What was copied, and between which sequences of the target it lies."""
        spans = [entry["target"] for entry in entries]
        return {
            "rows": sum(entry["rows"] for entry in entries),
            "checksum": checksums.total(entry["checksum"] for entry in entries),
            "target": [min(first for first, _ in spans), max(last for _, last in spans)]
            if spans
            else None,
        }

    def faults(self, manifest: Manifest) -> list[str]:
        """Whether the target holds every message once, with the payloads that were read."""
        if manifest["target"] is None:
            return []
        first, last = manifest["target"]
        names = "|".join(map(re.escape, manifest["streams"]))
        stored = self._target(first - 1, last).where(F.col("msg_id").rlike(f"^({names})-[0-9]+$"))
        found = stored.agg(*self._measures(stored), F.countDistinct("msg_id").alias("ids")).first()
        if found is None:
            raise BackfillError("an aggregation without a row; report this")
        faults = []
        if found["rows"] != found["ids"]:
            faults.append(f"it holds {found['rows'] - found['ids']} messages more than once")
        if found["ids"] != manifest["rows"]:
            faults.append(f"it holds {found['ids']} of {manifest['rows']} messages")
        checksum = checksums.text(int(found["checksum"]))
        if not faults and checksum != manifest["checksum"]:
            faults.append(f"its payloads have checksum {checksum}, not {manifest['checksum']}")
        return [f"stream '{self._stream}', sequences {first} to {last}: {f}" for f in faults]

    # ── messages ─────────────────────────────────────────────────────────────────────────────

    def _messages(self, rows: DataFrame) -> DataFrame:
        """Rows as they are published."""
        kept = F.map_filter(F.col("headers"), lambda name, _: ~_left_out(F.lower(name)))
        expected = F.create_map(F.lit("Nats-Expected-Stream"), F.array(F.lit(self._stream)))
        return rows.select(
            "subject",
            "data",
            F.coalesce(F.map_concat(kept, expected), expected).alias("headers"),
            F.concat("stream", F.lit("-"), "sequence").alias("msg_id"),
            "sequence",
        )

    def _stored(self, start: int, end: int) -> DataFrame:
        """
        The ids that the target has in `(start, end]`.

        Raises:
            BackfillError: Messages left it since, so it cannot be told what was there.
        """
        stored = self._target(start, end)
        left = end - start - stored.count()
        if left:
            raise BackfillError(
                f"stream '{self._stream}' has dropped {left} of its messages in {start + 1} to"
                f" {end}, which an interrupted run of this backfill may have stored; it cannot be"
                " told what is missing. Purge the copy and begin in a new directory"
            )
        return stored.select("msg_id").where(F.col("msg_id").isNotNull())

    def _target(self, start: int, end: int) -> DataFrame:
        """Ids and payloads of the target in `(start, end]`."""
        options = {
            **self._connection,
            "stream": self._stream,
            "subject": ">",  # as one, whatever its partitions
            "includeHeaders": "true",
            "startingOffsets": json.dumps({"0": start + 1}),
            "endingOffsets": json.dumps({"0": end}),
        }
        rows = self._spark.read.format("jetstream").options(**options).load()
        ids = F.get(F.element_at("headers", "Nats-Msg-Id"), 0)
        return rows.select(ids.alias("msg_id"), "data")

    def _measures(self, messages: DataFrame) -> list[Column]:
        return [
            F.count(F.lit(1)).alias("rows"),
            checksums.row_sum(messages.schema, ("msg_id", "data")).alias("checksum"),
        ]

    def _end(self) -> int:
        """The target's last sequence, by its leader."""
        with borrow(parse_connection(self._connection)) as client:
            return JetStream(client).stream_info(self._stream).last_seq


def _left_out(name: Column) -> Column:
    return name.isin(*_LEFT_OUT) | name.startswith(_EXPECTED)
