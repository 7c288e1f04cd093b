"""
Pauses all consumers of a query for a time: the query waits.
`resume`: Ends a pause before its time: the query goes on.

    pyspark-jetstream pause --checkpoint /checkpoints/alerts --for 10m
    pyspark-jetstream pause --stream FLIGHTS --consumer spark-6544945683 --for 1h
    pyspark-jetstream resume --checkpoint /checkpoints/alerts

--consumer names one consumer, or a query's consumers by the prefix of their names. A checkpoint
names the consumers of its query. While the pause lasts, the query waits, logs when the pause ends,
and reads nothing in another way. After the pause the query goes on by itself. It looks for a pause
once a second, before a batch. Tasks that read without the consumer at that time finish first. With
readMode=direct there is no consumer. On a `limits` stream the server forgets a consumer, and its
pause, if no client asks for it for a day. A later pause replaces an earlier one.

Exit status 0: all are paused, or all go on; 1: failed, one line says why; 2: wrong arguments;
3: a consumer to resume was not paused, the output says which.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.inspection.findings import ConsumerState
from pyspark_jetstream.operations.terminal import say, say_json

from .overview import add_consumers, selected
from .program import Parser, seconds

NOT_PAUSED: Final = 3


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    add_consumers(parser)
    parser.add_argument("--for", dest="for_s", type=seconds, metavar="TIME",
        help="length of the pause, such as 10m")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="end the pause, as `resume` does")
    parser.add_json("one JSON document a consumer, one a line")
    parser.add_connection()


def run(given: argparse.Namespace) -> int:
    """Pauses, or resumes; the exit status, as the help says."""
    if given.resume is (given.for_s is not None):
        given.parser.error("expected --for, or --resume")
    with selected(given) as (js, consumers):
        until = None if given.resume else datetime.now(UTC) + timedelta(seconds=given.for_s)
        for each in consumers:
            _pause(js, each, until, given.json)
    return 0 if until or all(each.paused_until for each in consumers) else NOT_PAUSED


def _pause(js: JetStream, before: ConsumerState, until: datetime | None, as_json: bool) -> None:
    """Pauses one consumer, or lets it go on, and says so."""
    now = js.pause(before.stream, before.name, until)
    if as_json:
        facts = {
            "stream": before.stream,
            "consumer": before.name,
            "paused_until": now or None,
            "before": before.paused_until or None,
        }
        say_json(facts, indent=None)
        return
    was = f"was paused until {before.paused_until}" if before.paused_until else "was not paused"
    say(f"{before.stream} {before.name}: {f'paused until {now}' if now else 'goes on'}, {was}")
