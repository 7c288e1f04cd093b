"""
Publishes dead letters again as rows, on their original subjects. If it is killed, run it again.

    pyspark-jetstream replay --stream DEAD --into FLIGHTS --manifest /data/replays/1
    pyspark-jetstream replay --stream DEAD --into FLIGHTS --manifest /data/replays/2 \\
        --reason QueueTimeout --priority normal --since 2026-01-31T08:00:00Z --until -10m --delete
    pyspark-jetstream replay --stream DEAD --subject 'dead.flights.>' --into FLIGHTS \\
        --manifest hdfs:///replays/3 \\
        --servers nats://n1:4222 --credentials-file /etc/nats/spark.creds

A replay takes the dead letters between two sequences, if the stream --into takes the rows' own
subjects. The sequences are found once. If a run is killed, the same command goes on with the same
sequences. Each row is sent with the id that it had. Rows that the target has stored since the
replay began are left out.
With --delete the replayed dead letters are removed, by sequence, when every row has its PubAck. You
can also give --delete in one more run when all rows are stored. Without it they stay, and the next
replay begins with the --since that is printed at the end.

While the server still pushes back, the replay waits, as every write does. If the server refuses a
row for a limit, the task fails after publishTimeout. If an operator pauses a subject, the task
fails after throttleMaxWait. If the replay then ends, run it again. Rows keep the order of their
dead letters, but come after rows that were published on their subject meanwhile. If another attempt
of the task stored a row longer ago than the target's duplicate window, the row is stored twice.
Nats-Expected-* headers are restored, and the target may refuse them.

On a cluster: spark-submit --master spark://host:7077 jobs/replay_dead_letters.py, with the same
arguments, or $PYSPARK_SUBMIT_ARGS, such as '--master spark://host:7077 pyspark-shell'.

Exit status 0: done; 1: failed; 2: wrong arguments; 130: interrupted.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS (for the target $JETSTREAM_TARGET_…), or the file of --config.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from pyspark_jetstream.operations.backfill.copying import copy
from pyspark_jetstream.operations.backfill.journal import Manifest
from pyspark_jetstream.operations.backfill.letters import (
    ReplayTarget,
    Selection,
    check_removable,
    remove,
)
from pyspark_jetstream.operations.backfill.ranges import RangeSource, bounds
from pyspark_jetstream.operations.terminal import Row, complain, say, say_json, show
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.priority import Priority

from ..program import Parser, merged, positive
from . import backfilling
from .backfilling import identity, reaching, working

JOB: Final = "replay_dead_letters"
"""Name of the job in journals and in Spark."""

_NOT_HERE: Final = ("subject", "subjectmapping", "overloadpolicy")
"""Options that would send rows elsewhere."""

_LABELS: Final = [priority.label for priority in Priority]
_SHOWN: Final = 20
"""Subjects in the table."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    backfilling.arguments(parser)
    add = parser.add_setting
    add("--stream", metavar="NAME", help="the stream of dead letters")
    add("--subject", metavar="FILTER", help="only dead letters on these subjects (all)")
    add("--into", metavar="STREAM", help="the stream to which the rows were sent first")
    add("--manifest", metavar="DIRECTORY", help="where progress and manifest are kept")
    add("--since", ("startingOffsets", "startingTimestamp"), metavar="WHERE",
        help="a sequence of the dead letters, or a time (earliest)")  # fmt: skip
    add("--until", ("endingOffsets", "endingTimestamp"), metavar="WHERE",
        help="the same; a sequence is included (latest)")  # fmt: skip
    add("--reason", nargs="+", default=[], metavar="WORD",
        help="only rows that were shed for one of these reasons (all)")  # fmt: skip
    add(
        "--priority", nargs="+", default=[], metavar="WORD", help=f"only {', '.join(_LABELS)} (all)"
    )
    add("--delete", action="store_true", help="remove the dead letters when all rows are stored")
    add("--writers", type=positive, default=1, metavar="N", help="tasks that publish (1)")
    parser.add_options("--target-option", help="an option of the write; without servers of its own"
        " the write connects as the read does")  # fmt: skip
    add("--chunk-messages", type=positive, default=100_000, metavar="N",
        help="about this many are read, sent and recorded at a time (%(default)s)")  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Runs the replay, or what is left of it; 0: everything is where it should be."""
    parser = given.parser
    parser.require(given, "stream", "into", "manifest")
    for name in given.target_option:
        if name.lower() in _NOT_HERE:
            parser.error(
                f"--target-option {name}: a replay sends rows to their own subjects; leave this"
                " option out"
            )
    for word in given.priority:
        if word not in _LABELS:
            parser.error(f"--priority: expected {', '.join(_LABELS)}, got '{word}'")
    named = {"stream": given.stream, "includeHeaders": "true"}
    if given.subject is not None:
        named["subject"] = given.subject
    options = merged(given.option, named, bounds(given.since, given.until))
    source = RangeSource(options, given.chunk_messages)
    lenient = RangeSource(merged(options, {"failOnDataLoss": "false"}), given.chunk_messages)
    selection = Selection(given.reason, given.priority)
    connection = reaching(given.option, {})
    reached = reaching(given.option, given.target_option)
    writing = merged({"exactlyOnce": "true"}, reached, given.target_option)
    parse_sink(writing)  # a mistake in it before Spark is started
    settings = identity(options) | {
        "--into": given.into,
        "--reason": " ".join(sorted(given.reason)),
        "--priority": " ".join(sorted(given.priority)),
    }
    with working(JOB, given.stream, given.manifest, settings) as (spark, journal, shown):
        target = ReplayTarget(
            selection, spark, journal, given.into, writing, reached, given.writers
        )
        if given.delete:
            check_removable(connection, given.stream)
        manifest = copy(spark, source, target, journal, shown)
        if not given.json:
            conclude(manifest, journal.storage.root, to_delete=given.delete)
        removed = remove(spark, lenient, selection, manifest, connection) if given.delete else None
        if given.json:
            say_json(document(manifest, journal.storage.root, removed))
        elif removed is not None:
            say(f"{removed:,} dead letters removed")
    return 0


def document(manifest: Manifest, place: str, removed: int | None) -> dict[str, object]:
    """Replayed rows, and those left, as JSON."""
    counts = ("replayed", "duplicates", "elsewhere", "no_letters", "missing")
    return {
        "directory": place,
        **{name: manifest[name] for name in counts},
        "removed": removed,
        "subjects": [
            {"subject": subject, "rows": rows, "duplicates": duplicates}
            for subject, (rows, duplicates) in manifest["subjects_replayed"].items()
        ],
        "streams": [
            {"stream": name, "next_since": stream["last_sequence"] + 1}
            for name, stream in manifest["streams"].items()
        ],
    }


def conclude(manifest: Manifest, place: str, to_delete: bool = False) -> None:
    """Says what was replayed, what is left where it was, and where the next replay begins."""
    show(list(rows(manifest)))
    say(f"{manifest['replayed']:,} dead letters replayed: {place}")
    for name, what in (
        ("elsewhere", "dead letters are for other streams; they stay"),
        ("no_letters", "messages have no header Jetstream-Sink-Original-Subject; they stay"),
        ("missing", "messages left their stream before they were read"),
    ):
        if manifest[name]:
            complain(f"{manifest[name]:,} {what}")
    if to_delete:
        return  # the next one finds none of these
    for name, stream in manifest["streams"].items():
        say(f"the next replay of {name}: --since {stream['last_sequence'] + 1}")


def rows(manifest: Manifest) -> Iterator[Row]:
    """The subjects with the most rows, the others, all."""
    counts = list(manifest["subjects_replayed"].items())[:_SHOWN]
    every = manifest["replayed"], manifest["duplicates"]
    rest = [total - sum(of[at] for _, of in counts) for at, total in enumerate(every)]
    others = [("others", rest)] if rest[0] else []
    for subject, (replayed, duplicates) in (*counts, *others, ("all", every)):
        yield {"subject": subject, "rows": replayed, "duplicates": duplicates}
