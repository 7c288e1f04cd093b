"""The command that makes N partitions of a stream that exists, on the server itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from ...client.jetstream import JetStream
from ...client.options import ConnectionOptions
from ...errors import CopyMismatchError, OptionError
from ..connecting import Kind, client_of, connects
from ..files import Files, checkpoint_files
from ..screen import bar, plain, show, show_json, table
from .copies import Progress
from .making import missing_names, partition_stream
from .plan import PartitionPlan
from .removal import undo_partitions
from .switching import switch, undo_switch

MISMATCH: Final = 3


def _tokens(text: str) -> tuple[int, ...]:
    """Numbers such as 1,2; raises ValueError."""
    return tuple(map(int, text.split(",")))


@click.command()
@click.option("--stream", "origin", metavar="NAME", required=True,
              help="The stream to partition; it is not changed.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1), required=True, metavar="N",
              help="Number of partitions.")  # fmt: skip
@click.option("--streams", metavar="NAME", help="Names of the partitions, RAW6-{partition}, or"
              " of one numbered stream, RAW-all. Default: --stream's, -{partition}.")  # fmt: skip
@click.option("--partition-subject", metavar="SUBJECT",
              help="Where the number stands: 'flights.{partition}.>'.")  # fmt: skip
@click.option("--subject", metavar="FILTER",
              help="Where no number stands, the subjects to number: 'flights.*.*'.")  # fmt: skip
@click.option("--tokens", type=Kind("numbers", _tokens), metavar="NUMBERS", default=(),
              help="Which '*' to hash, from 1: 1 or 1,2; default: the whole subject.")  # fmt: skip
@click.option("--destination", metavar="SUBJECT", help="Subject of the copies, with"
              " {{partition(…)}}; default: the number after the first literal tokens.")  # fmt: skip
@click.option("--switch", "checkpoint", metavar="DIR",
              help="Switch the checkpoint of a stopped query to this layout.")  # fmt: skip
@click.option("--undo", is_flag=True,
              help="Remove the streams that were made; with --switch, switch back.")  # fmt: skip
@click.option("--force", is_flag=True, help="Undo even if the streams have consumers.")
@click.option("--dry-run", is_flag=True, help="Only say what would be made, or removed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@connects
def partition(
    connection: ConnectionOptions, checkpoint: str | None, undo: bool, as_json: bool, force: bool,
    dry_run: bool, **given: Any,
) -> int:  # fmt: skip
    """
    Makes N partitions of a stream on the server itself.

    Their counts are compared with the stream's at the end.

    Each partition is a stream: RAW-0, RAW-1 and so on. If the origin's subjects carry no number, a
    numbered stream, RAW-all, copies the origin first. --streams RAW-all makes this one alone: the
    filtered layout. The server goes on copying. If you run the command again, it goes on where it
    was and compares again. A layout with another N stands beside the old one, which queries may go
    on reading.

    --switch checks that a query's last batch is committed, and that all partitions have read up to
    one message of the origin and no further: the cut. Then it writes the end of that batch in the
    layout: the query goes on with the options that are printed, keeps its state, and reads each
    message once. --undo removes the streams. Give both the arguments with which the layout was
    made.

    \b
    pyspark-jetstream partition --stream FLIGHTS --partitions 4 \\
        --partition-subject 'flights.{partition}.>'
    pyspark-jetstream partition --stream RAW --partitions 4 \\
        --subject 'raw.*.*' --tokens 1
    pyspark-jetstream partition --stream RAW --partitions 4 \\
        --subject 'raw.*.*' --tokens 1 --streams RAW-all
    """
    if force and not undo:
        raise OptionError("force", "goes with --undo")
    given["streams"] = given["streams"] or f"{given['origin']}-{{partition}}"
    plan = PartitionPlan(**given)
    files = checkpoint_files(checkpoint) if checkpoint is not None else None
    with client_of(connection) as client:
        try:
            rows, facts = _done(JetStream(client), plan, files, undo, force, dry_run)
        except CopyMismatchError as error:
            show(str(error), to_stderr=True)
            return MISMATCH
    reading = {} if undo else plan.reading
    if as_json:
        show_json({"changed": not dry_run, "streams": rows} | facts | {"options": reading})
        return 0
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in facts.items()]
    lines += ["options that read the result:"] * bool(reading)
    lines += [f"  {name}={value}" for name, value in reading.items()]
    lines += ["a dry run: nothing was changed"] * dry_run
    show(table(rows), *lines)
    return 0


def _done(
    js: JetStream, plan: PartitionPlan, files: Files | None, undo: bool, force: bool, dry_run: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What was asked for: rows of a table, and what else there is to say, by name."""
    if files is not None and undo:
        return [], {"batch": undo_switch(files, dry_run=dry_run)}
    if undo:
        rows = undo_partitions(js, plan, force=force, dry_run=dry_run)
        return rows, {} if dry_run else {"removed": len(rows)}
    with _copying() as progress:
        if files is not None:
            return switch(js, plan, files, dry_run=dry_run, progress=progress)
        if dry_run:
            missing = missing_names(js, plan)
            return [{"stream": name, "is_there": name not in missing} for name in plan.names], {}
        facts = partition_stream(js, plan, progress=progress)._asdict()
    streams = facts.pop("streams")
    return [{"stream": name, "messages": count} for name, count in streams.items()], facts


@contextmanager
def _copying() -> Iterator[Progress]:
    """A bar for each stream that is copied, in sequences of what feeds it."""
    with bar() as progress:
        tasks: dict[str, Any] = {}

        def look(stream: str, done: int, end: int) -> None:
            if stream not in tasks:
                tasks[stream] = progress.add_task(f"copying to {plain(stream)}")
            progress.update(tasks[stream], completed=done, total=end)

        yield look
