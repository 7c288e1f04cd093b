"""
Subject partitions: the streams and messages that are partition p of N.

Owns the one concept behind both layouts of the design: a `SubjectPartition` is a stream and, in
the *filtered* layout, a filter on it. In the *streams* layout the stream itself is the partition.
Several filters in `subject` are a filtered layout, too: each is a partition, in their order.
Must not know: offsets, consumers, Spark.

Where a stream's own configuration places a `partition(N, …)` transform, or its metadata says of how
many streams it is one, the layout follows it, and options that say otherwise are an error: reading
with the wrong N would silently mix partitions, or leave some out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .. import subjects
from ..errors import OptionError
from .options import StreamOptions

PARTITIONS: Final = "pyspark-jetstream.partitions"
"""The key in the metadata of a stream that says of how many partitions it is one."""

MAX_PARTITIONS: Final = 65_536
"""Upper bound of partitions; a larger number is none of ours."""


Place = tuple[str, ...]
"""One partition: a stream, or a stream and a filter on it."""


@dataclass(frozen=True, slots=True)
class SubjectPartition:
    """Partition `index`: the messages of `stream` that match `filter` (all, when it is None)."""

    index: int
    stream: str
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A question: how many messages of `filter` are in `(start, end]` of `stream`?"""

    stream: str
    filter: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`(start, end]` of a stream: what one task reads, by whatever way."""

    partition: int | None
    """Partition of the rows; None for those of all partitions."""
    stream: str
    filter: str | None
    """Filter for the server to apply; None to read everything, and drop rows here."""
    start: int
    end: int
    expected: int | None
    """
    Messages in the range when the batch was planned, None where nobody has counted; 0 where none
    need be there.
    """
    include_headers: bool
    fail_on_data_loss: bool
    on_invalid_subject: str = field(default="fail", kw_only=True)
    """Treatment of a message whose subject is no UTF-8 (`onInvalidSubject`)."""

    @staticmethod
    def whole(stream: str, start: int, end: int, headers: bool = False) -> Slice:
        """All that the stream still holds of `(start, end]`, however much that is."""
        return Slice(0, stream, None, start, end, 0, headers, False)


def split_range(start: int, end: int, tasks: int, maximum: int | None) -> list[tuple[int, int]]:
    """
    `(start, end]` as contiguous ranges: at least `tasks` of them, none longer than `maximum`.

    Sequences are split, not messages, so a range may hold fewer messages than its length.
    With `start` 0 they are slices of any sequence of `end` things.
    """
    length = end - start
    if length <= 0:
        return []
    pieces = max(1, tasks)
    if maximum is not None:
        pieces = max(pieces, -(-length // maximum))
    pieces = min(pieces, length)
    cuts = [start + length * i // pieces for i in range(pieces + 1)]
    return list(zip(cuts, cuts[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Layout:
    """All partitions of a query, by index."""

    partitions: tuple[SubjectPartition, ...]
    partition_subject: str | None = None
    is_several: bool = False
    """Whether each partition is a stream by itself, with nothing in common."""

    @classmethod
    def of_streams(cls, names: Iterable[str], is_several: bool = True) -> Layout:
        """A stream each partition: of several, number 0 of its stream; else by their numbers."""
        whole = tuple(SubjectPartition(place, name) for place, name in enumerate(names))
        return cls(whole, is_several=is_several)

    @classmethod
    def of_filters(cls, stream: str, template: str, count: int) -> Layout:
        """Filters on one stream, which a template makes."""
        filters = [subjects.partition_filter(template, p) for p in range(count)]
        return cls(tuple(SubjectPartition(p, stream, f) for p, f in enumerate(filters)), template)

    @property
    def places(self) -> tuple[Place, ...]:
        """Place of each partition, as an offset has it."""
        return tuple((p.stream,) if p.filter is None else (p.stream, p.filter) for p in self)

    def within(self, index: int) -> tuple[Layout, int]:
        """Layout of a partition's stream, and the partition's number there, which its rows have."""
        if not self.is_several:
            return self, index
        return Layout((replace(self.partitions[index], index=0),)), 0

    def __str__(self) -> str:
        if self.is_several:
            return f"several streams, {', '.join(self.streams)}"
        filters = [p.filter for p in self if p.filter is not None]
        of = f" ({', '.join(filters)})" if filters else ""
        count = f"{len(self)} partition{'s' if len(self) > 1 else ''}"
        return f"{count} of stream {', '.join(self.streams)}{of}"

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
    for source in [config.get("mirror") or {}, *(config.get("sources") or [])]:
        for transform in source.get("subject_transforms") or []:
            if transform.get("dest"):
                yield transform["dest"]


_OTHERWISE: Final = "If its transforms disagree, read it as one with subject"


def _partitionings(
    stream: str, configs: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, int, str]]:
    """Transforms of a stream that make partitions: destination, number, and filter of one."""
    for destination in _transforms(configs.get(stream, {})):
        from ..mapping.calls import find_partition  # of streams with transforms alone

        if (found := find_partition(destination)) is not None:
            yield destination, *found


def stream_names(template: str, partitions: int) -> list[str]:
    """The streams of a layout of one stream a partition, by their numbers."""
    return [template.replace("{partition}", str(p)) for p in range(partitions)]


def _noted(config: Mapping[str, Any]) -> int | None:
    """Number of partitions of which a stream is one, by its metadata; None if unsaid."""
    noted = str((config.get("metadata") or {}).get(PARTITIONS, ""))
    return int(noted) if noted.isdecimal() and 0 < int(noted) <= MAX_PARTITIONS else None


def resolve_layout(options: StreamOptions, configs: Mapping[str, Mapping[str, Any]]) -> Layout:
    """
    The layout that options and the stream's configuration agree on.

    `configs` are stream configurations by name; the streams layout needs that of the first.

    Raises:
        OptionError: Options contradict a `partition(N, …)` transform or the metadata of a stream.
    """
    if "{partition}" in options.stream:
        first, *others = stream_names(options.stream, options.partitions or 1)
        noted = _noted(configs.get(first, {}))
        if noted is not None and options.partitions and options.partitions != noted:
            raise OptionError(
                "partitions",
                f"the metadata of stream '{first}' ({PARTITIONS}) says that its layout makes"
                f" {noted} partitions, not {options.partitions}; leave the option out or make it"
                f" {noted}",
            )
        names = stream_names(options.stream, noted) if noted is not None else [first, *others]
        return Layout.of_streams(names, is_several=False)
    count, template = options.partitions or None, options.partition_subject
    if not options.subjects:
        for destination, n, pattern in _partitionings(options.stream, configs):
            if count is not None and count != n:
                raise OptionError(
                    "partitions",
                    f"stream '{options.stream}' maps to '{destination}', which makes {n}"
                    f" partitions, not {count}; leave the option out or make it {n}. {_OTHERWISE}",
                )
            token = subjects.partition_token(pattern)
            if template is not None and subjects.partition_token(template) != token:
                raise OptionError(
                    "partitionSubject",
                    f"'{template}' has the partition in another token than '{destination}', a"
                    f" transform of stream '{options.stream}'; '{pattern}' would fit. {_OTHERWISE}",
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
    return Layout.of_filters(options.stream, template, count or 1)


def stored_keys(bucket: str | None, is_filled: bool, filters: Sequence[str]) -> tuple[str, ...]:
    """Filters; of a bucket that is filled from others its keys have the subjects of those."""
    if bucket is None or not is_filled:
        return tuple(filters)
    own, any_ = subjects.bucket_prefix(bucket), subjects.bucket_prefix("*")
    return tuple(filter_.replace(own, any_, 1) for filter_ in filters)
