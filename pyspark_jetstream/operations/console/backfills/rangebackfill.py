"""
Copies a range of a stream into Parquet files, or into another stream. If it is killed, run it
again.

    pyspark-jetstream backfill range --stream FLIGHTS --output /data/flights --partition-by day
    pyspark-jetstream backfill range --stream FLIGHTS --from 2026-01-01T00:00:00Z --to -10m \\
        --output s3a://lake/flights --servers nats://n1:4222,nats://n2:4222 \\
        --credentials-file /etc/nats/spark.creds
    pyspark-jetstream backfill range --stream FLIGHTS --from 1000 --to 500000 --into COPY \\
        --manifest hdfs:///backfills/copy --target-option 'subjectMapping={"flights.>": "copy.>"}'

The range is resolved to sequences once. If a run is killed, the same command goes on with the same
sequences: nothing is repeated and nothing is left out.
On a cluster: spark-submit --master spark://host:7077 jobs/range_backfill.py, with the same
arguments, or $PYSPARK_SUBMIT_ARGS, such as '--master spark://host:7077 pyspark-shell'.

Exit status 0: done; 1: failed; 2: wrong arguments; 130: interrupted.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS (for the target $JETSTREAM_TARGET_…), or the file of --config.
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark_jetstream.operations.backfill.copying import ChunkTarget, copy
from pyspark_jetstream.operations.backfill.parquet import ParquetTarget, Partitioning
from pyspark_jetstream.operations.backfill.ranges import RangeSource, bounds
from pyspark_jetstream.operations.backfill.relay import RelayTarget
from pyspark_jetstream.options import parse_sink

from ..program import Parser, merged, positive
from . import backfilling
from .backfilling import concluded, identity, reaching, schema_of, target_identity, working

JOB: Final = "range_backfill"
"""Name of the job in journals and in Spark."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    backfilling.arguments(parser)
    add = parser.add_setting
    add("--stream", metavar="NAME", help="the stream; NAME-{partition} with option partitions;"
        " a comma list of several")  # fmt: skip
    add("--stream-pattern", "streamPattern", metavar="PATTERN",
        help="or every stream whose name matches, as it is when the backfill begins")  # fmt: skip
    add("--from", ("startingOffsets", "startingTimestamp"), dest="first", metavar="WHERE",
        help="a sequence, a time, or offsets (earliest)")  # fmt: skip
    add("--to", ("endingOffsets", "endingTimestamp"), dest="last", metavar="WHERE",
        help="the same; a sequence is included (latest)")  # fmt: skip
    add("--output", metavar="DIRECTORY", help="where the Parquet files go")
    add("--into", metavar="STREAM", help="or the stream to copy into")
    add("--manifest", metavar="DIRECTORY", help="with --into: where progress and manifest are kept")
    add(
        "--writers", type=positive, default=1, metavar="N", help="with --into: tasks to publish (1)"
    )
    parser.add_options("--target-option", help="with --into: an option of the write; without"
        " servers of its own the write connects as the read does")  # fmt: skip
    backfilling.chunk_arguments(parser, 500_000)


def run(given: argparse.Namespace) -> int:
    """Runs the backfill, or what is left of it; 0: everything is where it should be."""
    parser = given.parser
    streams = "stream_pattern" if given.stream_pattern is not None else "stream"
    parser.require(given, streams, *([] if given.into is None else ["manifest"]))
    if given.output is None and given.into is None:
        parser.error("--output or --into is required")
    if given.into is not None and (given.output is not None or given.partition_by):
        parser.error("--into copies into a stream: it goes with --manifest, not with --output or"
                     " --partition-by")  # fmt: skip
    if given.into is None and (given.manifest is not None or given.writers > 1):
        parser.error("--manifest and --writers go with --into")
    named = {"stream": given.stream, "streamPattern": given.stream_pattern}
    named = {name: value for name, value in named.items() if value is not None}
    options = merged(given.option, named, bounds(given.first, given.last))
    if given.into is not None:
        options = merged(options, {"includeHeaders": "true"})
    source = RangeSource(options, given.chunk_messages)
    partitioning = Partitioning.parse(given.partition_by, schema_of(options))
    settings = identity(options) | {"--partition-by": " ".join(given.partition_by)}
    reached = reaching(given.option, given.target_option)
    writing = merged({"exactlyOnce": "true"}, reached, given.target_option)
    if given.into is not None:
        parse_sink(writing)  # a mistake in it before Spark is started
        settings |= {"--into": given.into} | target_identity(given.target_option)
    place = given.output or given.manifest
    with working(JOB, named[next(iter(named))], place, settings) as (spark, journal, shown):
        target: ChunkTarget
        if given.into is None:
            target = ParquetTarget(spark, journal, partitioning, order="sequence")
        else:
            target = RelayTarget(spark, journal, given.into, writing, reached, given.writers)
        manifest = copy(spark, source, target, journal, shown)
        return concluded(manifest, target, journal.storage.root, given)
