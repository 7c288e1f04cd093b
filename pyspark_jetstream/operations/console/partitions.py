"""
Makes N partitions of a stream that exists, on the server itself, and compares them with it.

    pyspark-jetstream partition --stream RAW --partitions 4 --subject 'raw.*.*' --tokens 1
    pyspark-jetstream partition --stream FLIGHTS --partitions 4 \\
        --partition-subject 'flights.{partition}.>'
    pyspark-jetstream partition --layout filtered --stream RAW --partitions 4 \\
        --subject 'raw.*.*' --tokens 1

The streams layout is one stream a partition, RAW-0, RAW-1 …; where the origin's subjects carry no
number, a numbered stream, RAW-all, stands in between. That one alone is the filtered layout. The
origin is left as it is, and the server goes on copying. Run again, it goes on and compares anew.

With another N, beside the old layout, which queries may go on reading:

    pyspark-jetstream partition --stream RAW --partitions 6 --subject 'raw.*.*' --tokens 1 \\
        --streams 'RAW6-{partition}' --replaces 'RAW-{partition}'

and then with --hand-over, once the query that reads the old one is stopped: it prints, as JSON, the
options for the end of the old layout and the beginning of the new one. All steps are in
docs/guides/partitions.md.

--undo, with the arguments the streams were made with, removes them.

Exit status 0: done, and every copy is what it should be; 1: failed, why in one line; 2: wrong
arguments; 3: a copy is not what it should be, which one in one line; 130: interrupted.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any, Final

from pyspark_jetstream.client.options import ConnectionOptions, parse_connection
from pyspark_jetstream.errors import CopyMismatchError, JetStreamError, OptionError
from pyspark_jetstream.operations.handover import hand_over
from pyspark_jetstream.operations.removal import undo_partitions
from pyspark_jetstream.operations.terminal import complain, say, say_json

from ..partitioning import partition_stream, planned_streams
from ..partitionplan import PartitionPlan
from .connecting import add_connection, connection_words, described, parsed
from .progress import copying

__all__ = ["main", "parser", "planned"]

COMMAND: Final = "pyspark-jetstream partition"

FAILED: Final = 1
USAGE: Final = 2
MISMATCH: Final = 3
INTERRUPTED: Final = 130

_VERIFY: Final = (
    "counts: messages by subject; order (default): also where each message comes from, in which"
    " order; content: also every payload"
)


def parser(program: str = COMMAND) -> argparse.ArgumentParser:
    """The arguments."""
    command = described(__doc__, COMMAND, program, allow_abbrev=False)
    add = command.add_argument
    add("--stream", required=True, help="the stream to partition; left as it is")
    add("--partitions", type=int, required=True, metavar="N")
    add("--layout", choices=("streams", "filtered"), help="default: streams")
    add("--streams", metavar="NAME-{partition}", help="names of the partitions' streams")
    add("--numbered", metavar="NAME", help="name of the numbered stream")
    add("--partition-subject", help="where the number stands: 'flights.{partition}.>'")
    add("--subject", help="or, where there is none, the subjects to number: 'flights.*.*'")
    add("--tokens", type=int, nargs="+", default=(), help="the '*' to hash, counted from 1")
    add("--destination", help="the transform that numbers; default: after the literal beginning")
    add("--verify", choices=("counts", "order", "content"), default="order", help=_VERIFY)
    add("--stall-timeout", type=float, default=60, help="seconds without a copy (%(default)s)")
    add(
        "--replaces", metavar="LAYOUT", help="the layout read so far: a stream, or NAME-{partition}"
    )
    add("--replaces-partitions", type=int, metavar="N", help="how many, where it does not tell")
    act = command.add_mutually_exclusive_group()
    act.add_argument("--hand-over", action="store_true", help="print where to leave it, and begin")
    act.add_argument("--undo", action="store_true", help="remove the streams that were made")
    add("--force", action="store_true", help="undo although something is lost")
    add("--dry-run", action="store_true", help="only say what would be made, or removed and lost")
    add_connection(command)
    return command


def main(arguments: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """The exit status, as the help says."""
    words = sys.argv[1:] if arguments is None else arguments
    given = vars(parsed(parser(program), words))
    try:
        connection = parse_connection(connection_words(given))
        plan = planned(given)
        if given["undo"]:
            undo(connection, plan, given["force"], given["dry_run"])
        elif given["hand_over"]:
            hand(connection, plan, given)
        elif given["dry_run"]:
            for name, there in planned_streams(connection, plan):
                say(f"{'is there' if there else 'would make'} {name}")
        else:
            again = f"{program} {shlex.join(words)} --hand-over"
            make(connection, plan, given, again)
    except OptionError as error:
        complain(error)
        return USAGE
    except CopyMismatchError as error:
        complain(error)
        return MISMATCH
    except JetStreamError as error:
        complain(error)
        return FAILED
    except KeyboardInterrupt:
        complain("interrupted: the server goes on copying; run this again to check")
        return INTERRUPTED
    return 0


def planned(given: dict[str, Any]) -> PartitionPlan:
    """
    The plan, with names where none are given.

    Raises:
        OptionError: It makes no sense.
    """
    if given["force"] and not given["undo"]:
        raise OptionError("force", "goes with undo")
    if given["hand_over"] and given["replaces"] is None:
        raise OptionError("replaces", "required with hand-over: the layout read so far")
    origin, streams, numbered = given["stream"], given["streams"], given["numbered"]
    alone = numbered is not None and streams is None
    layout = given["layout"] or ("filtered" if alone else "streams")
    if layout == "filtered":
        if streams is not None:
            raise OptionError("streams", "contradicts layout filtered")
        if given["partition_subject"] is not None:
            raise OptionError(
                "layout", f"stream '{origin}' with partition-subject is the filtered layout already"
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


def make(
    connection: ConnectionOptions, plan: PartitionPlan, given: dict[str, Any], again: str
) -> None:
    """Makes the layout, and says what readers do then: `again` hands over."""
    with copying() as show:
        done = partition_stream(
            connection,
            plan,
            progress=show,
            stall_timeout_s=given["stall_timeout"],
            verify=given["verify"],
        )
    say(f"{done.messages:,} messages of {done.subjects:,} subjects, {done.left_out:,} left out")
    old = given["replaces"]
    if old is not None:
        say(
            "",
            f"Each query that reads '{old}' changes over by itself:",
            "1. Stop it.",
            f"2. {again} > cut.json",
            "3. Start it once more with its old options, .options(**cut['old']) and"
            " .trigger(availableNow=True), and let it end.",
            "4. Start it with .options(**cut['new']) and a new checkpointLocation.",
            "When nobody reads the old layout any more, remove it: the command that made it, with"
            " --undo.",
        )


def hand(connection: ConnectionOptions, plan: PartitionPlan, given: dict[str, Any]) -> None:
    """Prints the options on both sides of the cut."""
    with copying() as show:
        cut = hand_over(
            connection,
            given["replaces"],
            plan,
            partitions=given["replaces_partitions"],
            progress=show,
            stall_timeout_s=given["stall_timeout"],
        )
    say_json({"stream": cut.origin, "sequence": cut.sequence, "old": cut.old, "new": cut.new})


def undo(connection: ConnectionOptions, plan: PartitionPlan, force: bool, dry_run: bool) -> None:
    """Removes the layout, and says what was lost with it."""
    for removal in undo_partitions(connection, plan, force=force, dry_run=dry_run):
        lost = f"; lost: {'; '.join(removal.lost)}" if removal.lost else ""
        did = "would remove" if dry_run else "removed"
        say(f"{did} {removal.stream}, {removal.messages:,} messages{lost}")
