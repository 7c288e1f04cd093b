"""The command that inspects: arguments, tables, JSON, and looking again and again."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Final, NoReturn

import click

from ...client.options import ConnectionOptions
from ...errors import CheckpointError, JetStreamError
from ..connecting import SECONDS, client_of, connects
from ..files import checkpoint_files
from ..screen import show, show_json, table
from .findings import Report
from .looking import Inspector

PROBLEMS: Final = 3

_HIDDEN: Final = ("bytes", "discard", "policy", "pinned", "pinned_since")
"""Columns that the document has and a screen has not."""


@click.command()
@click.option("--stream", metavar="NAME", help="A stream; 'ORDERS-*' for all of a layout.")
@click.option("--checkpoint", metavar="DIR",
              help="A query's checkpointLocation: a path, or a URI that Spark reaches (needs"
              " Java).")  # fmt: skip
@click.option("--watch", is_flag=False, flag_value="2", type=SECONDS, metavar="[TIME]",
              help="Look again so often, until Ctrl-C; 2s where no time is given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document, with --watch one a line.")
@connects
def inspect(
    connection: ConnectionOptions, stream: str | None, checkpoint: str | None, watch: float | None,
    as_json: bool,
) -> int:  # fmt: skip
    """
    Shows queries and streams, and what is wrong with them.

    A checkpoint stands beside what the server holds. A problem has the command that mends it.
    Without arguments all that is Spark's on the server is shown. Nothing is changed, and no query
    is asked.

    \b
    pyspark-jetstream inspect
    pyspark-jetstream inspect --stream FLIGHTS
    pyspark-jetstream inspect --checkpoint /checkpoints/alerts --watch 10
    pyspark-jetstream inspect --checkpoint hdfs://name/checkpoints/alerts --json
    """
    files = checkpoint_files(checkpoint) if checkpoint else None
    with client_of(connection) as client:
        inspector = Inspector(client, stream, files)
        if watch is not None:
            _watch(inspector, watch, as_json)
        report = inspector.look()
    _show(report, as_json)
    return PROBLEMS if report.problems else 0


def _watch(inspector: Inspector, interval_s: float, as_json: bool) -> NoReturn:
    """Looks again and again until Ctrl-C, also after errors that may pass, but for the first."""
    is_first = True
    while True:
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
            show(str(error), to_stderr=True)
        is_first = False
        time.sleep(interval_s)


def _show(report: Report, as_json: bool = False) -> None:
    """Prints a report; for people the problems last, where they are seen."""
    if as_json:
        show_json(asdict(report))
        return
    show(f"{report.time}  {report.server}")
    if (of := report.checkpoint) is not None:
        stands = f"batch {of['planned']} planned, last committed: {of['committed']}"
        if of["planned"] is None:
            stands = "no batch planned yet"
        show(f"checkpoint {of['path']}", f"query {of['query']}, {stands}")
    for title in ("streams", "consumers", "positions", "writes"):
        if rows := getattr(report, title):
            shown = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
            show("", table(shown, title.capitalize()))
    if not report.streams and report.checkpoint is None:
        show("nothing of Spark's is here: no consumer of a query, no ledger")
    show("", *(f"note: {note}" for note in report.notes))
    count = len(report.problems)
    show(f"{count} problem{'s' * (count > 1)}:" if count else "no problem")
    show(*(f"  {problem}" for problem in report.problems))
