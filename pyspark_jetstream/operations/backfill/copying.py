"""The loop over chunks: each that is not done is read, handed to the target, and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..terminal import complain
from .faults import BackfillError, StorageError
from .journal import Journal, Manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .parquet import ParquetTarget
    from .ranges import RangeSource
    from .relay import RelayTarget
    from .snapshots import SnapshotSource

Shown = Callable[[int, int], None]
"""Called for each chunk with the messages it was planned with and its rows."""


ChunkSource: TypeAlias = "RangeSource | SnapshotSource"
"""Rows in chunks that stay the same."""

ChunkTarget: TypeAlias = "ParquetTarget | RelayTarget"
"""Target of chunks, each as a whole."""


def copy(
    spark: SparkSession,
    source: ChunkSource,
    target: ChunkTarget,
    journal: Journal,
    shown: Callable[[int, int], Shown],
) -> Manifest:
    """
    Runs a backfill, or what is left of it, to its end; its manifest.

    Args:
        shown: called once with the messages of all chunks and of those done, before the first.

    Raises:
        BackfillError: It cannot go on; run again, it begins where it stopped.
    """
    manifest = journal.manifest or journal.claim()
    if manifest is None:
        plan = journal.plan
        if not plan:
            plan = source.plan(spark, journal)
            plan = journal.keep_plan(plan | target.check(plan))
        else:
            source.check(plan)
            target.check(plan)
        planned = [chunk["messages"] or 0 for chunk in plan["chunks"]]
        done = sum(planned[number] for number in journal.done)
        complain(
            f"planned {sum(planned):,} messages in {len(planned):,} chunks; {len(journal.done):,}"
            " of them are done. If a run is killed, the next one begins its last chunk again"
            " (--chunk-messages)"
        )
        show = shown(sum(planned), done)
        for number, chunk in enumerate(plan["chunks"]):
            if number not in journal.done:
                source.check(plan)
                entry = target.take(source.rows(spark, journal, number), number)
                try:
                    source.check(plan)
                    entry["missing"] = _missing(source, chunk, entry["rows"])
                    journal.record(number, entry)
                except StorageError:
                    raise  # it may be recorded
                except BackfillError:
                    target.undo(entry)
                    raise
                show(planned[number], entry["rows"])
        target.check(plan)
        journal.check_owner()
        entries = [journal.done[number] for number in range(len(planned))]
        missing = sum(entry["missing"] for entry in entries)
        manifest = journal.finish({**target.result(entries), "missing": missing})
    journal.tidy()
    return manifest


def _missing(source: ChunkSource, chunk: dict[str, Any], rows: int) -> int:
    missing = source.missing(chunk, rows)
    if missing and source.fail_on_data_loss:
        raise BackfillError(
            f"stream '{chunk['stream']}': {missing} of {chunk['messages']} messages of a chunk left"
            " the stream after it was planned and before they were read (replaced, deleted, purged"
            " or expired); with failOnDataLoss=false they are left out and counted in the manifest"
        )
    return missing
