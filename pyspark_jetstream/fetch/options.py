"""What every read of a stream is told: which stream, its partitions, where it starts and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .. import values as value_of
from ..client.options import ConnectionOptions, connection_options
from ..errors import OptionError
from ..option import Option, Values, exclusive, needs, parsed, table
from ..values import EARLIEST, LATEST, Starting

__all__ = ["READ_OPTIONS", "StreamOptions", "ending_of", "plain_read", "stream_values"]


READ_OPTIONS: Final = table(
    "stream range",
    Option("stream", "stream", value_of.text, "",
        "Stream name; with `{partition}` in it, one stream a partition."),
    Option("subject", "subjects", value_of.disjoint_filters, "",
        "Read only subjects that match; of a comma list or JSON list, each is a partition.",
        absent=()),
    Option("partitions", "", value_of.positive, "1", "Number N of subject partitions."),
    Option("partitionSubject", "partition_subject", value_of.partition_subject, "",
        "Filter of one partition with `{partition}` as a token, such as `flights.{partition}.>`."),
    Option("includeHeaders", "include_headers", value_of.boolean, "false",
        "Add the column `headers`."),
    Option("includeCount", "include_count", value_of.boolean, "false",
        "Add the column `count`: the sum of the subject's counter, null where there is none."),
    Option("failOnDataLoss", "fail_on_data_loss", value_of.boolean, "true",
        "Fail when messages are gone before they were read."),
    Option("onInvalidSubject", "on_invalid_subject", value_of.choice("fail", "replace", "drop"),
        "fail",
        "A message whose subject is no UTF-8: fail, `replace` such bytes by U+FFFD, or `drop` it."),
    Option("minPartitions", "min_partitions", value_of.positive, "",
        "Cut a backlog, or a direct read, by sequence into at least so many tasks."),
    Option("maxRecordsPerPartition", "max_records_per_partition", value_of.positive, "",
        "Cut a backlog, or a direct read, by sequence so that no task exceeds it."),
    Option("startingOffsets", "starting", value_of.offsets, "earliest",
        "`earliest`, `latest`, or JSON of partition to the first sequence to read."),
    Option("startingTimestamp", "start_time", value_of.moment, "",
        "Start at the first message not before it: RFC 3339, or `-10m`."),
    Option("endingOffsets", "ending", value_of.offsets, "latest",
        "`latest`, or JSON of partition to the last sequence to read."),
)  # fmt: skip
"""The options of streaming and batch reads."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What every read of a stream needs to know."""

    connection: ConnectionOptions
    stream: str
    subjects: tuple[str, ...]
    """Filters without a subject in common, each a partition; empty for all of the stream."""
    partitions: int | None
    """None where nobody says, and the stream's own transform may."""
    partition_subject: str | None
    include_headers: bool
    include_count: bool
    fail_on_data_loss: bool
    on_invalid_subject: str
    """`fail`, `replace` or `drop`."""
    min_partitions: int | None
    max_records_per_partition: int | None
    starting: Starting


def plain_read(connection: ConnectionOptions, stream: str, **fields: Any) -> StreamOptions:
    """A read of a stream of which no more is asked than these fields say."""
    said = {"connection": connection, "stream": stream, "partitions": None} | fields
    return Values("range", READ_OPTIONS).fill(StreamOptions, **said)


def stream_values(values: Values) -> dict[str, Any]:
    """The fields of `StreamOptions` that no single row fills."""
    if "stream" not in values:
        raise OptionError("stream", "required: the name of the stream to read")
    stream = values["stream"]
    if "{partition}" in stream:
        exclusive(values, "stream", "partitionSubject")
        parsed("stream", value_of.stream_name, stream.replace("{partition}", "0"))
        if stream.count("{partition}") > 1:
            raise OptionError("stream", f"expected one {{partition}}, got '{stream}'")
    else:
        parsed("stream", value_of.stream_name, stream)
        needs(values, "partitionSubject", "partitions")
    if "subject" in values and ("partitions" in values or "partitionSubject" in values):
        raise OptionError(
            "subject",
            "contradicts partitions: partitionSubject is the filter of each partition",
        )
    exclusive(values, "startingOffsets", "startingTimestamp")
    starting, partitions = values["startingOffsets"], values.given("partitions")
    known = len(values["subject"]) or partitions
    if "startingTimestamp" in values:
        starting = Starting(moment=values["startingTimestamp"])
    parsed("startingOffsets", _inside(known), starting)
    connection = connection_options(values)
    return {"connection": connection, "partitions": partitions, "starting": starting}


def _inside(partitions: int | None) -> Callable[[Starting], Starting]:
    def check(starting: Starting) -> Starting:
        for index in starting.sequences:
            if partitions is not None and index >= partitions:
                raise ValueError(f"partition {index} is none of 0 to {partitions - 1}")
        return starting

    return check


def ending_of(values: Values) -> Starting:
    """`endingOffsets`."""
    ending: Starting = values["endingOffsets"]
    if ending.word == EARLIEST and not ending.sequences:
        raise OptionError("endingOffsets", "expected latest or JSON, got 'earliest'")
    if EARLIEST in ending.sequences.values():
        raise OptionError("endingOffsets", "expected sequences or latest, got 'earliest'")
    known = len(values["subject"]) or values.given("partitions")
    parsed("endingOffsets", _inside(known), ending)
    return Starting(LATEST, ending.sequences)
