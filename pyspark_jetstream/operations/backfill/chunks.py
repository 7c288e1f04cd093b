"""
Chunks of a range of sequences, and the request for one.

Rule 1: no I/O. The reads come from the package's own plan of the whole range, so a backfill covers
what one `spark.read` of it would.
Rule 2: chunks are intervals of sequences, which never change; how many messages are in one is
counted once, when it is planned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark_jetstream.fetch.layout import Slice


class Chunk(NamedTuple):
    """`(start, end]` of a stream: of one partition, or of all with `partition=None`."""

    stream: str
    partition: int | None
    start: int
    end: int
    messages: int | None
    """By the server's count; None where it did not count."""


def chunked(reads: Iterable[Slice], maximum: int) -> list[Chunk]:
    """The reads of a plan; those that continue each other as one, up to `maximum` messages."""
    chunks: list[Chunk] = []
    for read in reads:
        new = Chunk(read.stream, read.partition, read.start, read.end, read.expected)
        last = chunks[-1] if chunks else None
        if last is not None and (last.stream, last.partition, last.end) == (
            new.stream,
            new.partition,
            new.start,
        ):
            if last.messages is not None and new.messages is not None:
                together = last.messages + new.messages
                if together <= maximum:
                    chunks[-1] = last._replace(end=new.end, messages=together)
                    continue
        chunks.append(new)
    return chunks


def offsets(chunk: Chunk, streams: Sequence[str]) -> dict[str, str]:
    """
    The options that make a range read of a chunk; `streams` are those of the partitions.

    A partition outside of it is read from `latest` to `latest`, which is nothing.
    """
    mine = {
        index
        for index, stream in enumerate(streams)
        if stream == chunk.stream and chunk.partition in (None, index)
    }
    starts = {str(p): chunk.start + 1 if p in mine else "latest" for p in range(len(streams))}
    ends = {str(p): chunk.end if p in mine else "latest" for p in range(len(streams))}
    return {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
