"""
Circles: a streaming query that reads the rows that it writes.

Spark tells a source nothing of the query that reads it, and a sink nothing of the query's sources.
Both are in the checkpoint: Spark hands its location to the sink, with the other options, and stores
the end of a batch in it before the batch is written. That end says which streams and subjects a
source of this package reads (`readstream.offsets`).

Rule 1: only what is certain: the stream is the same one by the time of its creation, and a row that
it has stored is on a subject that the query reads.
Rule 2: only a checkpoint on this machine is looked at. Nothing depends on it, so a fault in it, or
in a request, is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..client.jetstream import JetStream
from ..foreign import read_json
from ..subjects import REST, matcher
from .exactlyonce.changes import FoundStream


class Reads(NamedTuple):
    """A part of a stream that a query reads."""

    stream: str
    created: str
    filter: str


def read_by(checkpoint: str, batch: int) -> list[Reads]:
    """All that sources of this package read for a batch; empty where its file is elsewhere."""
    split = urlsplit(checkpoint)
    if split.scheme not in ("", "file"):
        return []
    home = Path(unquote(split.path) if split.scheme else checkpoint)
    try:
        lines = (home / "offsets" / str(batch)).read_text().splitlines()[2:]
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:  # in the second of Spark's forms the source's name stands before its offset
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # another source's
            end = read_json(line[line.index("{") :])
            for stream, *filters in end["layout"]["places"]:
                created = end["streams"][stream]
                found += [Reads(stream, created, each) for each in filters or [REST]]
    return found


def circle(
    js: JetStream, reads: Iterable[Reads], written: Iterable[FoundStream]
) -> tuple[str, str] | None:
    """
    A target stream that the query reads, and the subject of a row that it reads there.

    Args:
        written: the target streams, each with where a row is.

    Raises:
        JetStreamError: The stream cannot be asked.
    """
    for to in written:
        filters = {r.filter for r in reads if (r.stream, r.created) == (to.name, to.created)}
        if not filters or not to.first:
            continue
        (row,) = js.messages(to.name, [{"seq": to.first}])
        if row is not None and any(matcher(each)(row.subject) for each in filters):
            return to.name, row.subject
    return None
