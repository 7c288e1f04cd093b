"""Options of every stream read: the stream, its partitions, its start and its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from .. import values as value_of
from ..client.options import ConnectionOptions, connection_options
from ..errors import OptionError
from ..option import Option, Values, exclusive, needs, parsed, refuse, table
from ..values import EARLIEST, LATEST, Starting

_DIRECT_BELOW: Final = 5_000
"""
Messages from which on a task reads its range by a consumer of its own (`directBelow`).

Measured on nats-server 2.15.1: near the server a consumer brings 674,000 rows/s and batched direct
get 473,000, so each row is 0.6 us cheaper by a consumer. To make and delete one takes 3.7 ms in a
cluster of three, where a direct get has its first answer after 0.6 ms: these 3.1 ms are 5,000 rows.
On a single server (0.45 ms) a consumer would pay at once. One number for both, because every
server of a cluster is told of each consumer by a leader that all streams have in common.
"""

READ_OPTIONS: Final = table(
    "stream range",
    Option("stream", "stream", value_of.text, "",
        "Name of the stream. With `{partition}` in the name, each partition has a stream of its"
        " own. A comma list names several streams."),
    Option("streamPattern", "", value_of.stream_pattern, "",
        "Read every stream whose name matches; `*` stands for any characters. A stream that is"
        " made later is read from then on."),
    Option("subject", "subjects", value_of.disjoint_filters, "",
        "Read only messages whose subject matches. Each filter of a comma list is a"
        " partition.",
        absent=()),
    Option("partitions", "", value_of.partition_count, "1",
        "Number N of subject partitions. Without this option the stream says the number, by its"
        " `partition(N, …)` transform or its metadata. The default is for a stream that says"
        " none."),
    Option("partitionSubject", "partition_subject", value_of.partition_subject, "",
        "Filter of one partition, with `{partition}` as a token: `flights.{partition}.>`."),
    Option("bucket", "bucket", value_of.bucket_name, "",
        "Name of a Key-Value bucket. A batch read has the keys with their latest values; a"
        " streaming read has the changes."),
    Option("keys", "", value_of.whole_filters, "",
        "Read only the bucket's keys that match: `user.*.name` or a comma list.",
        absent=(">",)),
    Option("includeHeaders", "include_headers", value_of.boolean, "false",
        "Add the column `headers`."),
    Option("includeData", "include_data", value_of.boolean, "true",
        "Whether rows have the column `data`. With `false` rows have only subjects, times and"
        " headers."),
    Option("includeCount", "include_count", value_of.boolean, "false",
        "Add the column `count`, the sum of the subject's counter. The column is null if the"
        " message has no counter."),
    Option("failOnDataLoss", "fail_on_data_loss", value_of.boolean, "true",
        "Fail if messages have left the stream before they were read."),
    Option("onInvalidSubject", "on_invalid_subject", value_of.choice("fail", "replace", "drop"),
        "fail",
        "Action for a message whose subject is not UTF-8."),
    Option("minPartitions", "min_partitions", value_of.positive, "",
        "Smallest number of tasks. A backlog or a direct read is cut by sequence into at least this"
        " many."),
    Option("maxRecordsPerPartition", "max_records_per_partition", value_of.positive, "",
        "Largest number of messages in a task. A backlog or a direct read is cut by sequence so"
        " that no task has more."),
    Option("directBelow", "direct_below", value_of.count, str(_DIRECT_BELOW),
        "A task with at least this many messages reads a `limits` stream by a consumer of its own."
        " With fewer it uses batched direct get. With `0` a `limits` stream is never read by direct"
        " get."),
    Option("maxPublishDelay", "", value_of.duration, "",
        "Aim for how long a publish into the stream waits for reads of it; where cores are short it"
        " waits longer. The shorter it is, the fewer messages a task asks for at a time, and the"
        " slower is the read. Without this option it is `40ms` while messages are published, and"
        " does not count while nobody publishes."),
    Option("startingOffsets", "starting", value_of.offsets, "earliest",
        "Position of the first message: a word, or JSON of partition to sequence. If several"
        " streams are read, the JSON is by stream."),
    Option("startingTimestamp", "", value_of.at_moment, "",
        "Start at the first message at or after this time: RFC 3339, or `-10m`."),
    Option("endingOffsets", "ending", value_of.offsets, "latest",
        "Position of the last message: a word, or JSON of partition to sequence. If several"
        " streams are read, the JSON is by stream."),
)  # fmt: skip
"""The options of streaming and batch reads."""


@dataclass(frozen=True, slots=True)
class Several:
    """The streams of a read that has several, each a partition."""

    names: tuple[str, ...]
    """In their order; none where a pattern says which."""
    pattern: str = ""

    def __str__(self) -> str:
        return self.pattern or ",".join(self.names)

    @property
    def option(self) -> str:
        """Option by which they are given."""
        return "streamPattern" if self.pattern else "stream"

    def takes(self) -> Callable[[str], bool]:
        """A function that says whether a stream of a name is one."""
        if not self.pattern:
            return frozenset(self.names).__contains__
        pattern = re.compile(re.escape(self.pattern).replace(r"\*", ".*"))
        return lambda name: pattern.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class RowExtent:
    """Messages that become rows, and what rows have of their payloads."""

    include_data: bool
    include_count: bool

    @property
    def needs_headers(self) -> bool:
        """Whether headers tell."""
        return self.include_count


@dataclass(frozen=True, slots=True)
class RangeCut:
    """How ranges are cut into tasks by sequence, where options say it."""

    min_partitions: int | None
    max_records_per_partition: int | None

    def __bool__(self) -> bool:
        return not (self.min_partitions is self.max_records_per_partition is None)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of every read of a stream."""

    connection: ConnectionOptions
    stream: str
    """The name, or `several` as text."""
    subjects: tuple[str, ...]
    """Filters without a subject in common, each a partition; empty for all of the stream."""
    partitions: int | None
    """None where nobody says, and the stream's own transform may."""
    partition_subject: str | None
    include_headers: bool
    extent: RowExtent
    fail_on_data_loss: bool
    on_invalid_subject: str
    """`fail`, `replace` or `drop`."""
    cut: RangeCut
    direct_below: int
    """Messages from which on a task reads by a consumer of its own (`limits`)."""
    starting: Starting
    several: Several | None
    """None where there is one stream, or one a partition."""
    bucket: str | None
    """The Key-Value bucket whose stream it is; None where it is read as a stream."""

    @property
    def needs_headers(self) -> bool:
        """Whether messages are read with their headers: what a bucket's do stands there."""
        return self.include_headers or self.extent.needs_headers or self.bucket is not None


def plain_read(connection: ConnectionOptions, stream: str, **fields: Any) -> StreamOptions:
    """A read of a stream of which no more is asked than these fields say."""
    values = Values("range", READ_OPTIONS)
    said = {"connection": connection, "stream": stream, "partitions": None, "several": None}
    said |= {"extent": values.fill(RowExtent), "cut": values.fill(RangeCut)} | fields
    return values.fill(StreamOptions, **said)


def stream_values(values: Values) -> dict[str, Any]:
    """The fields of `StreamOptions` that no single row fills."""
    exclusive(values, "stream", "streamPattern")
    several = _several(values)
    if several is None and "stream" not in values:
        raise OptionError("stream", "required: the name of the stream to read")
    stream = values["stream"] if several is None else str(several)
    if several is not None:
        why = "belongs to one stream: of several each is a partition"
        refuse(values, why, "subject", "partitions", "partitionSubject")
    elif "{partition}" in stream:
        exclusive(values, "stream", "partitionSubject")
        parsed("stream", value_of.stream_name, stream.replace("{partition}", "0"))
        if stream.count("{partition}") > 1:
            raise OptionError("stream", f"expected one {{partition}}, got '{stream}'")
    else:
        parsed("stream", value_of.stream_name, stream)
        needs(values, "partitionSubject", "partitions")
    if "partitions" in values or "partitionSubject" in values:
        why = "contradicts partitions: partitionSubject is the filter of each partition"
        refuse(values, why, "subject")
    exclusive(values, "startingOffsets", "startingTimestamp")
    option = "startingTimestamp" if "startingTimestamp" in values else "startingOffsets"
    delay_s = values["maxPublishDelay"]
    connection = replace(connection_options(values), max_publish_delay_s=delay_s)
    common = {"connection": connection, "stream": stream, "several": several}
    common |= {"cut": values.fill(RangeCut)}
    common |= {"extent": values.fill(RowExtent), "partitions": values.given("partitions")}
    return common | {"starting": _inside(values, option, several)}


def _several(values: Values) -> Several | None:
    if "streamPattern" in values:
        return Several((), values["streamPattern"])
    if "stream" not in values or "," not in values["stream"]:
        return None
    names = [parsed("stream", value_of.stream_name, name) for name in values["stream"].split(",")]
    if len(set(names)) < len(names) or "{partition}" in values["stream"]:
        raise OptionError("stream", f"expected distinct whole names, got '{values['stream']}'")
    return Several(tuple(names))


def one_stream(values: Values, what: str) -> None:
    """
    Raises:
        OptionError: Several streams are given, where `what` needs one.
    """
    several = _several(values)
    if several is not None:
        raise OptionError(several.option, f"{what} has one stream, this names several: {several}")


def _inside(values: Values, option: str, several: Several | None) -> Starting:
    """
    The positions that an option gives.

    Raises:
        OptionError: One is of no stream or partition that is read.
    """
    where: Starting = values[option]
    if several is None and where.streams:
        such = 'sequences by partition, such as {"0": 42}'
        raise OptionError(option, f"one stream is read: give {such}")
    if several is not None and where.sequences:
        raise OptionError(option, 'expected sequences by stream, such as {"ORDERS": {"0": 42}}')
    takes = several.takes() if several is not None else None
    for stream, of in where.streams.items():
        if takes is not None and not takes(stream):
            raise OptionError(option, f"stream '{stream}' is none of {several}")
        if of.keys() != {0}:
            raise OptionError(option, f"expected partition 0 of '{stream}': each stream is one")
    return where


def ending_of(values: Values) -> Starting:
    """`endingOffsets`, or `endingTimestamp` of a read that has it."""
    option = "endingTimestamp" if "endingTimestamp" in values else "endingOffsets"
    ending: Starting = values[option]
    if (
        option == "endingOffsets"
        and ending.word == EARLIEST
        and not (ending.sequences or ending.streams)
    ):
        raise OptionError("endingOffsets", "expected latest or JSON, got 'earliest'")
    words = [word for of in (ending.sequences, *ending.streams.values()) for word in of.values()]
    if EARLIEST in words:
        raise OptionError("endingOffsets", "expected sequences or latest, got 'earliest'")
    return replace(_inside(values, option, _several(values)), word=LATEST)
