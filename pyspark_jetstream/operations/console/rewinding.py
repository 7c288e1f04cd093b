"""
Lets a stopped streaming query write a batch, and all behind it, again: checkpoint and ledger.

    pyspark-jetstream rewind --checkpoint /checkpoints/alerts --batch 41
    pyspark-jetstream rewind --checkpoint /checkpoints/alerts --accept

For who has lost rows that were written: a server that loses power, or whose store is replaced by an
older copy, takes from the end of its streams what the ledger (exactlyOnce) and Spark's checkpoint
call committed. The query's TakenBackError names the batch. Stop the query, run this, start it.

Batch 41 is read again as it was planned, and of its rows those are left out that are still in their
streams. What comes behind it is planned anew, with other ids: rows of later batches that are still
in a stream, because another one has lost more, are there twice then. It is refused while a stream
still knows message ids of the last duplicate window: rows that are gone would be dropped as stored.
Sources must still have the messages. Spark keeps the last 100 batches
(spark.sql.streaming.minBatchesToRetain).

With --accept nothing is written again: the query goes on behind the last batch that the checkpoint
or the ledger has committed, with what is there.

A query that writes meanwhile is refused. One that runs and has nothing to write cannot be seen from
outside: its next batch fails with a TakenBackError that says so. So look first that it has stopped.

Nothing is deleted of the checkpoint: the files of later batches are moved to rewound-1 in it, or
rewound-2 and so on. Killed, it is run again. With the option standby, `nats kv del SPARK_STANDBY
<stream>.<consumer>` as well, or the query goes on where it was.

Exit status 0: done; 1: failed, why in one line; 2: wrong arguments.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import JetStreamError, OptionError
from pyspark_jetstream.operations.inspection.checkpoints import (
    LocalDirectory,
    checkpoint_path,
    read_checkpoint,
)
from pyspark_jetstream.operations.terminal import complain, say
from pyspark_jetstream.write.ledger import Ledger

from .connecting import add_connection, connection_words, described, parsed

__all__ = ["main", "parser"]

COMMAND: Final = "pyspark-jetstream rewind"

FAILED: Final = 1
USAGE: Final = 2

_OF_BATCH: Final = re.compile(r"\.?(\d+)(\.crc)?")
"""A batch's file in `offsets` or `commits`, or its checksum."""


def parser(program: str = COMMAND) -> argparse.ArgumentParser:
    """The arguments."""
    command = described(__doc__, COMMAND, program, allow_abbrev=False)
    add = command.add_argument
    add("--checkpoint", metavar="DIR", required=True,
        help="the query's checkpointLocation: a local path, or file://")  # fmt: skip
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--batch", metavar="N", type=int, help="the first batch to write again")
    which.add_argument("--accept", action="store_true", help="go on with what is there")
    add("--force", action="store_true", help="though others have just written to the streams")
    add_connection(command)
    return command


def main(arguments: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """The exit status, as the help says."""
    given = parsed(parser(program), arguments)
    try:
        _rewind(given)
    except OptionError as error:
        complain(error)
        return USAGE
    except (JetStreamError, OSError) as error:
        complain(error)
        return FAILED
    return 0


def _rewind(given: argparse.Namespace) -> None:
    path, batch = checkpoint_path(given.checkpoint), given.batch
    if given.accept:
        _accept(path, given)
        return
    planned = path / "offsets" / str(batch)
    if batch < 0 or not planned.is_file():
        raise OptionError("batch", f"the checkpoint does not have it (any more): no file {planned}")
    query = read_checkpoint(LocalDirectory(path)).query
    client = Client(parse_connection(connection_words(vars(given))), at_start=True)
    try:
        known = Ledger(JetStream(client)).rewind(query, batch, given.force)
    finally:
        client.close()
    moved = list(_set_aside(path, batch))
    aside = f"; {len(moved)} files moved to {_aside(path).name}" if moved else ""
    say(f"query {query}: batch {batch} is next{aside}")
    say("if it still runs, stop it now and run this again: its next batch fails")
    if not known:
        say("the ledger knows nothing of this query: what is stored of the batch is stored twice")


def _accept(path: Path, given: argparse.Namespace) -> None:
    checkpoint = read_checkpoint(LocalDirectory(path))
    last = -1 if checkpoint.committed is None else checkpoint.committed
    client = Client(parse_connection(connection_words(vars(given))), at_start=True)
    try:
        Ledger(JetStream(client)).accept(checkpoint.query, last)
    finally:
        client.close()
    say(f"query {checkpoint.query}: goes on with what its streams hold")


def _set_aside(path: Path, batch: int) -> Iterator[Path]:
    """
    Moves what says that the batch is done, and that later ones were begun; commits before offsets,
    the last first, so that Spark finds a checkpoint it could have written, whenever this ends.
    """
    target = _aside(path, new=True)
    for folder, first in (("commits", batch), ("offsets", batch + 1)):
        there = path / folder
        files = [(match, file) for file in (there.iterdir() if there.is_dir() else ())
                 if (match := _OF_BATCH.fullmatch(file.name)) is not None]  # fmt: skip
        later = [(int(match[1]), file) for match, file in files if int(match[1]) >= first]
        for _, file in sorted(later, reverse=True):
            (target / folder).mkdir(parents=True, exist_ok=True)
            yield file.rename(target / folder / file.name)


def _aside(path: Path, new: bool = False) -> Path:
    """The last `rewound-<n>` in the checkpoint, or the one that comes next."""
    numbers = [int(found.name.rpartition("-")[2]) for found in path.glob("rewound-[0-9]*")]
    return path / f"rewound-{max(numbers, default=0) + new}"
