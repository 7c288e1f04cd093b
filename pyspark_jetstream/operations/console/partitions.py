"""
Makes N partitions of a stream that exists, on the server itself, and compares them with it.

    pyspark-jetstream partition --stream RAW --partitions 4 --subject 'raw.*.*' --tokens 1
    pyspark-jetstream partition --stream FLIGHTS --partitions 4 \\
        --partition-subject 'flights.{partition}.>'
    pyspark-jetstream partition --layout filtered --stream RAW --partitions 4 \\
        --subject 'raw.*.*' --tokens 1

The streams layout has one stream for each partition: RAW-0, RAW-1 and so on. If the origin's
subjects carry no number, a numbered stream, RAW-all, copies the origin first. The filtered layout
is this numbered stream alone. The origin is not changed, and the server goes on copying. If you run
the command again, it goes on where it was and compares again.

A layout with another N stands beside the old one, which queries may go on reading:

    pyspark-jetstream partition --stream RAW --partitions 6 --subject 'raw.*.*' --tokens 1 \\
        --streams 'RAW6-{partition}'

--undo removes the streams. Give it the arguments with which they were made.

Exit status 0: done, and every copy is right; 1: failed, one line says why; 2: wrong arguments;
3: a copy is wrong, one line says which; 130: interrupted.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any, Final

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import CopyMismatchError, OptionError
from pyspark_jetstream.operations.removal import undo_partitions
from pyspark_jetstream.operations.terminal import say, say_json

from ..partitioning import forecast, partition_stream
from ..partitionplan import PartitionPlan
from .program import Parser, connected, seconds
from .progress import copying

MISMATCH: Final = 3

_NOT_OF_COPIES: Final = "duplicate_window"
"""A setting of most origins that copies must not have."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    parser.when_interrupted = ": the server goes on copying; run this again to check"
    add = parser.add_argument
    add("--stream", metavar="NAME", required=True, help="the stream to partition; not changed")
    add("--partitions", type=int, required=True, metavar="N", help="number of partitions")
    add("--layout", choices=("streams", "filtered"), help="default: streams")
    add("--streams", metavar="NAME-{partition}", help="names of the partitions' streams")
    add("--numbered", metavar="NAME", help="name of the numbered stream")
    add("--partition-subject", help="where the number stands: 'flights.{partition}.>'")
    add("--subject", help="without --partition-subject, the subjects to number: 'flights.*.*'")
    add("--tokens", type=int, nargs="+", default=(), help="numbers of the '*' to hash, from 1")
    add("--destination", help="subject of the copies, with {{partition(…)}}; default: the number"
        " after the first literal tokens")  # fmt: skip
    add("--stall-timeout", type=seconds, default=60.0, metavar="TIME",
        help="fail if nothing is copied for this time (60s)")  # fmt: skip
    add("--undo", action="store_true", help="remove the streams that were made")
    add("--force", action="store_true", help="undo even if others need the streams")
    add(
        "--dry-run",
        action="store_true",
        help="only say what would be made, or removed",
    )
    parser.add_json("one JSON document instead of text")
    parser.add_connection()


def run(given: argparse.Namespace) -> int:
    """Makes the layout, or does what else was asked for; the exit status, as the help says."""
    plan = planned(vars(given))
    with connected(given) as client:
        js = JetStream(client)
        try:
            if given.undo:
                undo(js, plan, given)
            elif given.dry_run:
                show_planned(js, plan, given)
            else:
                make(js, plan, given)
        except CopyMismatchError as error:
            given.parser.complain(error)
            return MISMATCH
    return 0


def planned(given: dict[str, Any]) -> PartitionPlan:
    """
    The plan, with names where none are given.

    Raises:
        OptionError: It makes no sense.
    """
    if given["force"] and not given["undo"]:
        raise OptionError("force", "goes with --undo")
    origin, streams, numbered = given["stream"], given["streams"], given["numbered"]
    alone = numbered is not None and streams is None
    layout = given["layout"] or ("filtered" if alone else "streams")
    if layout == "filtered":
        if streams is not None:
            raise OptionError("streams", "contradicts --layout filtered")
        if given["partition_subject"] is not None:
            raise OptionError(
                "layout",
                f"stream '{origin}' with --partition-subject is the filtered layout already",
            )
        numbered = numbered or f"{origin}-all"
    else:
        streams = streams or f"{origin}-{{partition}}"
    return PartitionPlan(
        origin,
        given["partitions"],
        streams,
        partition_subject=given["partition_subject"],
        subject=given["subject"],
        tokens=tuple(given["tokens"]),
        destination=given["destination"],
        numbered=numbered,
    )


def show_planned(js: JetStream, plan: PartitionPlan, given: argparse.Namespace) -> None:
    """Says which streams the layout has, what they inherit, and how to read them."""
    found, options = forecast(js, plan), reading(plan)
    if given.json:
        say_json(asdict(found) | {"options": options})
        return
    for each in found.streams:
        does = "is there" if each.is_there else "would make"
        say(f"{does} {each.stream}")
    by_hand = {name: value for name, value in found.left_out.items() if name != _NOT_OF_COPIES}
    left_out = f"they do not inherit {_settings(by_hand)}: set what they should have by hand"
    say(
        f"the copies inherit {_settings(found.inherited)}",
        *([left_out] if by_hand else []),
        f"give them no {_NOT_OF_COPIES}: it would drop messages",
        "their timestamp is the time of copying",
        *_read_by(plan),
    )


def reading(plan: PartitionPlan) -> dict[str, str]:
    """Options of the data source that read the layout of `plan`."""
    return {"stream": plan.layout, "partitions": str(plan.partitions)} | (
        {} if plan.streams is not None else {"partitionSubject": plan.template}
    )


def _read_by(plan: PartitionPlan) -> list[str]:
    return [
        "options that read the result:",
        *(f"  {name}={value}" for name, value in reading(plan).items()),
    ]


def _settings(settings: dict[str, Any]) -> str:
    said = (f"{name}={_spelled(name, value)}" for name, value in settings.items())
    return ", ".join(said) or "nothing"


def _spelled(name: str, value: Any) -> str:
    """A setting as people write it; the server counts durations in nanoseconds."""
    return f"{value / 1e9:g}s" if name in ("duplicate_window", "max_age") else str(value)


def make(js: JetStream, plan: PartitionPlan, given: argparse.Namespace) -> None:
    """Makes the layout, and says what readers do then."""
    with copying() as show:
        done = partition_stream(
            js,
            plan,
            progress=show,
            stall_timeout_s=given.stall_timeout,
        )
    if given.json:
        streams = [{"stream": name, "messages": count} for name, count in done.streams.items()]
        say_json(asdict(done) | {"streams": streams, "messages": done.messages})
        return
    say(f"{done.messages:,} messages of {done.subjects:,} subjects, {done.left_out:,} left out")
    say(*_read_by(plan))


def undo(js: JetStream, plan: PartitionPlan, given: argparse.Namespace) -> None:
    """Removes the layout, and says who needed it."""
    removed = undo_partitions(js, plan, force=given.force, dry_run=given.dry_run)
    if given.json:
        say_json({"removed": not given.dry_run, "streams": [asdict(each) for each in removed]})
        return
    for each in removed:
        needed = f"; {'; '.join(each.needed_by)}" if each.needed_by else ""
        did = "would remove" if given.dry_run else "removed"
        say(f"{did} {each.stream}, {each.messages:,} messages{needed}")
