"""
Options of `spark.read`: they choose one of the four batch reads, with typed options.

* a *call*: one direct get as ADR-31 describes it (`sequence`, `lastBySubject`, `nextBySubject`,
  `batch`);
* a *snapshot*: the last message of every subject at one point (`multiLast`);
* a *bucket*: a Key-Value bucket as a table (`bucket`);
* else a *range* of sequences or time.

Options of one that are given to another are an `OptionError`, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .. import values as value_of
from ..errors import OptionError
from ..fetch.options import StreamOptions, ending_of, one_stream, stream_values
from ..option import Option, Values, exclusive, needs, parsed, refuse, table
from ..subjects import bucket_prefix
from ..values import LATEST, Moment, Starting, stream_name

_BOUNDS: Final = ("upToSequence", "upToTime")
_RANGE: Final = ("startingOffsets", "endingOffsets", "endingTimestamp")
_SPLITS: Final = ("minPartitions", "maxRecordsPerPartition")
_LAYOUT: Final = ("partitions", "partitionSubject")
_CALLS: Final = ("sequence", "lastBySubject", "nextBySubject", "batch")


BATCH_OPTIONS: Final = table(
    "range",
    Option("endingTimestamp", "", value_of.at_moment, "",
        "End before this time: RFC 3339, or `-10m`."),
    Option("multiLast", "multi_last", value_of.whole_filters, "",
        "Take a snapshot: the last message of every subject that matches. The filters are a comma"
        " list.",
        absent=()),
    Option("upToSequence", "up_to_sequence", value_of.positive, "",
        "Take the snapshot, or the bucket, as it was at this sequence."),
    Option("upToTime", "up_to_time", value_of.moment, "",
        "Take the snapshot, or the bucket, as it was just before this time: RFC 3339, or `-10m`."),
    Option("sequence", "sequence", value_of.positive, "",
        "Read the message with this sequence. With `batch` or `nextBySubject` the read begins"
        " there."),
    Option("lastBySubject", "last_by_subject", value_of.one_filter, "",
        "Read the last message of a subject or filter."),
    Option("nextBySubject", "next_by_subject", value_of.one_filter, "",
        "Read the first message of a subject or filter, from `sequence` or `startingTimestamp`"
        " on."),
    Option("batch", "batch", value_of.positive, "",
        "Largest number of messages of one direct get. Without this option the read has one"
        " message."),
    Option("maxBytes", "max_bytes", value_of.size, "",
        "End a `batch` at the message with which it reaches this size."),
    Option("history", "", value_of.boolean, "false",
        "Read every revision that the bucket holds, instead of the latest value of each key."),
    Option("dropMarkers", "drop_markers", value_of.boolean, "",
        "Leave out the markers of deletes and expired keys. The default is `true` only for the"
        " latest values of a bucket.",
        absent=False),
)  # fmt: skip
"""The options of batch reads alone."""


@dataclass(frozen=True, slots=True)
class RangeOptions(StreamOptions):
    """A range of sequences or of time."""

    ending: Starting
    drop_markers: bool


@dataclass(frozen=True, slots=True)
class CallOptions(StreamOptions):
    """One direct get; the fields are those of its request."""

    sequence: int | None
    last_by_subject: str | None
    next_by_subject: str | None
    start_time: Moment | None
    batch: int | None
    max_bytes: int | None
    multi_last: tuple[str, ...]
    up_to_sequence: int | None
    up_to_time: Moment | None
    drop_markers: bool


@dataclass(frozen=True, slots=True)
class SnapshotOptions(StreamOptions):
    """The last message of every subject that matches one of `filters`, at one point."""

    filters: tuple[str, ...]
    up_to_sequence: int | None
    up_to_time: Moment | None
    drop_markers: bool


def read_options(
    values: Values,
) -> RangeOptions | SnapshotOptions | CallOptions:
    """
    Options of `spark.read`, of their typed values.

    Raises:
        OptionError: Options that do not go together.
    """
    exclusive(values, *_BOUNDS)
    if "bucket" in values:
        return _bucket(values)
    for name in ("keys", "history"):
        needs(values, name, "bucket")
    if any(name in values for name in _CALLS):
        return _call(values)
    needs(values, "maxBytes", "batch")
    if "multiLast" in values:
        return _snapshot(values)
    refuse(values, "needs option 'multiLast' or 'bucket' too", *_BOUNDS)
    common = stream_values(values)
    exclusive(values, "endingOffsets", "endingTimestamp")
    return values.fill(RangeOptions, **common, ending=ending_of(values))


def _snapshot(values: Values) -> SnapshotOptions:
    refuse(values, "contradicts option 'multiLast'", "subject", "startingTimestamp", *_RANGE)
    common = stream_values(values)
    many = common["several"] is not None or "{partition}" in common["stream"]
    if many and "upToSequence" in values:
        raise OptionError("upToSequence", "names a sequence of one stream; use upToTime")
    return values.fill(SnapshotOptions, **common, filters=values["multiLast"])


def _bucket(values: Values) -> RangeOptions | SnapshotOptions:
    """A Key-Value bucket (ADR-8): its latest values are a snapshot, its history is a range."""
    refuse(values, "contradicts option 'bucket'", "stream", "subject", "includeCount",
           "includeData", "multiLast", "maxBytes", "startingTimestamp", "streamPattern", *_CALLS,
           *_RANGE, *_LAYOUT)  # fmt: skip
    filters = tuple(f"{bucket_prefix(values['bucket'])}{key}" for key in values["keys"])
    values = values.also(stream=f"KV_{values['bucket']}")
    if not values["history"]:
        drops = values["dropMarkers"] if "dropMarkers" in values else True
        common = stream_values(values)
        return values.fill(SnapshotOptions, **common, filters=filters, drop_markers=drops)
    subjects = parsed("keys", value_of.disjoint_filters, ",".join(filters))
    last = values["upToSequence"]
    ends = dict.fromkeys(range(len(subjects)), last) if last is not None else {}
    ending = Starting(LATEST, ends, values["upToTime"])
    values = values.also(subject=subjects)
    return values.fill(RangeOptions, **stream_values(values), ending=ending)


def _call(values: Values) -> CallOptions:
    one_stream(values, "a direct get")
    kind = next(name for name in ("multiLast", *_CALLS) if name in values)
    why = f"contradicts option '{kind}'"
    refuse(values, why, "subject", *_RANGE, *_SPLITS)
    needs(values, "maxBytes", "batch")
    exclusive(values, "lastBySubject", "nextBySubject")
    if kind == "multiLast":
        calls = ("sequence", "lastBySubject", "nextBySubject", "startingTimestamp", "maxBytes")
        refuse(values, why, *calls)
    else:
        refuse(values, why, *_BOUNDS)
        exclusive(values, "sequence", "startingTimestamp")
    if "lastBySubject" in values:
        why = "contradicts option 'lastBySubject'"
        refuse(values, why, "sequence", "startingTimestamp", "batch")
    elif kind == "batch" and "startingTimestamp" not in values:
        raise OptionError(
            "batch", "needs where to begin: sequence, startingTimestamp, nextBySubject or multiLast"
        )
    common = stream_values(values)
    parsed("stream", stream_name, values["stream"].replace("{partition}", "/"))
    return values.fill(CallOptions, **common, start_time=common["starting"].moment)
