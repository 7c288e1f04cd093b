"""
Shows streams, partitions, consumers, pins, lag, claims, leases of standbys, and a
checkpoint beside what the server holds.

    pyspark-jetstream inspect
    pyspark-jetstream inspect --stream FLIGHTS
    pyspark-jetstream inspect --stream 'FLIGHTS-{partition}' --partitions 4 --watch
    pyspark-jetstream inspect --checkpoint /checkpoints/alerts --watch 10
    pyspark-jetstream inspect --checkpoint hdfs://name/checkpoints/alerts
    pyspark-jetstream inspect --stream FLIGHTS --consumer spark-6544945683 --json
    pyspark-jetstream inspect --expect running

The command changes nothing: it reads the checkpoint's files and asks the server. Without arguments
it shows everything of Spark on the server. Without --consumer it shows the consumers of the
checkpoint's queries; without a checkpoint, all consumers with a priority group. With --watch it
looks again every two seconds, or after the time given, and adds rates, until Ctrl-C. If a
checkpoint is not on this machine, Spark's JVM reads it, as Spark is configured.

A query that somebody stopped is no problem. If your queries are always to run, say so by --expect.

Exit status 0: all well, or Ctrl-C; 1: failed, one line says why; 2: wrong arguments; 3: there is a
problem, the output says which.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, get_args

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import CheckpointError, JetStreamError, OptionError
from pyspark_jetstream.operations.inspection.checkpoints import (
    Directory,
    LocalDirectory,
    checkpoint_path,
    is_local,
)
from pyspark_jetstream.operations.inspection.findings import (
    ConsumerState,
    Expected,
    Inspection,
)
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.operations.stopping import Stop
from pyspark_jetstream.operations.terminal import complain, say, say_json
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.values import consumer_name, duration

from .program import Parser, argument, connected, connection_words, seconds
from .tables import lines, shown

PROBLEMS: Final = 3

_STREAM: Final = ("stream", "subject", "partitions", "partitionSubject")
"""Options of a read that say which streams, and how they are partitioned."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    add_consumers(parser)
    add = parser.add_argument
    add("--subject", metavar="FILTER", help="the value of the query's option subject")
    add("--partition-subject", dest="partitionSubject", metavar="SUBJECT",
        help="where the number stands: 'flights.{partition}.>'")  # fmt: skip
    add("--watch", nargs="?", const=2.0, type=seconds, metavar="SECONDS",
        help="look again after so many seconds, or after a time such as 500ms (2)")  # fmt: skip
    add("--expect", choices=get_args(Expected)[1:], default="",
        help="running: a query that does not run is a problem; standby: also a query without a"
        " standby")  # fmt: skip
    parser.add_json("one JSON document, with --watch one a line")
    parser.add_connection()


def run(given: argparse.Namespace) -> int:
    """Looks once, or until it is stopped; the exit status, as the help says."""
    with inspecting(given) as (_, inspector):
        if given.watch is not None:
            return watch(inspector, given.watch, _lines if given.json else shown)
        inspection = inspector.look()
    if given.json:
        say_json(document(inspection))
    else:
        say(*lines(inspection))
    return PROBLEMS if inspection.problems() else 0


def add_consumers(parser: Parser) -> None:
    """Arguments that select consumers: by their names, or by a query's checkpoint."""
    add = parser.add_argument
    add("--stream", metavar="NAME", help="with {partition} in it, one stream a partition")
    add("--partitions", metavar="N", help="number of partitions")
    add("--consumer", type=argument(consumer_name), metavar="NAME",
        help="one consumer, or the prefix of a query's consumers; default: those of the"
        " checkpoint")  # fmt: skip
    add("--checkpoint", metavar="DIR",
        help="a query's checkpointLocation: a path, or a URI that Spark reaches (needs Java)",
    )  # fmt: skip
    add("--checkpoint-timeout", type=argument(duration), default=60.0, metavar="TIME",
        help="longest wait for an answer of a remote file system (60s)",
    )  # fmt: skip


@contextmanager
def inspecting(given: argparse.Namespace) -> Iterator[tuple[Client, Inspector]]:
    """
    An inspector of what `add_consumers` has been given, and its client.

    Raises:
        OptionError: A mistake in the options, or there is no such checkpoint.
        CheckpointError: Where the checkpoint is kept cannot be reached.
        NotConnectedError: No server can be reached.
    """
    words = {name: value for name in _STREAM if (value := getattr(given, name, None))}
    if words and "stream" not in words:
        raise OptionError(next(iter(words)), "needs --stream")
    options = parse_stream(connection_words(given) | words) if words else None
    if options is not None and options.several is not None:
        raise OptionError("stream", "expected one; --checkpoint shows a query of several")
    with _checkpoint(given) as checkpoint, connected(given) as client:
        expected: Expected = getattr(given, "expect", "")
        yield client, Inspector(client, options, given.consumer, checkpoint, expected)


@contextmanager
def selected(given: argparse.Namespace) -> Iterator[tuple[JetStream, list[ConsumerState]]]:
    """
    The consumers of `add_consumers` that are to be changed, none of which is an attempt's own, and
    what changes them; ends the program where none was named.

    Raises:
        JetStreamError: There is none; as `inspecting`.
    """
    if given.checkpoint is None and not (given.stream and given.consumer):
        given.parser.error("expected --stream and --consumer, or --checkpoint")
    with inspecting(given) as (client, inspector):
        consumers = [each for each in inspector.look().consumers if not each.own]
        if not consumers:
            missing = f"stream '{given.stream}' has no consumer '{given.consumer}'"
            if given.checkpoint is not None:
                missing = "the server has no consumer of this checkpoint"
            raise JetStreamError(f"{missing}; `pyspark-jetstream inspect` shows the names")
        yield JetStream(client), consumers


@contextmanager
def _checkpoint(given: argparse.Namespace) -> Iterator[Directory | None]:
    if given.checkpoint is None:
        yield None
    elif is_local(given.checkpoint):
        yield LocalDirectory(checkpoint_path(given.checkpoint))
    else:
        # Not above: who has local checkpoints alone, or none, needs neither pyspark nor Java.
        from pyspark_jetstream.operations.inspection.hadoop import HadoopDirectory

        directory = HadoopDirectory(given.checkpoint, given.checkpoint_timeout)
        try:
            yield directory
        finally:
            directory.close()


def watch(inspector: Inspector, interval_s: float, showing: Callable[[], Any]) -> int:
    """Looks again and again until Ctrl-C or SIGTERM, also after errors that may pass."""
    stopped = Stop()
    with showing() as show:
        first = True
        while not stopped():
            try:
                show(inspector.look())
            except JetStreamError as error:
                passes = error.retryable or isinstance(error, CheckpointError)
                if first or not passes:
                    raise
                complain(error)
            first = False
            stopped.wait(interval_s)
    return 0


@contextmanager
def _lines() -> Iterator[Callable[[Inspection], None]]:
    yield lambda inspection: say_json(document(inspection), indent=None)


def document(inspection: Inspection) -> dict[str, Any]:
    """The inspection as JSON."""
    return asdict(inspection) | {"problems": inspection.problems()}
