"""
Subject partitions: which messages of which stream are partition p of N.

Owns the one concept behind both layouts of the design: a `SubjectPartition` is a stream and, in
the *filtered* layout, a filter on it. In the *streams* layout the stream itself is the partition.
Several filters in `subject` are a filtered layout, too: each is a partition, in their order.
Must not know: offsets, consumers, Spark.

Where a stream's own configuration places a `partition(N, …)` transform, the layout follows it, and
options that say otherwise are an error: reading with the wrong N would silently mix partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import subjects
from ..errors import OptionError
from ..mapping.rule import find_partition
from .options import StreamOptions

__all__ = ["Layout", "SubjectPartition", "resolve_layout"]


@dataclass(frozen=True, slots=True)
class SubjectPartition:
    """Partition `index`: the messages of `stream` that match `filter` (all, when it is None)."""

    index: int
    stream: str
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """All partitions of a query, by index."""

    partitions: tuple[SubjectPartition, ...]
    partition_subject: str | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[SubjectPartition]:
        return iter(self.partitions)

    @property
    def streams(self) -> tuple[str, ...]:
        """The distinct streams, in the order of their partitions."""
        return tuple(dict.fromkeys(partition.stream for partition in self.partitions))

    @property
    def shares_stream(self) -> bool:
        """Whether its partitions are filters on one stream, which one read could serve."""
        several = len(self) > 1 and len(self.streams) == 1
        return self.partition_subject is not None or several

    @property
    def union_filter(self) -> str | None:
        """One filter that matches every partition of a template, or the only one's."""
        if self.partition_subject is not None:
            return subjects.partition_wildcard(self.partition_subject)
        return self.partitions[0].filter

    def filters(self, index: int | None) -> tuple[str | None, ...]:
        """
        The filters that hold partition `index`, or with None all that share a stream; no message
        matches two of them. A filter of None matches all.
        """
        if index is not None:
            return (self.partitions[index].filter,)
        if self.partition_subject is not None:
            return (self.union_filter,)
        return tuple(partition.filter for partition in self)

    @property
    def named_filters(self) -> tuple[str, ...]:
        """Where `subject` has several filters, these."""
        if self.partition_subject is not None or len(self) == 1:
            return ()
        return tuple(p.filter for p in self if p.filter is not None)

    def beginning(self, index: int | None) -> str:
        """What every subject of partition `index` begins with; "" when nothing is known."""
        of = self.partitions[index].filter if index is not None else None
        return subjects.literal_beginning(of) if of is not None else ""

    def is_told_by_beginning(self, index: int | None) -> bool:
        """Whether all subjects of the stream with that beginning are partition `index`'s."""
        of = self.partitions[index].filter if index is not None else None
        return of is not None and of == f"{self.beginning(index)}{subjects.REST}"

    def classifier(self) -> Callable[[str], int | None] | None:
        """
        Subject → partition index (None for a subject of no partition), for reads that see a
        stream's subjects unfiltered; None when every message belongs to the one partition.
        """
        if self.partition_subject is None:
            only = [(p.index, subjects.matcher(p.filter)) for p in self if p.filter is not None]
            if not only:
                return None
            return lambda subject: next((index for index, match in only if match(subject)), None)
        inside = subjects.matcher(subjects.partition_wildcard(self.partition_subject))
        at = subjects.partition_token(self.partition_subject)
        known = {str(partition.index): partition.index for partition in self.partitions}

        def classify(subject: str) -> int | None:
            return known.get(subject.split(".")[at]) if inside(subject) else None

        return classify


def _transforms(config: Mapping[str, Any]) -> Iterator[str]:
    """Destinations of the subject transforms a stream applies to what it stores."""
    own = config.get("subject_transform") or {}
    if own.get("dest"):
        yield own["dest"]
    for source in config.get("sources") or []:
        for transform in source.get("subject_transforms") or []:
            if transform.get("dest"):
                yield transform["dest"]


def resolve_layout(options: StreamOptions, configs: Mapping[str, Mapping[str, Any]]) -> Layout:
    """
    The layout that options and the stream's configuration agree on.

    `configs` are stream configurations by name; the streams layout needs none.

    Raises:
        OptionError: Options contradict a `partition(N, …)` transform of the stream.
    """
    if "{partition}" in options.stream:
        return Layout(
            tuple(
                SubjectPartition(p, options.stream.replace("{partition}", str(p)))
                for p in range(options.partitions or 1)
            )
        )
    count, template = options.partitions, options.partition_subject
    derived: tuple[int, int] | None = None
    if not options.subjects:
        for destination in _transforms(configs.get(options.stream, {})):
            partitioning = find_partition(destination)
            if partitioning is None:
                continue
            n, pattern = partitioning
            if derived is not None and derived != (n, subjects.partition_token(pattern)):
                raise OptionError(
                    "partitions",
                    f"stream '{options.stream}' has transforms that disagree on its partitions,"
                    f" such as '{destination}'; name the ones to read with partitions and"
                    " partitionSubject, or read it as one with subject",
                )
            derived = (n, subjects.partition_token(pattern))
            if count is not None and count != n:
                raise OptionError(
                    "partitions",
                    f"stream '{options.stream}' maps to '{destination}', which makes {n}"
                    f" partitions, not {count}; leave the option out or make it {n}",
                )
            if template is not None and subjects.partition_token(
                template
            ) != subjects.partition_token(pattern):
                raise OptionError(
                    "partitionSubject",
                    f"'{template}' has the partition in another token than '{destination}', the"
                    f" transform of stream '{options.stream}'; '{pattern}' would fit",
                )
            count, template = n, template or pattern
    if count is not None and count > 1 and template is None:
        raise OptionError(
            "partitions",
            f"stream '{options.stream}' has no partition() transform to follow; say where the"
            " number stands with partitionSubject='….{partition}.>', or read one stream a partition"
            " with stream='…{partition}'",
        )
    if template is None:
        wanted = options.subjects or (None,)
        return Layout(tuple(SubjectPartition(p, options.stream, f) for p, f in enumerate(wanted)))
    return Layout(
        tuple(
            SubjectPartition(p, options.stream, subjects.partition_filter(template, p))
            for p in range(count or 1)
        ),
        template,
    )
