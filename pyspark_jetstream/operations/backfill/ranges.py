"""
A range of sequences or of time as a source: resolved once, then read chunk by chunk.

What `earliest`, `latest` and moments mean is asked of the server once and kept as sequences in the
plan. Chunks are read by `spark.read.format("jetstream")`, each of its sequences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_jetstream.client.connection import Client, borrow
from pyspark_jetstream.client.info import Mark, StreamInfo
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.marks import replaced
from pyspark_jetstream.fetch.assumptions import stream_changes
from pyspark_jetstream.fetch.layout import Slice
from pyspark_jetstream.fetch.options import Several
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.options import RangeOptions
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.subjects import REST
from pyspark_jetstream.values import EARLIEST, LATEST, Starting

from .chunks import Chunk, chunked, offsets
from .faults import BackfillError, UsageError
from .journal import Journal, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BOUNDS = ("startingoffsets", "startingtimestamp", "endingoffsets", "endingtimestamp")
_SPLITS = ("minpartitions", "maxrecordsperpartition")
_STREAMS = ("stream", "streampattern")


def bounds(first: str | None, last: str | None) -> dict[str, str]:
    """
    The options that two words stand for: a sequence, a moment, or offsets by partition as JSON.

    A sequence, which the options want by partition, stays as it is for `RangeSource` to resolve.
    """
    named = {}
    for word, offset, moment in (
        (first, "startingOffsets", "startingTimestamp"),
        (last, "endingOffsets", "endingTimestamp"),
    ):
        if word is not None:
            plain = word.strip()
            is_offset = plain.isdigit() or plain[:1] == "{" or plain.lower() in (EARLIEST, LATEST)
            named[offset if is_offset else moment] = plain
    return named


class RangeSource:
    """The messages between two bounds, in the columns of a read."""

    def __init__(self, options: Mapping[str, str], chunk_messages: int) -> None:
        """
        Args:
            options: those of `spark.read`; offsets may be one sequence for all partitions.

        Raises:
            OptionError: A mistake in them.
            UsageError: They describe no range.
        """
        self._chunk_messages = chunk_messages
        self._options = dict(options)
        self._sequences: dict[str, int] = {}
        for name in list(self._options):
            if name.lower() in ("startingoffsets", "endingoffsets"):
                if self._options[name].isdigit():
                    self._sequences[name.lower()] = int(self._options.pop(name))
        parsed = parse_read(self._options)
        if not isinstance(parsed, RangeOptions):
            raise UsageError(
                "these options read no range of a stream; use `pyspark-jetstream backfill snapshot`"
            )
        if parsed.several is not None and parsed.partitions is not None:
            raise UsageError(
                "a backfill of several streams has each as one partition: leave partitions and"
                " partitionSubject out, and write out the names"
            )
        self._parsed = parsed
        self.fail_on_data_loss = parsed.fail_on_data_loss

    def plan(self, spark: SparkSession, journal: Journal) -> Plan:
        """Resolves both bounds and cuts what is between them."""
        with borrow(self._parsed.connection, at_start=True) as client:
            survey = Survey(client, self._parsed)
            infos = survey.streams()
            layout = [[partition.stream, partition.filter] for partition in survey.layout]
            streams = [partition.stream for partition in survey.layout]
            parsed = self._parsed
            if "startingoffsets" in self._sequences:
                parsed = replace(parsed, starting=self._everywhere("startingoffsets", streams))
            if "endingoffsets" in self._sequences:
                parsed = replace(parsed, ending=self._everywhere("endingoffsets", streams))
            starts = survey.positions(parsed.starting, infos, "startingOffsets")
            ends = survey.positions(parsed.ending, infos, "endingOffsets", ending=True)
        first = {p: start + 1 for p, start in enumerate(starts)}
        last = dict(enumerate(ends))
        pinned = replace(
            parsed,
            starting=Starting(EARLIEST, first),
            ending=Starting(LATEST, last),
            min_partitions=None,
            max_records_per_partition=self._chunk_messages,
        )
        if parsed.several is not None:  # and none that come to a pattern meanwhile
            pinned = replace(
                pinned,
                starting=Starting(streams={s: {0: first[p]} for p, s in enumerate(streams)}),
                ending=Starting(LATEST, streams={s: {0: last[p]} for p, s in enumerate(streams)}),
                several=Several(tuple(streams)),
            )
        reads: list[Slice] = []
        for task in JetStreamRangeReader(pinned).partitions():
            assert isinstance(task.work, Slice)
            reads.append(task.work)
        spans: dict[str, list[int]] = {}
        for stream, start, end in zip(streams, starts, ends, strict=True):
            low, high = spans.setdefault(stream, [start, end])
            spans[stream] = [min(low, start), max(high, end)]
        return {
            "streams": {
                name: {
                    **marked(infos[name]),
                    "first_sequence": start + 1,
                    "last_sequence": end,
                    "time": infos[name].now.isoformat(),
                }
                for name, (start, end) in spans.items()
            },
            "partitions": layout,
            "chunks": [chunk._asdict() for chunk in chunked(reads, self._chunk_messages)],
        }

    def check(self, plan: Plan) -> None:
        """
        Raises:
            BackfillError: A stream was made anew since it was planned, or has other partitions.
        """
        with borrow(self._parsed.connection, at_start=True) as client:
            check_streams(client, plan)
            if self._parsed.several is not None:
                return  # its streams are those of the plan
            layout = [[p.stream, p.filter] for p in Survey(client, self._parsed).layout]
        if layout != plan["partitions"]:
            raise BackfillError(
                f"stream '{self._parsed.stream}' has other partitions than when this backfill was"
                " planned; begin again in a new directory"
            )

    def missing(self, chunk: dict[str, Any], rows: int) -> int:
        """Messages that were counted when it was planned, and not read."""
        planned = chunk["messages"]
        if planned is None or rows >= planned:
            return 0
        parsed = self._parsed
        leaves_out = parsed.drop_markers or parsed.on_invalid_subject == "drop"
        if chunk["partition"] is not None and not leaves_out:
            return int(planned) - rows
        # What is left out, and subjects outside of the partitions, was counted, too: what is there
        # now?
        with borrow(self._parsed.connection) as client:
            survey = Survey(client, self._parsed)
            wanted = survey.layout.filters(chunk["partition"])
            part = (chunk["start"], chunk["end"])
            (now,) = survey.sums(chunk["stream"], wanted, [part], survey.streams())
        return int(planned) - max(now or 0, rows)

    def rows(self, spark: SparkSession, journal: Journal, number: int) -> DataFrame:
        """The messages of a chunk, as many tasks as the options say, else as there are cores."""
        return self.read(spark, journal.plan, Chunk(**journal.plan["chunks"][number]))

    def read(self, spark: SparkSession, plan: Plan, chunk: Chunk) -> DataFrame:
        """The messages of any chunk of the plan's streams."""
        options = {k: v for k, v in self._options.items() if k.lower() not in _BOUNDS}
        if not any(name.lower() in _SPLITS for name in options):
            options["minPartitions"] = str(spark.sparkContext.defaultParallelism)
        streams = [stream for stream, _ in plan["partitions"]]
        if self._parsed.several is not None:
            options = {k: v for k, v in options.items() if k.lower() not in _STREAMS}
            options["stream"], streams = chunk.stream, [chunk.stream]
            options["subject"] = REST  # all of it is one partition, whatever its transforms are
        options |= offsets(chunk, streams)
        return spark.read.format("jetstream").options(**options).load()

    def _everywhere(self, name: str, streams: list[str]) -> Starting:
        if len(set(streams)) > 1:
            raise UsageError(
                f"a sequence is a place in one stream, and these are {len(set(streams))}; give a"
                f" time, or JSON of partition to sequence such as {json.dumps({'0': 1, '1': 1})},"
                f" of several streams such as {json.dumps({streams[0]: {'0': 1}})}"
            )
        return Starting(EARLIEST, dict.fromkeys(range(len(streams)), self._sequences[name]))


def marked(info: StreamInfo) -> dict[str, Any]:
    """A plan's notes of a stream, by which `check_streams` knows it again."""
    return {"created": info.created, "mark": [info.last_seq, info.last_time, info.mark.seen_us]}


def check_streams(client: Client, plan: Plan) -> None:
    """
    Raises:
        BackfillError: A stream was made anew, or taken back to an older copy, since it was planned.
        StreamNotFoundError: One is gone.
    """
    planned: dict[str, dict[str, Any]] = plan["streams"]
    # Journals of version 0.1.0 have no marks.
    marks = {name: Mark(of["created"], *of.get("mark", (0,))) for name, of in planned.items()}
    js = JetStream(client)
    infos = js.stream_infos(list(planned))
    others = replaced(js, marks)
    for info in infos:
        change = stream_changes(info, marks[info.name], info.name in others)
        if change is not None:
            raise BackfillError(
                f"stream '{info.name}': {change.text}. This backfill was planned before: its"
                " sequences are other messages now; begin again in a new directory"
            )
