"""
Copies the last message of every subject, or a bucket's latest values, into Parquet.

    spark-submit jobs/snapshot_backfill.py --bucket USERS --output backfills/users

All rows are as of one sequence, which is noted in OUTPUT/_point before the first row is read. After
a kill run the same command again: it takes the same point, and fails if a message as of that point
is gone (then remove OUTPUT/_point). The folder `as_of=SEQUENCE` appears when all rows are in it.
The next run makes another folder.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import Row


def pair(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE, or of NAME=@FILE: a secret that no list of processes shows."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("expected NAME=VALUE or NAME=@FILE")
    return name, Path(value[1:]).read_text().strip() if value.startswith("@") else value


def point(spark: SparkSession, given: argparse.Namespace, note: str) -> Row:
    """The point that a killed run has noted, or the stream's last message, which is noted now."""
    schema = "sequence BIGINT, timestamp TIMESTAMP"
    reader = spark.read.format("jetstream").options(**dict(given.option))
    reader = reader.option("stream", given.stream or f"KV_{given.bucket}")
    try:
        noted = spark.read.schema(schema).parquet(note).first()
    except AnalysisException:  # there is no note
        noted = None
    if noted is None:
        newest = reader.option("lastBySubject", ">").load()
        newest.select("sequence", "timestamp").write.mode("overwrite").parquet(note)
        noted = spark.read.schema(schema).parquet(note).first()
        if noted is None:
            raise ValueError("there are no messages")
        return noted
    there = reader.option("sequence", noted["sequence"]).load().first()
    if there is not None and there["timestamp"] != noted["timestamp"]:
        raise ValueError(f"the stream was made anew; remove {note}, and run it again")
    return noted


def copy(spark: SparkSession, given: argparse.Namespace) -> str:
    """The folder of the snapshot, when it is whole."""
    hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    files = hadoop.Path(given.output).getFileSystem(spark._jsc.hadoopConfiguration())
    note, hidden = f"{given.output}/_point", f"{given.output}/_unfinished"
    sequence = point(spark, given, note)["sequence"]
    done = f"{given.output}/as_of={sequence}"
    if not files.exists(hadoop.Path(done)):
        reader = spark.read.format("jetstream").options(**dict([*given.option, *given.read]))
        if given.bucket:
            reader = reader.option("bucket", given.bucket)
        else:
            reader = reader.options(stream=given.stream, multiLast=given.subjects)
        rows = reader.option("upToSequence", sequence).load()
        rows.write.mode("overwrite").partitionBy(*given.partition_by).parquet(hidden)
        if not files.rename(hadoop.Path(hidden), hadoop.Path(done)):
            raise ValueError(f"{hidden} cannot become {done}")
    files.delete(hadoop.Path(note), True)
    return done


def reason(error: Exception) -> str:
    """The line of an error that says what to do, without the traces of Spark and Python."""
    ours = re.findall(r"pyspark_jetstream\.errors\.\w+: .*", str(error))
    return ours[-1] if ours else str(error).splitlines()[0]


def main() -> int:
    """Exit status 0: the snapshot is there; 1: it is not, and one line says why."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--bucket", help="the bucket to copy")
    what.add_argument("--stream", help="the stream to copy")
    add = parser.add_argument
    add("--subjects", default=">", help="filters, as of multiLast: which subjects (all)")
    add("--option", type=pair, action="append", default=[], help="NAME=VALUE, of the connection")
    add("--read", type=pair, action="append", default=[], help="NAME=VALUE, of the read beside it")
    add("--output", required=True, help="folder of the snapshots")
    add("--partition-by", nargs="+", default=[], help="columns that become folders")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("snapshot backfill").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    began = time.monotonic()
    try:
        done = copy(spark, given)
    except (PySparkException, ValueError) as error:
        print(f"failed: {reason(error)}", file=sys.stderr)
        return 1
    rows = spark.read.parquet(done).count()
    print(f"done: {rows:,} rows in {done}, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
