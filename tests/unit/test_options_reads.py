"""Options of reads: where they start and end, every field of a stream's."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_read, parse_stream

from ..kits.options import PARSERS, parse, refused


@pytest.mark.parametrize("parser", [parse_stream, parse_read], ids=["stream", "range"])
def test_a_read_needs_a_stream(parser):
    """
    The one option that every read needs is asked for by name.
    """
    with pytest.raises(OptionError, match="option 'stream': required"):
        parser({})


@pytest.mark.parametrize(
    ("kind", "option", "field"),
    [
        ("range", "lastBySubject", "last_by_subject"),
        ("range", "nextBySubject", "next_by_subject"),
    ],
)
def test_a_comma_separates_filters(kind, option, field):
    """
    As in lists of filters, a comma separates several; where one is wanted, several are an error,
    and a JSON list is how to write a subject that has a comma.
    """
    for text, filter_ in (("a.*", "a.*"), (" a.> ", "a.>"), ("a,a", "a"), ('["a,b"]', "a,b")):
        assert getattr(parse(kind, {option: text}), field) == filter_
    for text in ("a.>,b.>", "a, b, c", '["a", "b"]'):
        error = refused(kind, {option: text})
        assert error.option == option
        assert "expected one filter, got" in str(error)
        assert "a subject that has a comma is written as a JSON list" in str(error)


@pytest.mark.parametrize("kind", ["stream", "range"])
@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("a.*", ("a.*",)),
        ("b.>, a.>", ("b.>", "a.>")),
        ('["a,b", "c"]', ("a,b", "c")),
        ("[eu].>", ("[eu].>",)),
        ("a.b, a.>, c, a.*", ("a.>", "c")),
        ("a,a", ("a",)),
        (">, a", (">",)),
        ("a.*.c, a.b, a.*.d", ("a.*.c", "a.b", "a.*.d")),
    ],
)
def test_subject_takes_several_filters(kind, text, filters):
    """
    Each is a partition, in their order; what another one covers is none.
    """
    assert parse(kind, {"subject": text}).subjects == filters


@pytest.mark.parametrize("kind", ["stream", "range"])
@pytest.mark.parametrize("text", ["J*", "user.*, a.b>"])
def test_a_wildcard_of_keys_is_a_whole_token(kind, text):
    """
    A filter that no key of a bucket can match is an error, and no read without rows.
    """
    with pytest.raises(OptionError) as caught:
        PARSERS[kind]({"bucket": "B", "keys": text})

    assert caught.value.option == "keys"
    assert "matches no key" in caught.value.reason


@pytest.mark.parametrize("kind", ["stream", "range"])
@pytest.mark.parametrize(
    ("text", "both"), [("a.*.c, a.b.*", "a.b.c"), ("x, *.b, c.y, a.*", "a.b"), ("*.>, >.x", "")]
)
def test_filters_that_overlap_are_refused(kind, text, both):
    """
    Of two filters that have subjects in common none may be a partition: rows would come twice.
    """
    error = refused(kind, {"subject": text})

    assert error.option == "subject"
    assert (f"subjects in common, such as those of '{both}'" if both else "'>'") in error.reason


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_filters(option):
    """
    A partition that no filter is has no offset.
    """
    parse("range", {"subject": "a,b", option: '{"1": 7}'})
    error = refused("range", {"subject": "a,b", option: '{"2": 7}'})

    assert "partition 2 is none of 0 to 1" in error.reason


def test_moments():
    """
    A moment is absolute in any zone, or relative to a now that comes later.
    """
    now = datetime(2026, 1, 31, 8, tzinfo=UTC)
    zoned = parse("range", {"startingTimestamp": "2026-01-31T09:00:00+02:00"}).starting.moment
    relative = parse("range", {"endingTimestamp": "-10m"}).ending.moment

    assert zoned.resolve(now) == datetime(2026, 1, 31, 7, tzinfo=UTC)
    assert relative.resolve(now) == now - timedelta(minutes=10)


def test_offsets_of_partitions():
    """
    JSON gives some partitions a position; sequences of 2^63-1 survive; the rest follow the default.
    """
    starting = parse("stream", {"startingOffsets": '{"0": 9223372036854775807, "2": "LATEST"}'})
    ending = parse("range", {"endingOffsets": '{"1": 0}'}).ending

    assert starting.starting.sequences == {0: 2**63 - 1, 2: "latest"}
    assert starting.starting.word == "earliest"
    assert (ending.word, ending.sequences) == ("latest", {1: 0})


def test_partitions_that_the_stream_says():
    """
    `partitions=auto` is read off the stream, and followed; it goes with nothing that needs to know
    the partitions, or who else reads them.
    """
    read = parse("stream", {"partitions": "auto", "startingOffsets": '{"9": 7}'})
    assert read.follows
    assert not parse("stream", {}).follows
    assert not parse("range", {"partitions": "2", "stream": "S-{partition}"}).follows
    for more, told in (
        ({"partitionSubject": "a.{partition}.>"}, "leave partitionSubject out"),
        ({"priorityPolicy": "overflow", "consumer": "c"}, "auto does not go with priorityPolicy"),
        ({"endingOffsets": '{"0": 7}'}, "auto does not go with endingOffsets"),
        ({"partitions": "0"}, "expected a positive integer"),
    ):
        error = refused("stream", {"partitions": "auto"} | more)
        assert error.option == "partitions"
        assert told in error.reason


def test_stream_options_arrive_typed():
    """
    Every option of a stream read lands in its field.
    """
    parsed = parse(
        "stream",
        {
            "stream": "S",
            "partitions": "4",
            "partitionSubject": "a.{partition}.>",
            "consumer": "mine",
            "priorityGroup": "g",
            "priorityTimeout": "30s",
            "maxRecordsPerTrigger": "9",
            "maxBytesPerTrigger": "1KiB",
            "minRecordsPerTrigger": "9",
            "maxTriggerDelay": "1m",
            "failOnDataLoss": "false",
            "includeHeaders": "true",
            "readMode": "consumer",
            "endingOffsets": '{"1": 7}',
            "metricsSubject": "spark.metrics",
            "metricsInterval": "250ms",
            "queryName": " Flights ",
            "onInvalidSubject": " Replace",
        },
    )

    assert dataclasses.asdict(parsed) | {"connection": None, "starting": None} == {
        "connection": None,
        "starting": None,
        "several": None,
        "stream": "S",
        "subjects": (),
        "partitions": 4,
        "partition_subject": "a.{partition}.>",
        "include_headers": True,
        "extent": {"include_data": True, "include_count": False, "header_filter": None},
        "bucket": None,
        "fail_on_data_loss": False,
        "on_invalid_subject": "replace",
        "min_partitions": None,
        "max_records_per_partition": None,
        "consumer": "mine",
        "priority_group": "g",
        "priority_timeout_s": 30.0,
        "standby": False,
        "read_mode": "consumer",
        "max_records": 9,
        "max_bytes": 1024,
        "min_records": 9,
        "max_trigger_delay_s": 60.0,
        "metrics_subject": "spark.metrics",
        "metrics_interval_s": 0.25,
        "query_name": "Flights",
        "sharing": None,
        "ending": {"word": "latest", "sequences": {1: 7}, "moment": None, "streams": {}},
    }


def test_when_and_where_metrics_go():
    """
    Reports need a subject without wildcards, and time between them; an interval alone says nothing.
    """
    told = {"metricsSubject": "spark.metrics"}
    assert parse("stream", told).metrics_interval_s == 5.0
    assert refused("stream", {"metricsSubject": "spark.*"}).option == "metricsSubject"
    assert "at least 100ms" in str(refused("stream", told | {"metricsInterval": "99ms"}))
    assert "needs option 'metricsSubject'" in str(refused("stream", {"metricsInterval": "1s"}))
    assert "applies to" in str(refused("range", told))


def test_a_pin_that_would_not_last():
    """
    A priorityTimeout in which a reader cannot renew its pin is refused, and says why; the shortest
    one that is taken is what the error names.
    """
    error = refused("stream", {"priorityTimeout": "5999ms"})

    assert str(error).startswith("option 'priorityTimeout': expected at least 6s, got 5.999s: a")
    assert "renews its pin every third" in str(error)
    assert parse("stream", {"priorityTimeout": "6s"}).priority_timeout_s == 6.0


def test_direct_reads_may_be_split():
    """
    `minPartitions` and `maxRecordsPerPartition` go with all reads but those by pinned consumers.
    """
    split = {"minPartitions": "3", "maxRecordsPerPartition": "10"}
    stream = parse("stream", split)
    assert parse("stream", {"readMode": "direct"} | split).min_partitions == 3
    batch = parse("range", split)

    assert (stream.min_partitions, stream.max_records_per_partition) == (3, 10)
    assert (batch.min_partitions, batch.max_records_per_partition) == (3, 10)


@pytest.mark.parametrize("parse", [parse_read, parse_stream])
def test_what_publishers_may_wait_goes_with_the_connection(parse):
    assert parse({"stream": "S"}).connection.max_publish_delay_s is None
    options = parse({"stream": "S", "maxPublishDelay": "20ms"})
    assert options.connection.max_publish_delay_s == 0.02


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"multiLast": ">"}, "option 'readFrom': contradicts option 'multiLast'"),
        ({"sequence": "1"}, "option 'readFrom': contradicts option 'sequence'"),
        ({"stream": "S,T"}, "option 'stream': a read from a mirror has one stream"),
        ({"stream": "S-{partition}", "partitions": "2"}, "option 'stream': expected a stream name"),
    ],
)
def test_a_mirror_is_read_instead_of_one_stream(others, why):
    with pytest.raises(OptionError, match=f"^{re.escape(why)}"):
        parse_read({"stream": "S", "readFrom": "C"} | others)
    assert parse_read({"stream": "S", "readFrom": "C"}).read_from == "C"
