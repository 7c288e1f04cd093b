"""
Takes the pin from the client that holds it, at consumers of a priority group, and says from whom.

    pyspark-jetstream unpin --stream FLIGHTS --consumer spark-6544945683
    pyspark-jetstream unpin --stream FLIGHTS --consumer spark-6544945683-3
    pyspark-jetstream unpin --checkpoint /checkpoints/alerts

--consumer names one consumer, or a query's consumers by the prefix of their names. A checkpoint
names the consumers of its query. No message is lost: a query takes the pin again for its next
batch, and a task that runs now is run again. The server then pins the next client whose pull it
serves. This may be the same client. `pyspark-jetstream inspect` shows who is pinned.

Exit status 0: every client that was pinned has lost its pin; 1: failed, one line says why; 2: wrong
arguments; 3: a consumer had no pinned client, the output says which.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.operations.inspection.findings import ConsumerState
from pyspark_jetstream.operations.terminal import say, say_json

from .overview import add_consumers, selected
from .program import Parser

NOBODY: Final = 3

PINNED_CLIENT: Final = "pinned_client"


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    add_consumers(parser)
    parser.add_json("one JSON document a consumer, one a line")
    parser.add_connection()


def run(given: argparse.Namespace) -> int:
    """Takes the pins; the exit status, as the help says."""
    with selected(given) as (js, consumers):
        for consumer in consumers:
            if consumer.pin.policy != PINNED_CLIENT:
                raise JetStreamError(_refusal(consumer))
        taken = [_unpinned(js, consumer, given.json) for consumer in consumers]
    return 0 if all(taken) else NOBODY


def _refusal(consumer: ConsumerState) -> str:
    what = f"stream '{consumer.stream}', consumer '{consumer.name}'"
    why = ", ".join(consumer.problems) or f"no priority policy {PINNED_CLIENT}"
    return f"{what}: {why}; no pin was touched"


def _unpinned(js: JetStream, before: ConsumerState, as_json: bool) -> bool:
    """Takes one pin and shows what the server says then; whether anybody had held it."""
    js.unpin(before.stream, before.name, before.pin.group)
    after = js.consumer_info(before.stream, before.name)
    if after.pinned_id and after.pinned_id == before.pin.client:
        raise JetStreamError(
            f"stream '{before.stream}', consumer '{before.name}': the server accepted it, and"
            f" '{before.pin.client}' is pinned as before; is its leader changing? Try again"
        )
    if as_json:
        facts = {
            "stream": before.stream,
            "consumer": before.name,
            "group": before.pin.group,
            "unpinned": before.pin.client or None,
            "since": before.pin.since or None,
            "pinned": after.pinned_id or None,
            "waiting": after.num_waiting,
        }
        say_json(facts, indent=None)
        return bool(before.pin.client)
    was = (
        f"unpinned {before.pin.client}, pinned since {before.pin.since}"
        if before.pin.client
        else "nobody was pinned"
    )
    now = f"{after.pinned_id} is pinned now" if after.pinned_id else "nobody is pinned now"
    say(f"{before.stream} {before.name}: {was}; {now}, pulls that wait: {after.num_waiting}")
    return bool(before.pin.client)
