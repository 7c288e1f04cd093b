"""
Shows streams, partitions, consumers, pins, lag, claims, leases of standbys, and a checkpoint beside
what the server holds.

    pyspark-jetstream inspect --stream FLIGHTS
    pyspark-jetstream inspect --stream 'FLIGHTS-{partition}' --partitions 4 --watch
    pyspark-jetstream inspect --checkpoint /checkpoints/alerts --watch 10
    pyspark-jetstream inspect --checkpoint hdfs://name/checkpoints/alerts
    pyspark-jetstream inspect --stream FLIGHTS --consumer spark-6544945683 --json

Nothing is changed: it reads the checkpoint's files and asks the server. Without --consumer it shows
the consumers of the checkpoint's queries, else all that have a priority group. With --watch it
looks again every two seconds, or so many, and adds rates, and lags and rates over time, until
Ctrl-C. A checkpoint that is not on this machine is read by Spark's JVM, as Spark is configured.

Exit status 0: all well, or Ctrl-C; 1: failed, why in one line; 2: wrong arguments; 3: some problem,
it is shown.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import CheckpointError, JetStreamError, OptionError
from pyspark_jetstream.fetch.options import StreamOptions
from pyspark_jetstream.operations.inspection.findings import Inspection
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.operations.stopping import Stop
from pyspark_jetstream.operations.terminal import complain, say_json
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.values import consumer_name, duration

from .connecting import (
    add_checkpoint,
    add_connection,
    argument,
    connection_words,
    described,
    opened_checkpoint,
    parsed,
)
from .tables import printed, shown

__all__ = ["main", "parser"]

COMMAND: Final = "pyspark-jetstream inspect"

FAILED: Final = 1
USAGE: Final = 2
PROBLEMS: Final = 3

STREAM_OPTIONS: Final = ("stream", "subject", "partitions", "partitionSubject")


def parser(program: str = COMMAND) -> argparse.ArgumentParser:
    """The arguments."""
    command = described(__doc__, COMMAND, program, allow_abbrev=False)
    add = command.add_argument
    add("--stream", metavar="NAME", help="with {partition} in it, one stream a partition")
    add("--subject", metavar="FILTER", help="as the query's option subject")
    add("--partitions", metavar="N", help="how many there are")
    add("--partition-subject", dest="partitionSubject", metavar="SUBJECT",
        help="where the number stands: 'flights.{partition}.>'")  # fmt: skip
    add("--consumer", type=argument(consumer_name), metavar="PREFIX",
        help="of the query's consumers; default: the checkpoint's")  # fmt: skip
    add_checkpoint(command)
    add("--watch", nargs="?", const=2.0, type=argument(_interval), metavar="SECONDS",
        help="look again every so many seconds (2)")  # fmt: skip
    add("--json", action="store_true", help="one JSON document, with --watch one a line")
    add_connection(command)
    return command


def main(arguments: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """The exit status, as the help says."""
    command = parser(program)
    given = parsed(command, arguments)
    if given.stream is None and given.checkpoint is None:
        command.error("expected --stream, --checkpoint or both")
    try:
        return _inspect(given)
    except OptionError as error:
        complain(error)
        return USAGE
    except JetStreamError as error:
        complain(error)
        return FAILED
    except BrokenPipeError:  # `| head` has seen enough; the interpreter would write once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130 if given.watch is None else 0


def _inspect(given: argparse.Namespace) -> int:
    connection = connection_words(vars(given))
    words = {name: getattr(given, name) for name in STREAM_OPTIONS if getattr(given, name)}
    options: StreamOptions | None = None
    if "stream" in words:
        options = parse_stream(connection | words)
    elif words:
        raise OptionError(next(iter(words)), "needs --stream")
    with opened_checkpoint(given) as checkpoint:
        client = Client(parse_connection(connection), at_start=True)
        try:
            inspector = Inspector(client, options, given.consumer, checkpoint)
            if given.watch is None:
                inspection = inspector.look()
                if given.json:
                    say_json(_document(inspection), indent=2)
                else:
                    printed(inspection)
                return PROBLEMS if inspection.problems() else 0
            return _watch(inspector, given.watch, _lines if given.json else shown)
        finally:
            client.close()


def _watch(
    inspector: Inspector,
    interval_s: float,
    showing: Callable[[], Any],
) -> int:
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
    yield lambda inspection: say_json(_document(inspection))


def _document(inspection: Inspection) -> dict[str, Any]:
    return asdict(inspection) | {"problems": inspection.problems()}


def _interval(text: str) -> float:
    return duration(f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text)
