"""Options of writes: the ledger, streams to create, limits in flight."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.publish.options import StreamCreation

from ..kits.options import parse, refused


def test_exactly_once_is_the_default_of_streaming_writes_only():
    """
    A streaming write keeps a ledger unless told otherwise; a batch write when told so; ids are
    left out only when neither is wanted.
    """
    given = {None: {}, True: {"exactlyOnce": "true"}, False: {"exactlyOnce": "false"}}
    found = {
        (value, streaming): (sink.ledger, sink.message_ids)
        for value, options in given.items()
        for streaming in (False, True)
        for sink in [parse_sink(options, streaming)]
    }

    assert found == {
        (None, False): (False, True),
        (None, True): (True, True),
        (True, False): (True, True),
        (True, True): (True, True),
        (False, False): (False, False),
        (False, True): (False, False),
    }


def test_a_stream_to_create_is_described():
    """
    All that `createStream` can say of a stream.
    """
    sink = parse_sink(
        {
            "createStream": "true",
            "stream": "F-{partition}",
            "streamSubjects": "f.{partition}.>, g.{partition}",
            "partitions": "3",
            "replicas": "3",
            "retention": "interest",
            "duplicateWindow": "10m",
            "allowDirect": "false",
            "allowBatched": "false",
            "allowAtomic": "true",
        }
    )

    assert sink.create == StreamCreation(
        "F-{partition}", ("f.{partition}.>", "g.{partition}"), 3, 3, "interest", 600.0,
        False, False, True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "S"}, "option 'stream': describes the stream to create: it needs createStream"),
        ({"replicas": "3", "createStream": "false"}, "option 'replicas': describes the stream"),
        ({"createStream": "true"}, "option 'createStream': needs option 'stream' too"),
        (
            {"createStream": "true", "stream": "S"},
            "option 'createStream': needs option 'streamSubjects' too",
        ),
        (
            {"createStream": "true", "stream": "S.x", "streamSubjects": "s"},
            "option 'stream': expected a stream name",
        ),
        (
            {"createStream": "true", "stream": "S-{partition}", "streamSubjects": "s.>"},
            "option 'streamSubjects': streams cannot share subjects",
        ),
        (
            {"createStream": "true", "stream": "S", "streamSubjects": "s.>", "partitions": "2"},
            "option 'partitions': needs {partition} in streamSubjects",
        ),
        (
            {"createStream": "true", "stream": "S", "streamSubjects": "s..a"},
            "option 'streamSubjects': invalid subject filter 's..a': token 2 is empty",
        ),
        ({"publishMode": "sync"}, "option 'publishMode': expected auto or async or fast or atomic"),
        ({"mappingKey": "subject"}, "option 'mappingKey': needs a subjectMapping with weights"),
        ({"subjectMapping": "/nowhere.conf"}, "option 'subjectMapping': no such file"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:50],
)
def test_a_write_that_contradicts_itself_is_refused(options, message):
    """
    The option that is too much, or lacks, is named.
    """
    with pytest.raises(OptionError) as raised:
        parse_sink(options)

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("gradient", 1, 64, 4096, 8192)),
        ({"maxInFlight": "1"}, ("gradient", 1, 64, 1, 1)),
        (
            {"minInFlight": "8", "initialInFlight": "8", "maxInFlight": "8"},
            ("gradient", 8, 8, 8, 8),
        ),
        ({"maxInFlight": "4096"}, ("gradient", 1, 64, 4096, 4096)),
        ({"limiter": "fixed", "maxInFlight": "9"}, ("fixed", 1, 64, 9, 9)),
    ],
)
def test_limits_in_flight(given, expected):
    """
    minInFlight ≤ initialInFlight ≤ maxInFlight; what is not given does not contradict. Far
    away the default of maxInFlight is twice as many.
    """
    parsed = parse("sink", given)

    assert expected == (
        parsed.limiter,
        parsed.min_in_flight,
        parsed.initial_in_flight,
        parsed.max_in_flight,
        parsed.max_in_flight_far,
    )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"minInFlight": "9", "maxInFlight": "8"}, "'minInFlight': 9 is more than maxInFlight 8"),
        ({"minInFlight": "5000"}, "'minInFlight': 5000 is more than maxInFlight 4096"),
        ({"initialInFlight": "9", "maxInFlight": "8"}, "'initialInFlight': 9 is not from"),
        ({"initialInFlight": "9", "minInFlight": "10"}, "'initialInFlight': 9 is not from"),
        ({"limiter": "fixed", "minInFlight": "2"}, "'minInFlight': contradicts limiter=fixed"),
        ({"limiter": "fixed", "initialInFlight": "2"}, "'initialInFlight': contradicts limiter"),
    ],
)
def test_limits_in_flight_that_contradict(given, error):
    """
    Bounds out of order, and bounds that a fixed limit would not heed, are errors.
    """
    assert error in str(refused("sink", given))
