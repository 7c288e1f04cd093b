"""The command that inspects: arguments, tables, JSON, and looking again and again."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, Final

import click

from ...client.options import ConnectionOptions
from ...errors import CheckpointError, JetStreamError
from ...values import consumer_name
from ..connecting import SECONDS, Kind, client_of, connects
from ..files import checkpoint_files
from ..screen import plain, show, show_json, table, warn
from ..stopping import Stop
from .findings import Report
from .looking import Inspector

PROBLEMS: Final = 3

_HIDDEN: Final = ("group", "ack_floor", "last_active", "created", "waiting", "leader")
"""Columns that the document has and a screen has not."""

_STATUS: Final = (
    "Exit status 0: done; 1: failed, one line says why; 2: wrong arguments; 3: there is a problem,"
    " the output says which; 130: interrupted."
)


@click.command(epilog=_STATUS)
@click.option("--stream", metavar="NAME", help="A stream; `ORDERS-*` for all of a layout.")
@click.option("--consumer", type=Kind("consumer", consumer_name), metavar="NAME",
              help="A consumer, or what the names of a query's consumers begin with.")  # fmt: skip
@click.option("--checkpoint", metavar="DIR",
              help="A query's checkpointLocation: a path, or a URI that Spark reaches (needs"
              " Java).")  # fmt: skip
@click.option("--checkpoint-timeout", type=SECONDS, metavar="TIME", default="60s",
              show_default=True, help="Longest wait for another file system.")  # fmt: skip
@click.option("--watch", is_flag=False, flag_value="2", type=SECONDS, metavar="[TIME]",
              help="Look again so often, until Ctrl-C; 2s where no time is given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document, with --watch one a line.")
@connects
def inspect(
    connection: ConnectionOptions, stream: str | None, consumer: str | None,
    checkpoint: str | None, checkpoint_timeout: float, watch: float | None, as_json: bool,
) -> int:  # fmt: skip
    """
    Shows queries and streams, and what is wrong with them.

    A checkpoint stands beside what the server holds. A problem has the command that mends it.
    Without arguments all that is Spark's on the server is shown. Nothing is changed, and no query
    is asked.

    \b
    pyspark-jetstream inspect
    pyspark-jetstream inspect --stream FLIGHTS --consumer alerts
    pyspark-jetstream inspect --checkpoint /checkpoints/alerts --watch 10
    pyspark-jetstream inspect --checkpoint hdfs://name/checkpoints/alerts --json
    """
    of = checkpoint_files(checkpoint, checkpoint_timeout) if checkpoint else nullcontext()
    with of as files, client_of(connection) as client:
        inspector = Inspector(client, stream, consumer, files)
        if watch is not None:
            _watch(inspector, watch, as_json)
            return 0
        report = inspector.look()
    if as_json:
        show_json(asdict(report))
    else:
        _show(report)
    return PROBLEMS if report.problems else 0


def _watch(inspector: Inspector, interval_s: float, as_json: bool) -> None:
    """Looks again and again until Ctrl-C or SIGTERM, also after errors that may pass."""
    stopped, is_first = Stop(), True
    while not stopped():
        try:
            report = inspector.look()
            if as_json:
                click.echo(json.dumps(asdict(report)))
            else:
                click.clear()
                _show(report)
        except JetStreamError as error:
            if is_first or not (error.retryable or isinstance(error, CheckpointError)):
                raise
            warn([plain(error)])
        is_first = False
        stopped.wait(interval_s)


def _show(report: Report) -> None:
    """Prints a report for people: the problems last, where they are seen."""
    show(f"{report.time}  {report.server}")
    if report.checkpoint is not None:
        of = report.checkpoint
        stands = f"batch {of['planned']} planned, last committed: {of['committed']}"
        show(f"checkpoint {of['path']}", f"query {of['query']}, {stands}")
    for title in ("streams", "consumers", "positions", "claims", "writes"):
        rows: list[dict[str, Any]] = getattr(report, title)
        if rows:
            shown = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
            show("", table(shown, title.capitalize()))
    if not report.streams and report.checkpoint is None:
        show("nothing of Spark's is here: no consumer of a query, no ledger, no partitions")
    show("", *(f"note: {note}" for note in report.notes))
    count = len(report.problems)
    show(f"{count} problem{'s' * (count > 1)}:" if count else "no problem")
    show(*(f"  {problem}" for problem in report.problems))
