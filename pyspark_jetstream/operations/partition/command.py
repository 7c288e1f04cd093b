"""The command that makes N partitions of a stream that exists, on the server itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import click

from ...client.jetstream import JetStream
from ...client.options import ConnectionOptions
from ...errors import CopyMismatchError, OptionError
from ..connecting import SECONDS, client_of, connects
from ..files import Files, checkpoint_files
from ..screen import bar, plain, show, show_json, table, warn
from .copies import Copied
from .making import missing_names, partition_stream
from .plan import PartitionPlan
from .removal import undo_partitions
from .switching import switch, undo_switch

MISMATCH: Final = 3

_STATUS: Final = (
    "Exit status 0: done; 1: failed, one line says why; 2: wrong arguments; 3: a copy is wrong, one"
    " line says which; 130: interrupted; the server goes on copying then."
)


@click.command(epilog=_STATUS)
@click.option("--stream", metavar="NAME", required=True,
              help="The stream to partition; it is not changed.")  # fmt: skip
@click.option("--partitions", type=int, required=True, metavar="N", help="Number of partitions.")
@click.option("--layout", type=click.Choice(["streams", "filtered"]), help="Default: streams.")
@click.option("--streams", metavar="NAME", help="Names of the partitions: 'RAW6-{partition}'.")
@click.option("--numbered", metavar="NAME", help="Name of the numbered stream.")
@click.option("--partition-subject", metavar="SUBJECT",
              help="Where the number stands: 'flights.{partition}.>'.")  # fmt: skip
@click.option("--subject", metavar="FILTER",
              help="Where no number stands, the subjects to number: 'flights.*.*'.")  # fmt: skip
@click.option("--tokens", metavar="NUMBERS", default="",
              help="Which '*' to hash, from 1: 1 or 1,2; default: the whole subject.")  # fmt: skip
@click.option("--destination", metavar="SUBJECT", help="Subject of the copies, with"
              " {{partition(…)}}; default: the number after the first literal tokens.")  # fmt: skip
@click.option("--stall-timeout", type=SECONDS, default="60s", show_default=True, metavar="TIME",
              help="Fail if nothing is copied for this time.")  # fmt: skip
@click.option("--switch", "checkpoint", metavar="DIR",
              help="Switch the checkpoint of a stopped query to this layout.")  # fmt: skip
@click.option("--checkpoint-timeout", type=SECONDS, metavar="TIME", default="60s",
              show_default=True, help="Longest wait for another file system.")  # fmt: skip
@click.option("--undo", is_flag=True,
              help="Remove the streams that were made; with --switch, switch back.")  # fmt: skip
@click.option("--force", is_flag=True, help="Undo even if others need the streams.")
@click.option("--dry-run", is_flag=True, help="Only say what would be made, or removed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@connects
def partition(
    connection: ConnectionOptions, undo: bool, force: bool, dry_run: bool, as_json: bool,
    stall_timeout: float, checkpoint: str | None, checkpoint_timeout: float, **given: Any,
) -> int:  # fmt: skip
    """
    Makes N partitions of a stream on the server itself.

    Their counts are compared with the stream's at the end.

    The streams layout has one stream for each partition: RAW-0, RAW-1 and so on. If the origin's
    subjects carry no number, a numbered stream, RAW-all, copies the origin first. The filtered
    layout is this numbered stream alone. The server goes on copying. If you run the command again,
    it goes on where it was and compares again. A layout with another N stands beside the old one,
    which queries may go on reading.

    --switch checks that a query's last batch is committed, and that all partitions have read up to
    one message of the origin and no further. Then it writes the end of that batch in the layout:
    the query goes on with the options that are printed, keeps its state, and reads each message
    once. --undo removes the streams. Give both the arguments with which the layout was made.

    \b
    pyspark-jetstream partition --stream FLIGHTS --partitions 4 \\
        --partition-subject 'flights.{partition}.>'
    pyspark-jetstream partition --stream RAW --partitions 4 \\
        --subject 'raw.*.*' --tokens 1
    pyspark-jetstream partition --layout filtered --stream RAW \\
        --partitions 4 --subject 'raw.*.*' --tokens 1
    pyspark-jetstream partition --stream RAW --partitions 6 \\
        --subject 'raw.*.*' --tokens 1 --streams 'RAW6-{partition}'
    """
    if force and not undo:
        raise OptionError("force", "goes with --undo")
    plan = planned(**given)
    with client_of(connection) as client:
        js = JetStream(client)
        if checkpoint is not None:
            with checkpoint_files(checkpoint, checkpoint_timeout) as files:
                _switch(js, plan, files, undo, dry_run, as_json, stall_timeout)
        elif undo:
            _undo(js, plan, force, dry_run, as_json)
        elif dry_run:
            _forecast(js, plan, as_json)
        else:
            try:
                _make(js, plan, stall_timeout, as_json)
            except CopyMismatchError as error:
                warn([plain(error)])
                return MISMATCH
    return 0


def planned(
    stream: str, streams: str | None, numbered: str | None, layout: str | None, tokens: str,
    **given: Any,
) -> PartitionPlan:  # fmt: skip
    """
    The plan, with names where none are given.

    Raises:
        OptionError: It makes no sense.
    """
    alone = numbered is not None and streams is None
    if (layout or ("filtered" if alone else "streams")) == "filtered":
        if streams is not None:
            raise OptionError("streams", "contradicts --layout filtered")
        if given["partition_subject"] is not None:
            raise OptionError(
                "layout",
                f"stream '{stream}' with --partition-subject is the filtered layout already",
            )
        numbered = numbered or f"{stream}-all"
    else:
        streams = streams or f"{stream}-{{partition}}"
    words = tokens.replace(",", " ").split()
    if not all(word.isdigit() for word in words):
        raise OptionError("tokens", f"expected numbers such as 1,2, got '{tokens}'")
    return PartitionPlan(
        stream, streams=streams, numbered=numbered, tokens=tuple(map(int, words)), **given
    )


def _forecast(js: JetStream, plan: PartitionPlan, as_json: bool) -> None:
    """Says which streams the layout has, and how to read them."""
    missing = missing_names(js, plan)
    if as_json:
        streams = [{"stream": name, "is_there": name not in missing} for name in plan.names]
        show_json({"streams": streams, "options": reading(plan)})
        return
    for name in plan.names:
        show(f"{'would make' if name in missing else 'is there'} {name}")
    show("give them no duplicate_window: it would drop messages",
         "their timestamp is the time of copying", *_read_by(plan))  # fmt: skip


def _make(js: JetStream, plan: PartitionPlan, stall_timeout_s: float, as_json: bool) -> None:
    """Makes the layout, and says what readers do then."""
    with _copying() as progress:
        done = partition_stream(js, plan, progress=progress, stall_timeout_s=stall_timeout_s)
    rows = [{"stream": name, "messages": count} for name, count in done.streams.items()]
    if as_json:
        show_json(asdict(done) | {"streams": rows, "messages": done.messages})
        return
    show(
        table(rows),
        f"{done.messages:,} messages of {done.subjects:,} subjects, {done.left_out:,} left out",
        *_read_by(plan),
    )


def _switch(
    js: JetStream, plan: PartitionPlan, files: Files, undo: bool, dry_run: bool, as_json: bool,
    stall_timeout_s: float,
) -> None:  # fmt: skip
    """Switches a checkpoint, or back, and says how to read on."""
    would = "would be " * dry_run
    if undo:
        batch = undo_switch(files, dry_run=dry_run)
        if as_json:
            show_json({"undone": not dry_run, "batch": batch})
        else:
            show(f"batch {batch} {would}ends in the layout of before")
        return
    with _copying() as progress:
        done = switch(
            js, plan, files, dry_run=dry_run, progress=progress, stall_timeout_s=stall_timeout_s
        )
    if as_json:
        show_json({"switched": not dry_run} | done | {"options": reading(plan)})
        return
    rows = [{"partition": name, "read_up_to": at} for name, at in done["after"].items()]
    before = ", ".join(f"{name} {at:,}" for name, at in done["before"].items())
    stands = f"batch {done['batch']} {would}ends there; it ended at {before}"
    show(table(rows), stands, *_read_by(plan))


def _undo(js: JetStream, plan: PartitionPlan, force: bool, dry_run: bool, as_json: bool) -> None:
    """Removes the layout, and says who needed it."""
    removed = undo_partitions(js, plan, force=force, dry_run=dry_run)
    if as_json:
        show_json({"removed": not dry_run, "streams": [asdict(each) for each in removed]})
        return
    for each in removed:
        needed = f"; {'; '.join(each.needed_by)}" if each.needed_by else ""
        did = "would remove" if dry_run else "removed"
        show(f"{did} {each.stream}, {each.messages:,} messages{needed}")


# ── what is shown ────────────────────────────────────────────────────────────────────────────


@contextmanager
def _copying() -> Iterator[Callable[[Sequence[Copied]], None]]:
    """A bar for each stream that is copied, in sequences of what feeds it."""
    with bar() as progress:
        tasks: dict[str, Any] = {}

        def look(streams: Sequence[Copied]) -> None:
            for each in streams:
                if each.stream not in tasks:
                    tasks[each.stream] = progress.add_task(f"copying to {plain(each.stream)}")
                progress.update(tasks[each.stream], completed=each.done, total=each.end)

        yield look


def reading(plan: PartitionPlan) -> dict[str, str]:
    """Options of the data source that read the layout of `plan`."""
    return {"stream": plan.layout, "partitions": str(plan.partitions)} | (
        {} if plan.streams is not None else {"partitionSubject": plan.template}
    )


def _read_by(plan: PartitionPlan) -> list[str]:
    lines = (f"  {name}={value}" for name, value in reading(plan).items())
    return ["options that read the result:", *lines]
