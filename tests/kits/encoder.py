"""What the tests of rows as messages share: batches of rows, their frames, mapped subjects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature

import pyarrow as pa

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.publish.lanes.flight import Publishes, framed
from pyspark_jetstream.write.rows import MessageBuilder

from .options import parse_sink

TEXTS = pa.map_(pa.string(), pa.string())
LISTS = pa.map_(pa.string(), pa.list_(pa.string()))

BUILDERS = set(signature(MessageBuilder).parameters) - {"options"}
"""What a builder is told beside the options of its rows."""


def builder(**arguments) -> MessageBuilder:
    """A builder of messages, by its own arguments and options of its rows."""
    own = {name: arguments.pop(name) for name in BUILDERS & arguments.keys()}
    options = parse_sink({})
    priorities = arguments.pop("priorities", options.priorities)
    rows = replace(options.rows, **arguments)
    return MessageBuilder(replace(options, rows=rows, priorities=priorities), **own)


def plain_builder(**arguments) -> MessageBuilder:
    """One that takes any subject, whether a stream is known to take it or not."""
    return builder(require_stream=False, **arguments)


class Encoder:
    """Builds messages and frames them with PubAcks to `<inbox>.<ordinal>`."""

    def __init__(self, inbox: str, **arguments) -> None:
        self.inbox, self.builder, self.offered = inbox, builder(**arguments), 0

    @property
    def rows(self) -> int:
        return self.builder.rows

    def encode(self, batch: pa.RecordBatch) -> Publishes:
        messages = self.builder.build(batch)
        self.offered += len(messages)
        return framed(messages, self.offered - len(messages), self.inbox)


def frames(encoder: Encoder, batch: pa.RecordBatch) -> list[bytes]:
    """The frame of each row, and a check that each goes where the block says."""
    block = encoder.encode(batch)
    found = [bytes(block.slice(i, i + 1)) for i in range(block.first, block.end)]
    for subject, one in zip(block.messages.subject, found, strict=True):
        assert one.split(b" ")[1] == subject.as_py()
    assert b"".join(found) == bytes(block.wire[block.offsets[0] : block.offsets[-1]])
    return found


def batch(count: int = 1, **columns) -> pa.RecordBatch:
    """A batch with data unless it is given."""
    return pa.record_batch({"data": pa.array(["x"] * count, pa.string())} | columns)


def map_all(
    mapping: SubjectMapping, subjects: Sequence[str], identities: Sequence[bytes] | None = None
) -> list[str | None]:
    """Each of these, mapped together; ValueError with the reason if one becomes no subject."""
    column = pa.array(subjects, pa.string()).dictionary_encode()
    drawn_by = None if identities is None else pa.array(identities, pa.binary())
    mapped = mapping.map_rows(column, drawn_by)
    if mapped.faults is not None:
        raise ValueError(mapped.faults.drop_null()[0].as_py())
    results: list[str | None] = mapped.subjects.to_pylist()
    return results


def map_one(mapping: SubjectMapping, subject: str) -> str | None:
    """One subject, mapped alone."""
    return map_all(mapping, [subject])[0]
