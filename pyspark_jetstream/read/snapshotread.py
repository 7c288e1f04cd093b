"""
Fetching the messages of a snapshot's plan, or saying which are gone.

A task has subjects and sequences. Where they lie close it reads all between them by batched direct
get and keeps its own; what is left it gets one by one, by sequence. So whoever answers, and
whatever was written or deleted since the plan, a row is the planned message or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from ..client.connection import Client
from ..client.jetstream import JetStream
from ..errors import SnapshotLossError
from ..fetch.call import DirectCall
from ..fetch.dataloss import report_loss
from ..fetch.decoding.rows import RowBuilder
from ..fetch.directcalls import DirectCalls, record_batch
from ..fetch.directget import read_direct
from ..fetch.layout import DirectRead, Layout
from ..tasks.shape import numbered
from . import snapshotplan

_ONE_BY_ONE: Final = 10_000
"""Messages of a record batch that are got one by one, at the most."""

_BATCH_BYTES: Final = 32 << 20
"""Upper bound of a batch's bytes, as far as they can be told from the batches before."""


@dataclass(frozen=True, slots=True)
class PickRead(DirectRead):
    """Planned messages of a stream (`snapshotplan.pack`), as of the sequence `end`."""

    plan: bytes = field(kw_only=True)
    layout: Layout = field(kw_only=True)
    created: str = field(kw_only=True)
    """Creation time of the stream."""

    def __repr__(self) -> str:
        return f"<PickRead {self.stream} as of {self.end}, {len(self.plan)} bytes of plan>"

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        batches = read_picks(client, self)
        classify = self.layout.classifier() if self.partition is None else None
        return batches if classify is None else numbered(batches, "subject", classify)


def read_picks(client: Client, read: PickRead) -> Iterator[pa.RecordBatch]:
    """
    The planned messages, markers among them; the column `partition` is 0 where subjects decide.

    Raises:
        SnapshotLossError: Some left the stream since the plan was made (`failOnDataLoss`).
        ReadTimeoutError: No progress within `requestTimeout`.
    """
    plan = snapshotplan.unpack(read.plan)
    if JetStream(client).stream_info(read.stream).created != read.created:
        _report(read, plan.num_rows, plan, "the stream was made anew")
        return
    fetched: list[pa.Array] = []
    wanted = plan["sequence"].combine_chunks()
    if snapshotplan.is_dense(plan["sequence"]):
        between = replace(read, start=wanted[0].as_py() - 1, end=wanted[-1].as_py())
        for batch in read_direct(client, between, RowBuilder.of(read, only=wanted)):
            fetched.append(batch.column("sequence"))
            yield batch
    calls = DirectCalls(client, read.stream)
    builder = RowBuilder.of(read)
    gone = [plan.slice(0, 0)]
    left = snapshotplan.missing(plan, fetched)
    low, maximum = 0, max(1, _BATCH_BYTES // client.connection.max_payload)
    while low < left.num_rows:
        part = left.slice(low, maximum)
        low += maximum
        got = calls.each([DirectCall(seq=sequence) for sequence in part["sequence"].to_pylist()])
        gone.append(part.filter(pa.array([message is None for message in got], pa.bool_())))
        there = [message for message in got if message is not None]
        if there:
            largest = max(len(message.data) for message in there)
            maximum = max(1, min(_ONE_BY_ONE, _BATCH_BYTES // max(1, largest)))
            batch = record_batch(builder, there)
            yield batch
    lacking = pa.concat_tables(gone)
    if lacking.num_rows:
        _report(
            read,
            plan.num_rows,
            lacking,
            "replaced, deleted, purged or expired; keep more per subject (max_msgs_per_subject), or"
            " leave such subjects out with failOnDataLoss=false",
        )


def _report(read: PickRead, planned: int, gone: pa.Table, why: str) -> None:
    names = gone["subject"].drop_null().to_pylist()
    if not names:  # a plan of more subjects than it names
        some = ", ".join(map(str, gone["sequence"][:10].to_pylist()))
        why = f"{why}; the first ones of them by sequence: {some}"
    error = SnapshotLossError(
        read.stream,
        0,
        f"{gone.num_rows} of {planned} messages of the snapshot as of sequence {read.end} left"
        f" the stream before they were read: {why}",
        tuple(names),
    )
    report_loss(error, read.fail_on_data_loss)
