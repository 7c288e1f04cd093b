"""Common parts of backfills: arguments, dependencies of rows, Spark, and the report at the end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import CaseInsensitiveDict

import pyspark_jetstream
from pyspark_jetstream.client.options import CONNECTION_OPTIONS
from pyspark_jetstream.datasource import columns_of
from pyspark_jetstream.options import all_options

from ...backfill.copying import ChunkTarget, Shown
from ...backfill.faults import from_spark
from ...backfill.journal import Journal, Manifest
from ...backfill.progress import ChunkRate
from ...backfill.storage import Hadoop, Storage
from ...terminal import complain, say, say_json
from ..commands import FAILED
from ..program import Parser, merged, positive
from ..progress import Bar, bars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_SPLITS: Final = ("minpartitions", "maxrecordsperpartition", "failondataloss")
"""Options of a read that do not change what its rows are."""

_MAPS: Final = ("subject", "subjectmapping", "mappingkey")
"""Options of a write that change what it publishes."""


class Backfill(NamedTuple):
    """A backfill at work."""

    spark: SparkSession
    journal: Journal
    shown: Callable[[int, int], Shown]
    """The progress display of `copy`."""


@contextmanager
def working(job: str, title: str, place: str, settings: Mapping[str, str]) -> Iterator[Backfill]:
    """
    Spark, and the journal of a backfill in its directory.

    Args:
        settings: what the rows depend on; the same in every run.

    Raises:
        BackfillError: The directory holds something else; or Spark, or a file system, has failed.
    """
    with from_spark(), session(f"{job} {title}") as spark, bars() as bar:
        journal = Journal(Storage(Hadoop.of(spark), place), job, settings)
        yield Backfill(spark, journal, partial(showing, bar, title))


def showing(bar: Bar, title: str, total: int, done: int) -> Shown:
    """Shows the progress of a backfill, of which `done` messages were copied before."""
    pace = ChunkRate(total, done, time.monotonic())

    def show(weight: int, rows: int) -> None:
        pace.add(weight, rows, time.monotonic())
        put(pace.text())

    def put(text: str) -> None:
        bar(title, pace.done, total, f"{title}  {pace.percent():5.1f}%  {text}")

    if done:
        put("done before")
    return show


def arguments(parser: Parser) -> None:
    """Arguments of all backfills, in the file of `--config` too."""
    parser.when_interrupted = "; run it again to go on"
    parser.add_file()
    parser.add_options("--option", help="an option of the read (see Options)")
    parser.add_json("one JSON document at the end instead of text")
    parser.add_connection()


def chunk_arguments(parser: Parser, chunk_messages: int) -> None:
    """Further arguments of backfills into files, or into a stream."""
    add = parser.add_setting
    add("--partition-by", nargs="+", default=[], metavar="WORD",
        help="directories by day (UTC), token:N (of the subject, from 1), partition or"
        " stream")  # fmt: skip
    add("--chunk-messages", type=positive, default=chunk_messages, metavar="N",
        help="about this many messages are read, written and recorded at a time"
        " (%(default)s)")  # fmt: skip
    add("--verify", action="store_true", help="at the end, read everything again and compare")


def concluded(
    manifest: Manifest, target: ChunkTarget, place: str, given: argparse.Namespace
) -> int:
    """Says what was done, verifies it if asked to; the exit status."""
    faults = target.faults(manifest) if given.verify else []
    if given.json:
        say_json({
            "directory": place,
            "messages": manifest["rows"],
            "missing": manifest["missing"],
            "files": len(manifest["files"]) if "files" in manifest else None,
            "verified": not faults if given.verify else None,
            "faults": faults,
        })  # fmt: skip
        return FAILED if faults else 0
    files = f" in {len(manifest['files']):,} files" if "files" in manifest else ""
    say(f"{manifest['rows']:,} messages{files}: {place}")
    if manifest["missing"]:
        complain(f"{manifest['missing']:,} messages left their stream before they were read")
    complain(*faults)
    if given.verify:
        say("verified: all is as the manifest says" if not faults else f"{len(faults)} faults")
    return FAILED if faults else 0


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns that a read with these options has."""
    return columns_of(CaseInsensitiveDict(options))


def reaching(source: Mapping[str, str], target: Mapping[str, str]) -> dict[str, str]:
    """
    Options to reach a target: those of the source, with what `target` says over them.

    Where `target` names servers, nothing is taken over: they have no business with the credentials
    of others.
    """
    own = _connection_of(target)
    if any(name.lower() == "servers" for name in own):
        return own
    return merged(_connection_of(source), own)


def identity(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a read that its rows depend on, as the journal compares them."""
    skipped = {option.name.lower() for option in CONNECTION_OPTIONS} | set(_SPLITS)
    return _named("option", {k: v for k, v in options.items() if k.lower() not in skipped})


def target_identity(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a write that say what is published."""
    return _named("target option", {k: v for k, v in options.items() if k.lower() in _MAPS})


def _named(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    names = {option.name.lower(): option.name for option in all_options()}
    return {
        f"{kind} {names.get(name.lower(), name)}": value for name, value in sorted(options.items())
    }


def _connection_of(options: Mapping[str, str]) -> dict[str, str]:
    names = {option.name.lower() for option in CONNECTION_OPTIONS}
    return {name: value for name, value in options.items() if name.lower() in names}


def _is_found(spark: SparkSession) -> bool:
    """
    Whether Spark finds the format by itself, so that another one of its name would be a warning.
    It does not look for data sources in `--py-files`; what came so is used, whatever is installed.
    """
    if not os.path.isdir(os.path.dirname(pyspark_jetstream.__file__)):
        return False
    found = spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("jetstream")
    return bool(found)


@contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Spark as spark-submit has it, or as its configuration says, with what backfills rely on."""
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not by spark-submit: the workers are ours
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    if not _is_found(spark):
        pyspark_jetstream.register(spark)
    # A day is a day of UTC, and timestamps are stored as such, not as Impala's INT96.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # PySpark's own handler calls the JVM in the middle of another call to it; we stop Spark anyway.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()
