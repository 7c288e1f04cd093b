"""Batch reads: which of the four the options describe, and what may not stand together."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.options import BucketOptions, CallOptions, RangeOptions, SnapshotOptions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def parse(**options):
    """The options of a read; of stream S unless they name a bucket."""
    needed = {} if "bucket" in options else {"stream": "S"}
    return parse_read(needed | {name: str(value) for name, value in options.items()})


@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ({}, RangeOptions, {"drop_markers": False}),
        ({"subject": "a.>", "dropMarkers": True}, RangeOptions, {"drop_markers": True}),
        ({"multiLast": "a.>"}, SnapshotOptions, {"filters": ("a.>",), "drop_markers": False}),
        (
            {"multiLast": "a, b.*", "upToSequence": 7},
            SnapshotOptions,
            {"filters": ("a", "b.*"), "up_to_sequence": 7, "up_to_time": None},
        ),
        ({"multiLast": '["a,b", "a,b", "c"]'}, SnapshotOptions, {"filters": ("a,b", "c")}),
        (
            {"bucket": "USERS"},
            BucketOptions,
            {
                "stream": "KV_USERS",
                "filters": ("$KV.USERS.>",),
                "keys": (">",),
                "drop_markers": True,
                "history": False,
            },
        ),
        (
            {"bucket": "B", "keys": "x.*,y", "history": True, "upToSequence": 3},
            BucketOptions,
            {
                "filters": ("$KV.B.x.*", "$KV.B.y"),
                "history": True,
                "drop_markers": False,
                "up_to_sequence": 3,
            },
        ),
        ({"bucket": "B", "dropMarkers": False}, BucketOptions, {"drop_markers": False}),
        ({"sequence": 5}, CallOptions, {"sequence": 5, "batch": None}),
        ({"lastBySubject": "a.*"}, CallOptions, {"last_by_subject": "a.*"}),
        (
            {"nextBySubject": "a", "sequence": 5},
            CallOptions,
            {"next_by_subject": "a", "sequence": 5},
        ),
        (
            {"nextBySubject": "a", "batch": 3, "maxBytes": "1KiB"},
            CallOptions,
            {"next_by_subject": "a", "batch": 3, "max_bytes": 1024},
        ),
        (
            {"multiLast": "a,b", "batch": 2, "upToSequence": 9},
            CallOptions,
            {"multi_last": ("a", "b"), "batch": 2, "up_to_sequence": 9},
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_the_options_say_which_read(options, kind, fields):
    """
    Each of the four batch reads is recognised by its options, which arrive typed.
    """
    parsed = parse(**options)

    assert type(parsed) is kind
    assert {name: getattr(parsed, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"startingTimestamp": "2025-12-31T23:59:59.123456789Z", "batch": 1}, "start_time"),
        (
            {"multiLast": "a", "batch": 1, "upToTime": "2026-01-01T00:59:59.123456789+01:00"},
            "up_to_time",
        ),
    ],
)
def test_times_keep_their_nanoseconds(options, at):
    """
    A time goes to the server as it was written, although Python keeps microseconds.
    """
    assert getattr(parse(**options), at).rfc3339(NOW) == "2025-12-31T23:59:59.123456789Z"


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        ({"multiLast": "a", "upToSequence": 1, "upToTime": "-1m"}, "upToTime"),
        ({"bucket": "B", "upToSequence": 1, "upToTime": "-1m"}, "upToTime"),
        ({"upToSequence": 1}, "upToSequence"),
        ({"upToTime": "-1m", "startingOffsets": "latest"}, "upToTime"),
        ({"sequence": 1, "upToSequence": 1}, "upToSequence"),
        ({"multiLast": "a", "subject": "b"}, "subject"),
        ({"multiLast": "a", "startingOffsets": "latest"}, "startingOffsets"),
        ({"multiLast": "a", "startingTimestamp": "-1m"}, "startingTimestamp"),
        ({"multiLast": "a", "endingOffsets": "latest"}, "endingOffsets"),
        ({"multiLast": "a", "sequence": 1}, "sequence"),
        ({"multiLast": "a", "batch": 1, "maxBytes": 5}, "maxBytes"),
        ({"multiLast": "a", "maxBytes": 5}, "maxBytes"),
        ({"multiLast": "a", "bucket": "B"}, "multiLast"),
        ({"lastBySubject": "a", "nextBySubject": "a"}, "nextBySubject"),
        ({"lastBySubject": "a", "sequence": 1}, "sequence"),
        ({"lastBySubject": "a", "batch": 1}, "batch"),
        ({"lastBySubject": "a", "startingTimestamp": "-1m"}, "startingTimestamp"),
        ({"sequence": 1, "startingTimestamp": "-1m"}, "startingTimestamp"),
        ({"sequence": 1, "minPartitions": 2}, "minPartitions"),
        ({"sequence": 1, "subject": "a"}, "subject"),
        ({"sequence": 1, "maxBytes": 5}, "maxBytes"),
        ({"batch": 5}, "batch"),
        ({"maxBytes": 5}, "maxBytes"),
        ({"keys": "a"}, "keys"),
        ({"history": True}, "history"),
        ({"bucket": "B", "stream": "S"}, "stream"),
        ({"bucket": "B", "partitions": 2}, "partitions"),
        ({"bucket": "B", "startingOffsets": "latest"}, "startingOffsets"),
        ({"bucket": "B", "batch": 2}, "batch"),
        ({"stream": "S-{partition}", "partitions": 2, "sequence": 1}, "stream"),
        (
            {"stream": "S-{partition}", "partitions": 2, "multiLast": "a", "upToSequence": 1},
            "upToSequence",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_go_together(options, blamed):
    """
    Options of one read that are given to another are an error that blames one of them.
    """
    with pytest.raises(OptionError) as caught:
        parse(**options)

    assert caught.value.option == blamed


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("multiLast", "", "expected a subject"),
        ("multiLast", " , ", "expected a subject"),
        ("multiLast", "[]", "expected a subject"),
        ("multiLast", "[1]", "expected a subject"),
        ("multiLast", '["a"', "expected a subject"),
        ("multiLast", "a,,b", "empty"),
        ("multiLast", "a.>.b", "last token"),
        ("upToSequence", "0", "positive"),
        ("sequence", "-1", "positive"),
        ("upToTime", "yesterday", "RFC 3339"),
        ("batch", "0", "positive"),
        ("bucket", "a.b", "bucket name"),
        ("bucket", "", "empty"),
        ("dropMarkers", "yes", "true or false"),
        ("lastBySubject", "a b", "white space"),
    ],
)
def test_malformed_values(name, text, expected):
    """
    A malformed value is an error that says what was expected.
    """
    with pytest.raises(OptionError, match=expected) as caught:
        parse(**{name: text})

    assert caught.value.option == name
