"""
Lets a stopped streaming query write a batch and all later ones again; changes checkpoint and
ledger.

    pyspark-jetstream rewind --checkpoint /checkpoints/alerts --batch 41
    pyspark-jetstream rewind --checkpoint /checkpoints/alerts --accept

Use this if a server has lost rows that were written. A server that loses power, or whose store is
replaced by an older copy, loses the end of its streams. The ledger (exactlyOnce) and Spark's
checkpoint still call those rows committed. The query's TakenBackError names the batch. Stop the
query, run this command, and start the query.

Batch 41 is read again as it was planned. Its rows that are still in their streams are left out.
Later batches are planned again, with other ids. If one stream has lost more than another, rows of
later batches may still be in the other one. These rows are then stored twice. The command refuses
while a stream still knows message ids of the last duplicate window, because the server would drop
the lost rows as duplicates. The source must still have the messages. Spark keeps the last 100
batches (spark.sql.streaming.minBatchesToRetain).

With --accept nothing is written again. The query goes on after the last batch that the checkpoint
or the ledger has committed, with the rows that are stored.

The command refuses if the query writes meanwhile. It cannot see a query that runs and has nothing
to write: the query's next batch fails with a TakenBackError. So stop the query first.

No file of the checkpoint is deleted. The files of later batches are moved to rewound-1 in it, or
rewound-2 and so on. If the command is killed, run it again. With the option standby, run
`nats kv del SPARK_STANDBY <stream>.<consumer>` as well, or the query goes on where it was.

Exit status 0: done; 1: failed, one line says why; 2: wrong arguments.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.operations.inspection.checkpoints import (
    LocalDirectory,
    checkpoint_path,
    read_checkpoint,
)
from pyspark_jetstream.operations.terminal import say, say_json
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from .program import Parser, connected

_OF_BATCH: Final = re.compile(r"\.?(\d+)(\.crc)?")
"""A batch's file in `offsets` or `commits`, or its checksum."""


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    add = parser.add_argument
    add("--checkpoint", metavar="DIR", required=True,
        help="the query's checkpointLocation: a local path, or file://")  # fmt: skip
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--batch", metavar="N", type=int, help="the first batch to write again")
    which.add_argument("--accept", action="store_true", help="go on with the rows that are stored")
    add("--force", action="store_true", help="go on although others have just written")
    parser.add_json()
    parser.add_connection()


def run(given: argparse.Namespace) -> int:
    """Sets the query back, or lets it go on; the exit status, as the help says."""
    path = checkpoint_path(given.checkpoint)
    done = _accept(path, given) if given.accept else _rewind(path, given)
    if given.json:
        say_json(done)
        return 0
    if given.accept:
        say(f"query {done['query']}: goes on with what its streams hold")
        return 0
    aside = f"; {done['files']} files moved to {done['moved_to']}" if done["files"] else ""
    say(f"query {done['query']}: batch {done['batch']} is next{aside}")
    say("if the query still runs, its next batch fails: stop the query, and run this again")
    if not done["in_ledger"]:
        say(
            "the ledger knows nothing of this query: rows of the batch that are still stored will"
            " be stored twice"
        )
    return 0


def _rewind(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    planned = path / "offsets" / str(given.batch)
    if given.batch < 0 or not planned.is_file():
        raise OptionError("batch", f"the checkpoint does not have it (any more): no file {planned}")
    query = read_checkpoint(LocalDirectory(path)).query
    with connected(given) as client:
        known = Ledger(JetStream(client)).rewind(query, given.batch, given.force)
    files = list(_set_aside(path, given.batch))
    return {
        "query": query,
        "batch": given.batch,
        "files": len(files),
        "moved_to": _aside(path).name if files else None,
        "in_ledger": bool(known),
    }


def _accept(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    checkpoint = read_checkpoint(LocalDirectory(path))
    last = -1 if checkpoint.committed is None else checkpoint.committed
    with connected(given) as client:
        Ledger(JetStream(client)).accept(checkpoint.query, last)
    return {"query": checkpoint.query, "accepted": last}


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
