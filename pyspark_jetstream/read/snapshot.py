"""
`spark.read` with `multiLast`: the last message of every subject, all as of one sequence.

The plan is made on the driver (`snapshotplanner`), so every task of a read, and every attempt of a
task, delivers the messages of the same snapshot (`snapshotread`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from ..client.connection import Client, borrow
from ..fetch.decoding.rows import Texts
from ..fetch.layout import Layout
from ..fetch.survey import Survey, check_direct, check_subjects
from ..tasks.rows import ReadTask, SentAsRows, TaskRows
from . import snapshotplan
from .lasts import by_sequence
from .narrowing import Interval, Narrowing
from .options import SnapshotOptions
from .pushdown import NarrowedReader, TakesFilters
from .snapshotplanner import Snapshots, bound
from .snapshotread import PickRead


class JetStreamSnapshotReader(SentAsRows, NarrowedReader):
    """Reads the last message of every subject at one point."""

    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options, options.drop_markers)

    def partitions(self) -> Sequence[ReadTask]:
        """
        The tasks of the read.

        Raises:
            OptionError: The bound lies in the future, a filter matches nothing that the stream
                takes, or direct get is off.
            SnapshotLossError: The stream no longer holds what it held then (`failOnDataLoss`).
        """
        options = self._options
        with borrow(options.connection, at_start=True) as client:
            survey = Survey(client, options)
            survey.require((2, 12), "a snapshot (multi-subject direct get)")
            layout, infos = survey.layout, survey.streams()
            for info in infos.values():
                check_direct(info)
            if len(infos) == 1 and options.bucket is None:
                check_subjects(survey.js, info, "multiLast", options.filters)
            tasks: list[ReadTask] = []
            at = {} if layout.partition_subject else {p.stream: p.index for p in layout}
            for stream in layout.streams:
                part, number = layout.within(at[stream]) if stream in at else (layout, None)
                mine = None if number is None else options.number(stream, number)
                if mine is None or mine in self.narrowing.partitions:
                    tasks += self._tasks(client, stream, part, number)
            return tasks

    def _tasks(
        self, client: Client, stream: str, layout: Layout, partition: int | None
    ) -> Iterator[ReadTask]:
        """
        The plan of a stream's snapshot, cut for tasks, as far as the query needs it.

        Raises:
            SubjectDecodeError: A subject of it is no UTF-8 (`onInvalidSubject`).
        """
        options, narrowing = self._options, self.narrowing
        filters = [filter_ for filter_ in narrowing.within(options.filters) if filter_ is not None]
        if not filters:
            return
        snapshots = Snapshots(client, stream, filters, options.fail_on_data_loss)
        snapshot = snapshots.take(options.up_to_sequence, options.up_to_time)
        classify = layout.classifier() if partition is None else None
        texts = Texts(stream, options.on_invalid_subject)
        plan, rows = by_sequence(snapshotplan.PLANNED), 0
        for found in snapshot.last:
            wanted = _wanted(snapshotplan.plan_of(found, texts), classify, narrowing)
            plan.add(wanted)
            rows += wanted.num_rows
        for piece in snapshotplan.split(
            plan, rows, options.cut.min_partitions, options.cut.max_records_per_partition
        ):
            work = PickRead(
                stream=stream,
                filter=None,
                start=0,
                end=snapshot.sequence,
                expected=None,
                plan=snapshotplan.pack(piece, named=rows <= snapshotplan.NAMED),
                # Markers show in the headers.
                include_headers=options.needs_headers or options.drop_markers,
                fail_on_data_loss=options.fail_on_data_loss,
                layout=layout,
                partition=partition,
                created=snapshot.mark.created,
                on_invalid_subject=options.on_invalid_subject,
            )
            yield ReadTask(options.connection, work)


class FilteredSnapshotReader(TakesFilters, JetStreamSnapshotReader):
    """A snapshot reader that takes the filters of a query."""


def bounds(options: SnapshotOptions) -> dict[str, int]:
    """
    The sequence of each stream that a snapshot with these options would be as of, now.

    Raises:
        OptionError: A bound in the future.
    """
    with borrow(options.connection, at_start=True) as client:
        survey, pins = Survey(client, options), {}
        for stream, info in survey.streams().items():
            past = bound(survey.js, info, options.up_to_sequence, options.up_to_time)
            pins[stream] = info.last_seq if past is None else past
        return pins


def _wanted(
    plan: pa.Table, classify: Callable[[str], int | None] | None, narrowing: Narrowing
) -> pa.Table:
    """The rows of a plan that the query needs."""
    sequences = narrowing.sequences
    if sequences != Interval():
        inside = [sequence in sequences for sequence in plan["sequence"].to_pylist()]
        plan = plan.filter(pa.array(inside, pa.bool_()))
    if classify is not None and narrowing.partitions != Interval():
        codes = [classify(subject) for subject in plan["subject"].to_pylist()]
        inside = [code is not None and code in narrowing.partitions for code in codes]
        plan = plan.filter(pa.array(inside, pa.bool_()))
    return plan
