"""Several streams in one read: what the options say, and which do not go with them."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.fetch.layout import Layout, SubjectPartition
from pyspark_jetstream.fetch.options import Several
from pyspark_jetstream.options import parse_read, parse_stream

LIST, PATTERN = {"stream": "ORDERS, RETURNS"}, {"streamPattern": "tenant-*"}
BY_SUBJECT = {"partitions": "2", "partitionSubject": "a.{partition}.>"}


@pytest.mark.parametrize(
    ("options", "several", "text"),
    [
        ({"stream": "ORDERS"}, None, "ORDERS"),
        (LIST, Several(("ORDERS", "RETURNS")), "ORDERS,RETURNS"),
        (PATTERN, Several((), "tenant-*"), "tenant-*"),
    ],
    ids=["one", "list", "pattern"],
)
def test_which_streams(options, several, text):
    """
    One name is one stream; a comma list or a pattern is several.
    """
    parsed = parse_read(options)

    assert parsed.several == several
    assert parsed.stream == text


@pytest.mark.parametrize(
    ("pattern", "taken", "others"),
    [
        ("t-*", ["t-", "t-1", "t-a-b"], ["t", "xt-1", "T-1"]),
        ("*", ["a", "A-1"], []),
        ("a*c[1]", ["ac[1]", "abc[1]"], ["ac1", "abcd[1]"]),
        ("*-eu", ["x-eu"], ["x-eu-1"]),
    ],
)
def test_a_pattern_has_a_star_for_any_characters(pattern, taken, others):
    """
    `*` stands for any characters, also none; whatever else is in a pattern stands for itself.
    """
    several = parse_read({"streamPattern": pattern}).several

    assert [name for name in [*taken, *others] if several.takes(name)] == taken


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (LIST | PATTERN, "streamPattern': contradicts option 'stream'"),
        ({}, "stream': required"),
        ({"streamPattern": "tenant"}, "a name with \\* for any characters"),
        ({"streamPattern": "a.*"}, "no dots"),
        ({"stream": "A,"}, "got an empty string"),
        ({"stream": "A,A"}, "distinct names"),
        ({"stream": "A,B c"}, "expected a stream name"),
        ({"stream": "A,B-{partition}"}, "partitions': expected the number of streams 'B-"),
        ({"stream": "A,B-{partition}", "partitions": "auto"}, "partitions': expected the number"),
        ({"stream": "A,B-1,B-{partition}", "partitions": "2"}, "distinct names"),
        ({"stream": "A,{partition}-{partition}", "partitions": "2"}, "expected one {partition}"),
        (LIST | {"partitions": "2"}, "partitions': needs option 'partitionSubject'"),
        (LIST | {"partitionSubject": "a.{partition}"}, "needs option 'partitions'"),
        (LIST | BY_SUBJECT | {"partitions": "auto"}, "auto belongs to one stream"),
        (BY_SUBJECT | {"stream": "A-{partition},B"}, "partitionSubject': contradicts"),
        (PATTERN | {"subject": "a.>"}, "subject': belongs to one stream"),
        (LIST | {"startingOffsets": '{"0": 3}'}, "by stream, such as"),
        (LIST | {"startingOffsets": '{"ORDERS": {"1": 3}}'}, "partition 0 of 'ORDERS'"),
        (LIST | {"startingOffsets": '{"OTHERS": {"0": 3}}'}, "'OTHERS' is none of ORDERS,RETURNS"),
        (LIST | {"startingOffsets": '{"ORDERS": {"0": -3}}'}, "expected earliest, latest, or JSON"),
        (LIST | {"startingOffsets": '{"ORDERS": 3}'}, "expected earliest, latest, or JSON"),
        (
            LIST | {"startingTimestamp": '{"OTHERS": {"0": "-10m"}}'},
            "startingTimestamp.*is none of",
        ),
        (LIST | {"startingTimestamp": '{"ORDERS": {"1": "-10m"}}'}, "partition 0 of 'ORDERS'"),
        ({"stream": "A", "startingTimestamp": '{"A": {"0": "-10m"}}'}, "as one stream is read"),
        (LIST | {"endingOffsets": '{"ORDERS": {"0": -2}}'}, "sequences or latest"),
        (LIST | {"endingOffsets": '{"ORDERS": {"0": "earliest"}}'}, "sequences or latest"),
        ({"stream": "A", "startingOffsets": '{"A": {"0": 3}}'}, "as one stream is read"),
        (LIST | {"multiLast": ">", "upToSequence": "3"}, "names a sequence of one stream"),
        (PATTERN | {"multiLast": ">", "upToSequence": "3"}, "upToSequence': .*; use upToTime"),
        (LIST | {"sequence": "3"}, "a direct get has one stream"),
        ({"bucket": "B"} | PATTERN, "streamPattern': contradicts option 'bucket'"),
    ],
    ids=str,
)
def test_what_does_not_go_together(options, told):
    """
    What belongs to one stream is refused beside several, and each mistake is named.
    """
    with pytest.raises(OptionError, match=told):
        parse_read(options)


def test_a_name_of_a_list_stands_for_numbered_streams():
    """
    A name with `{partition}` stands for as many streams as `partitions` says, in its place of the
    list. Their rows have their numbers, and those of the others 0.
    """
    parsed = parse_read({"stream": "A-{partition},B,C-{partition}", "partitions": "2"})

    assert parsed.several is not None
    assert parsed.several.names == ("A-0", "A-1", "B", "C-0", "C-1")
    assert parsed.several.beyond == ("A-2", "C-2")
    assert [parsed.number(name, 7) for name in parsed.several.names] == [0, 1, 0, 0, 1]


def test_who_says_the_number_of_a_row():
    """
    Of one stream the partition is the number. Of several `partitionSubject` leaves it to subjects.
    """
    assert parse_read({"stream": "A"}).number("A", 7) == 7
    assert parse_read(LIST).number("ORDERS", 7) == 0
    assert parse_read(LIST | BY_SUBJECT).number("ORDERS", 7) is None


def test_where_each_stream_begins():
    """
    Offsets are said by stream and partition, as Kafka's source has them; who is left out begins at
    its first message, and ends at its last.
    """
    bounds = '{"ORDERS": {"0": 7}, "RETURNS": {"0": "latest"}}'
    parsed = parse_read(LIST | {"startingOffsets": bounds, "endingOffsets": bounds})

    assert parsed.starting.streams == {"ORDERS": {0: 7}, "RETURNS": {0: "latest"}}
    assert parsed.ending.streams == parsed.starting.streams
    assert (parsed.starting.word, parsed.ending.word) == ("earliest", "latest")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"priorityPolicy": "pinned_client", "consumer": "c"},
            "priorityPolicy': belongs to consumers, and streamPattern=.* reads without",
        ),
        ({"consumer": "c"}, "consumer': .* reads without"),
        ({"standby": "true"}, "standby': needs option 'consumer'"),
        ({"standby": "true", "consumer": "c", "priorityGroup": "g"}, "priorityGroup': .* without"),
    ],
    ids=str,
)
def test_what_needs_a_consumer_is_refused_by_its_own_name(options, told):
    """
    Sharing needs `consumer`, too: the error is of what was meant, and says why.
    """
    with pytest.raises(OptionError, match=told):
        parse_stream(PATTERN | options)


def test_several_streams_are_shared():
    """
    Queries may share a list of streams, or a pattern: by consumers, not by direct get alone.
    """
    shares = {"priorityPolicy": "overflow", "consumer": "c", "priorityGroup": "g"}
    parsed = parse_stream(LIST | shares)

    assert parsed.sharing is not None and parsed.read_mode == "auto"
    assert parsed.several is not None and parsed.several.names == ("ORDERS", "RETURNS")
    parsed = parse_stream(PATTERN | shares)
    assert parsed.sharing is not None and parsed.read_mode == "auto"
    assert parsed.several is not None and parsed.several.pattern
    with pytest.raises(OptionError, match="readMode"):
        parse_stream(LIST | shares | {"readMode": "direct"})


def test_the_numbers_of_kafka_are_words():
    """
    -2 and -1 are the first and the next message, as in Kafka's source.
    """
    parsed = parse_read(LIST | {"startingOffsets": '{"ORDERS": {"0": -2}, "RETURNS": {"0": -1}}'})

    assert parsed.starting.streams == {"ORDERS": {0: "earliest"}, "RETURNS": {0: "latest"}}


def test_each_stream_is_partition_0_of_itself():
    """
    Among all partitions each has its place; its rows have the number within its stream.
    """
    layout = Layout.of_streams(["B", "A"])

    assert tuple(layout) == (SubjectPartition(0, "B"), SubjectPartition(1, "A"))
    assert layout.streams == ("B", "A")
    assert not layout.shares_stream and layout.named_filters == ()
    assert layout.within(1) == (Layout((SubjectPartition(0, "A"),)), 0)
