"""
Takes the pin from whoever holds it at consumers of a priority group, and says from whom.

    pyspark-jetstream unpin --stream FLIGHTS --consumer spark-6544945683
    pyspark-jetstream unpin --stream FLIGHTS --consumer spark-6544945683-3
    pyspark-jetstream unpin --checkpoint /checkpoints/alerts

--consumer names one consumer, or by their prefix those of all partitions of a query; a checkpoint
names its query's. No message is lost: a query takes the pin again for its next batch, and a task
that is under way is run again. The next client whose pull is served is pinned then, which may be
the same one. `pyspark-jetstream inspect` shows who is pinned.

Exit status 0: nobody holds a pin any more that was held before; 1: failed, why in one line; 2:
wrong arguments; 3: nobody was pinned at one or more of them, which is shown.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import JetStreamError, OptionError
from pyspark_jetstream.operations.inspection.findings import ConsumerState
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.operations.terminal import complain, say, say_json
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.values import consumer_name

from .connecting import (
    add_checkpoint,
    add_connection,
    argument,
    connection_words,
    described,
    opened_checkpoint,
    parsed,
)

__all__ = ["main", "parser"]

COMMAND: Final = "pyspark-jetstream unpin"

FAILED: Final = 1
USAGE: Final = 2
NOBODY: Final = 3

PINNED_CLIENT: Final = "pinned_client"


def parser(program: str = COMMAND) -> argparse.ArgumentParser:
    """The arguments."""
    command = described(__doc__, COMMAND, program, allow_abbrev=False)
    add = command.add_argument
    add("--stream", metavar="NAME", help="of the consumers; with {partition} in it, needs N")
    add("--partitions", metavar="N", help="how many streams there are")
    add("--consumer", type=argument(consumer_name), metavar="NAME",
        help="one consumer, or the prefix of a query's")  # fmt: skip
    add_checkpoint(command)
    add("--json", action="store_true", help="one JSON document a consumer, one a line")
    add_connection(command)
    return command


def main(arguments: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """The exit status, as the help says."""
    command = parser(program)
    given = parsed(command, arguments)
    if given.checkpoint is None and not (given.stream and given.consumer):
        command.error("expected --stream and --consumer, or --checkpoint")
    try:
        return _unpin(given)
    except OptionError as error:
        complain(error)
        return USAGE
    except JetStreamError as error:
        complain(error)
        return FAILED


def _unpin(given: argparse.Namespace) -> int:
    connection = connection_words(vars(given))
    words = {
        name: getattr(given, name) for name in ("stream", "partitions") if getattr(given, name)
    }
    if words and "stream" not in words:
        raise OptionError("partitions", "needs --stream")
    options = parse_stream(connection | words) if words else None
    with opened_checkpoint(given) as checkpoint:
        client = Client(parse_connection(connection), at_start=True)
        try:
            found = Inspector(client, options, given.consumer, checkpoint).look().consumers
            consumers = [each for each in found if not each.own]  # those have no pin
            return _unpin_all(JetStream(client), consumers, given.json)
        finally:
            client.close()


def _unpin_all(js: JetStream, consumers: Sequence[ConsumerState], as_json: bool) -> int:
    if not consumers:
        complain("there is no such consumer")
        return FAILED
    others = [consumer for consumer in consumers if consumer.policy != PINNED_CLIENT]
    if others:
        _refuse(others[0])
        return FAILED
    took = [_take(js, consumer, as_json) for consumer in consumers]
    return 0 if all(took) else NOBODY


def _refuse(consumer: ConsumerState) -> None:
    what = f"stream '{consumer.stream}', consumer '{consumer.name}'"
    why = ", ".join(consumer.problems) or f"no priority policy {PINNED_CLIENT}"
    complain(f"{what}: {why}; no pin was touched")


def _take(js: JetStream, before: ConsumerState, as_json: bool) -> bool:
    """Takes one pin and shows what the server says then; whether anybody had held it."""
    js.unpin(before.stream, before.name, before.group)
    after = js.consumer_info(before.stream, before.name)
    if after.pinned_id and after.pinned_id == before.pinned_id:
        raise JetStreamError(
            f"stream '{before.stream}', consumer '{before.name}': the server accepted it, and"
            f" '{before.pinned_id}' is pinned as before; is its leader changing? Try again"
        )
    if as_json:
        facts = {
            "stream": before.stream,
            "consumer": before.name,
            "group": before.group,
            "unpinned": before.pinned_id or None,
            "since": before.pinned_since or None,
            "pinned": after.pinned_id or None,
            "waiting": after.num_waiting,
        }
        say_json(facts)
        return bool(before.pinned_id)
    was = (
        f"unpinned {before.pinned_id}, pinned since {before.pinned_since}"
        if before.pinned_id
        else "nobody was pinned"
    )
    now = f"{after.pinned_id} is pinned now" if after.pinned_id else "nobody is pinned now"
    say(f"{before.stream} {before.name}: {was}; {now}, {after.num_waiting} pulls wait")
    return bool(before.pinned_id)
