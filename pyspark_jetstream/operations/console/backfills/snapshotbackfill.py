"""
Copies a snapshot into Parquet files: the last message of every subject, or the latest value of
every key of a bucket, all as of one sequence. If it is killed, run it again.

    pyspark-jetstream backfill snapshot --stream FLIGHTS --output /data/latest \\
        --partition-by token:2
    pyspark-jetstream backfill snapshot --stream FLIGHTS --subjects 'flights.ATL.>' \\
        --as-of 2026-01-31T00:00:00Z --output /data/atl --verify
    pyspark-jetstream backfill snapshot --bucket USERS --as-of 120000 \\
        --output hdfs:///backfills/users --servers nats://n1:4222

The messages are found once, and their list is kept beside the output. If a run is killed, the same
command goes on with the same messages: nothing is repeated and nothing is left out.
On a cluster: spark-submit --master spark://host:7077 jobs/snapshot_backfill.py, with the same
arguments, or $PYSPARK_SUBMIT_ARGS, such as '--master spark://host:7077 pyspark-shell'.

Exit status 0: done; 1: failed; 2: wrong arguments; 130: interrupted.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS, or the file of --config.
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark_jetstream.operations.backfill.copying import copy
from pyspark_jetstream.operations.backfill.parquet import ParquetTarget, Partitioning
from pyspark_jetstream.operations.backfill.snapshots import SnapshotSource, snapshot_options

from ..program import Parser, merged
from . import backfilling
from .backfilling import concluded, identity, schema_of, working

JOB: Final = "snapshot_backfill"
"""Name of the job in journals and in Spark."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    backfilling.arguments(parser)
    add = parser.add_setting
    add("--stream", metavar="NAME", help="the stream; NAME-{partition} with option partitions")
    add("--bucket", metavar="NAME", help="or the Key-Value bucket")
    add("--subjects", ("multiLast", "keys"), metavar="FILTERS",
        help="only these subjects, or keys of the bucket (all)")  # fmt: skip
    add("--as-of", ("upToSequence", "upToTime"), metavar="WHEN",
        help="a sequence (a bucket's revision) or a time (now)")  # fmt: skip
    add("--output", metavar="DIRECTORY", help="where the Parquet files go")
    backfilling.chunk_arguments(parser, 100_000)


def run(given: argparse.Namespace) -> int:
    """Runs the backfill, or what is left of it; 0: everything is where it should be."""
    given.parser.require(given, "output")
    if (given.stream is None) == (given.bucket is None):
        given.parser.error("give either --stream or --bucket")
    named = snapshot_options(given.stream, given.bucket, given.subjects, given.as_of)
    options = merged(given.option, named)
    schema = schema_of(options)
    source = SnapshotSource(options, schema, given.chunk_messages)
    partitioning = Partitioning.parse(given.partition_by, schema)
    settings = identity(options) | {"--partition-by": " ".join(given.partition_by)}
    title = given.stream or given.bucket
    with working(JOB, title, given.output, settings) as (spark, journal, shown):
        order = "sequence" if given.bucket is None else "revision"
        target = ParquetTarget(spark, journal, partitioning, order)
        manifest = copy(spark, source, target, journal, shown)
        return concluded(manifest, target, journal.storage.root, given)
