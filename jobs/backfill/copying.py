"""From chunk to chunk: what is not done yet is read, handed to the target, and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .faults import BackfillError
from .journal import Entry, Journal, Manifest, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Manifest", "Shown", "Source", "Target", "copy"]

Shown = Callable[[int, int], None]
"""Called for each chunk with its weight and its rows."""


class Source(Protocol):
    """Rows in chunks that stay the same."""

    def plan(self, spark: SparkSession, journal: Journal) -> Plan:
        """Pins what is read and cuts it into chunks; asked once in the life of a backfill."""

    def check(self, plan: Plan) -> None:
        """
        Raises:
            BackfillError: The streams are not those of the plan any more.
        """

    def weight(self, chunk: dict[str, Any]) -> int:
        """How much of the work a chunk is, about."""

    def rows(self, spark: SparkSession, journal: Journal, number: int) -> DataFrame:
        """The rows of a chunk."""


class Target(Protocol):
    """Where chunks go, each as a whole."""

    def check(self, plan: Plan) -> None:
        """
        Raises:
            UsageError: The target does not fit what is read.
        """

    def take(self, rows: DataFrame, number: int) -> Entry:
        """Takes a chunk; what an earlier run left of it is dealt with here."""

    def result(self, entries: list[Entry]) -> dict[str, Any]:
        """What the manifest says of the chunks; drops what belongs to none."""

    def faults(self, manifest: Manifest) -> list[str]:
        """Reads everything again and compares it with the manifest; what differs."""


def copy(
    spark: SparkSession,
    source: Source,
    target: Target,
    journal: Journal,
    shown: Callable[[int, int], Shown],
) -> Manifest:
    """
    Runs a backfill, or what is left of it, to its end; its manifest.

    Args:
        shown: called once with the weight of all and of what is done, before the first chunk.

    Raises:
        BackfillError: It cannot go on; run again, it begins where it stopped.
    """
    if journal.manifest is None:
        journal.claim()
        plan = journal.plan
        if plan is None:
            plan = source.plan(spark, journal)
            target.check(plan)
            plan = journal.begin(plan)
        else:
            source.check(plan)
            target.check(plan)
        weights = [source.weight(chunk) for chunk in plan["chunks"]]
        show = shown(sum(weights), sum(weights[number] for number in journal.done))
        for number, weight in enumerate(weights):
            if number not in journal.done:
                entry = target.take(source.rows(spark, journal, number), number)
                journal.record(number, entry)
                show(weight, entry["rows"])
        journal.finish(target.result([journal.done[number] for number in range(len(weights))]))
    manifest = journal.manifest
    if manifest is None:
        raise BackfillError("no manifest after the last chunk; report this")
    journal.tidy()
    return manifest
