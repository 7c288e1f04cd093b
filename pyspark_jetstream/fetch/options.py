"""What every read of a stream is told: which stream, its partitions, where it starts and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .. import values as value_of
from ..client.options import ConnectionOptions, connection_options
from ..errors import OptionError
from ..option import Option, exclusive, needs, parsed, reads
from ..values import EARLIEST, LATEST, Starting

__all__ = ["READ_OPTIONS", "StreamOptions", "ending_of", "stream_values"]


READ_OPTIONS: Final[tuple[Option, ...]] = (
    reads(
        "stream",
        value_of.text,
        "",
        "Stream name; with `{partition}` in it, one stream a partition.",
    ),
    reads("subject", value_of.subject_filter, "", "Read only subjects that match this filter."),
    reads("partitions", value_of.positive, "1", "Number N of subject partitions."),
    reads(
        "partitionSubject",
        value_of.partition_subject,
        "",
        "Filter of one partition with `{partition}` as a token, such as `flights.{partition}.>`.",
    ),
    reads("includeHeaders", value_of.boolean, "false", "Add the column `headers`."),
    reads(
        "failOnDataLoss",
        value_of.boolean,
        "true",
        "Fail when messages are gone before they were read.",
    ),
    reads(
        "minPartitions", value_of.positive, "", "Split a direct read into at least so many tasks."
    ),
    reads(
        "maxRecordsPerPartition",
        value_of.positive,
        "",
        "Split a direct read so that no task exceeds it.",
    ),
    reads(
        "startingOffsets",
        value_of.offsets,
        "earliest",
        "`earliest`, `latest`, or JSON of partition to the first sequence to read.",
    ),
    reads(
        "startingTimestamp",
        value_of.moment,
        "",
        "Start at the first message not before it: RFC 3339, or `-10m`.",
    ),
    reads(
        "endingOffsets",
        value_of.offsets,
        "latest",
        "`latest`, or JSON of partition to the last sequence to read.",
    ),
)
"""The options of streaming and batch reads."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What every read of a stream needs to know."""

    connection: ConnectionOptions
    stream: str
    subject: str | None = None
    partitions: int | None = None
    partition_subject: str | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    starting: Starting = Starting()


def stream_values(values: dict[str, Any]) -> dict[str, Any]:
    """The fields that `StreamOptions` describes."""
    if "stream" not in values:
        raise OptionError("stream", "required: the name of the stream to read")
    stream = values["stream"]
    if "{partition}" in stream:
        exclusive(values, "stream", "partitionSubject")
        needs(values, "stream", "partitions")
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
    starting = values.get("startingOffsets", Starting())
    if "startingTimestamp" in values:
        starting = Starting(moment=values["startingTimestamp"])
    parsed("startingOffsets", _inside(values.get("partitions")), starting)
    return {
        "connection": connection_options(values),
        "stream": stream,
        "subject": values.get("subject"),
        "partitions": values.get("partitions"),
        "partition_subject": values.get("partitionSubject"),
        "include_headers": values.get("includeHeaders", False),
        "fail_on_data_loss": values.get("failOnDataLoss", True),
        "min_partitions": values.get("minPartitions"),
        "max_records_per_partition": values.get("maxRecordsPerPartition"),
        "starting": starting,
    }


def _inside(partitions: int | None) -> Callable[[Starting], Starting]:
    def check(starting: Starting) -> Starting:
        for index in starting.sequences:
            if partitions is not None and index >= partitions:
                raise ValueError(f"partition {index} is none of 0 to {partitions - 1}")
        return starting

    return check


def ending_of(values: Mapping[str, Any]) -> Starting:
    """`endingOffsets`."""
    ending: Starting = values.get("endingOffsets", Starting(LATEST))
    if ending.word == EARLIEST and not ending.sequences:
        raise OptionError("endingOffsets", "expected latest or JSON, got 'earliest'")
    if EARLIEST in ending.sequences.values():
        raise OptionError("endingOffsets", "expected sequences or latest, got 'earliest'")
    parsed("endingOffsets", _inside(values.get("partitions")), ending)
    return Starting(LATEST, ending.sequences)
