"""Options of writes: the ledger, streams to create, limits in flight."""

from __future__ import annotations

import json

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
    All that `createStream` can say of a stream; a transform without a source is of all subjects.
    """
    config = {
        "num_replicas": 3,
        "retention": "interest",
        "subject_transform": {"dest": "h.>"},
        "of": {"tomorrow": 1},
    }
    sink = parse_sink(
        {
            "createStream": "true",
            "stream": "F-{partition}",
            "streamSubjects": "f.{partition}.>, g.{partition}",
            "partitions": "3",
            "streamConfig": json.dumps(config),
        }
    )

    assert sink.create == StreamCreation(
        "F-{partition}", ("f.{partition}.>", "g.{partition}"), 3, config
    )


@pytest.mark.parametrize("others", [{}, {"stream": "S", "streamSubjects": "a.>,b"}])
def test_a_file_of_a_configuration_says_all_of_a_stream(tmp_path, others):
    """
    Its name and its subjects, too; options that say the same do not contradict it, and members
    that are null are none.
    """
    file = tmp_path / "stream.json"
    file.write_text('{"name": "S", "subjects": ["a.>", "b"], "max_age": 5, "mirror": null}')
    options = {"createStream": "true", "streamConfig": str(file)} | others

    assert parse_sink(options).create == StreamCreation("S", ("a.>", "b"), 1, {"max_age": 5})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/nowhere/stream.json", "no such file: '/nowhere/stream.json'"),
        ('{"max_age": 1', "JSON, or a file of it: Expecting ',' delimiter: line 1 column 14"),
        ('[{"max_age": 1}]', "JSON, or a file of it:  is [{'max_age': 1}], no object"),
        ('{"duplicate_window": "2m"}', ".duplicate_window is '2m', no number from 0"),
        ('{"max_age": -1}', ".max_age is -1, no number from 0"),
        ('{"allow_direct": "yes"}', ".allow_direct is 'yes', neither true nor false"),
        ('{"num_replicas": 1.5}', ".num_replicas is 1.5, no number"),
        ('{"subjects": "a.>"}', ".subjects is 'a.>', no list"),
        ('{"subjects": [7]}', ".subjects[0] is 7, no text"),
        ('{"subjects": ["a..b"]}', "invalid subject filter 'a..b': token 2 is empty"),
        ("[" * 100_000 + "{", "nested too deep"),
    ],
    ids=lambda text: text[:40],
)
def test_a_configuration_that_is_none_is_refused(text, why):
    """
    In one line, on the driver, with the place in the text.
    """
    error = refused("sink", {"createStream": "true", "stream": "S", "streamConfig": text})

    assert error.option == "streamConfig"
    assert why in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "S"}, "option 'stream': describes the stream to create: it needs createStream"),
        (
            {"streamConfig": '{"max_age": 5}', "createStream": "false"},
            "option 'streamConfig': describes the stream",
        ),
        (
            {"createStream": "true", "stream": "S", "streamConfig": '{"name": "T"}'},
            "option 'stream': contradicts option 'streamConfig', which has another",
        ),
        (
            {
                "createStream": "true",
                "streamSubjects": "a",
                "streamConfig": '{"name": "T", "subjects": ["b"]}',
            },
            "option 'streamSubjects': contradicts option 'streamConfig', which has another",
        ),
        (
            {"createStream": "true", "streamConfig": '{"name": "S.x", "subjects": ["s"]}'},
            "option 'stream': expected a stream name",
        ),
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
    ("given", "near", "far"),
    [({}, 4096, 8192), ({"maxInFlight": "1"}, 1, 1), ({"maxInFlight": "4096"}, 4096, 4096)],
)
def test_limits_in_flight(given, near, far):
    """
    Far away the default of maxInFlight is twice as many.
    """
    window = parse("sink", given).window

    assert (window.max_in_flight, window.max_in_flight_far) == (near, far)
    assert (window.min_in_flight, window.initial_in_flight) == (1, 64)
