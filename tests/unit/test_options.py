"""Options: their defaults, their table, and those that are given together."""

import pickle
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from operator import attrgetter

import pytest

from pyspark_jetstream import values as value_of
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import all_options, check_reads, parse_read, parse_sink, parse_stream
from pyspark_jetstream.publish.settings import StreamCreation

from ..kits.options import PARSERS, parse, refused


@pytest.mark.parametrize("kind", PARSERS)
def test_defaults(kind):
    """Without options everything has its documented default."""
    parsed = parse(kind, {})

    assert parsed.connection == parse_connection({})
    assert parsed.connection.servers == ("nats://127.0.0.1:4222",)


def _said_least(kind):
    """Typed options of which no more is given than they need, and the fields that this decides."""
    if kind == "stream":
        minimum = {"consumer": "c", "priorityPolicy": "prioritized"}
        return [(parse(kind, {}), {"stream"}), (parse(kind, minimum).sharing, {"policy"})]
    if kind == "range":
        bucket = PARSERS[kind]({"bucket": "B"})
        return [
            (parse(kind, {}), {"stream"}),
            (parse(kind, {"multiLast": ">"}), {"stream"}),
            (bucket, {"stream", "bucket", "drop_markers"}),
            (parse(kind, {"sequence": "1"}), {"stream", "sequence"}),
        ]
    minimum = {"createStream": "true", "stream": "S", "streamSubjects": "s"}
    sink = parse(kind, {})
    nested = [(part, set()) for part in (sink, sink.rows, sink.rules, sink.priorities)]
    return [*nested, (parse(kind, minimum).create, {"stream", "stream_subjects"})]


@pytest.mark.parametrize("kind", PARSERS)
def test_a_default_is_said_once(kind):
    """Each row's default is a text that its own parser reads, and what dataclasses hold."""
    rows = [row for row in all_options() if kind in row.kinds]
    by_field = {row.field: row for row in rows if row.field}
    holders = _said_least(kind)

    assert all(row.parse(row.default) is not None for row in rows if row.default)
    assert len(by_field) == sum(bool(row.field) for row in rows)
    connection = holders[0][0].connection
    extents = [(each.extent, set()) for each, _ in holders if hasattr(each, "extent")]
    for holder, decided in [*holders, *extents, (connection, set()), (connection.tls, set())]:
        for field in fields(holder):
            if row := by_field.get(field.name):
                assert field.default is MISSING is field.default_factory, field.name
                held = getattr(holder, field.name)
                assert field.name in decided or held == row.value, row.name


def test_every_field_that_a_row_names_is_there():
    """No row fills a field that no dataclass has."""
    holders = [each for kind in PARSERS for each, _ in _said_least(kind)]
    holders += [each.extent for each in holders if hasattr(each, "extent")]
    holders += [each.cut for each in holders if hasattr(each, "cut")]
    sink = parse("sink", {})
    holders += [sink.connection, sink.connection.tls, sink.rows, sink.window, sink.metrics]
    there = {field.name for each in holders for field in fields(each)}

    assert {row.field for row in all_options() if row.field} <= there


def test_every_option_has_one_sentence():
    """The table's docs are sentences, names are unique within a kind, and secrets are marked."""
    for kind in PARSERS:
        names = [option.name for option in all_options() if kind in option.kinds]
        assert len(names) == len(set(names))

    assert all(option.doc.endswith(".") for option in all_options())
    assert {o.name for o in all_options() if o.secret} == {"credentials", "password", "token"}


@pytest.mark.parametrize("kind", PARSERS)
def test_what_asks_for_tls(kind, tmp_path):
    """TLS is asked for by any of its options, and by tls:// once in a list."""
    file = tmp_path / "a.pem"
    file.touch()
    certificate = {"tlsCertFile": str(file), "tlsKeyFile": str(file)}
    for options, asked in (
        ({}, ()),
        ({"servers": "a,nats://b"}, ()),
        ({"servers": "a,tls://b"}, ("servers",)),
        ({"tlsCaFile": str(file)}, ("tlsCaFile",)),
        (certificate, ("tlsCertFile",)),
        ({"tlsHandshakeFirst": "false"}, ()),
        ({"tlshandshakefirst": "True"}, ("tlsHandshakeFirst",)),
        ({"servers": "tls://b", "tlsHandshakeFirst": "true"}, ("servers", "tlsHandshakeFirst")),
    ):
        assert parse(kind, options).connection.tls_asked_by == asked
    assert refused(kind, {"tlsHandshakeFirst": "1"}).option == "tlsHandshakeFirst"


@pytest.mark.parametrize("parser", [parse_stream, parse_read], ids=["stream", "range"])
def test_a_read_needs_a_stream(parser):
    """The one option that every read needs is asked for by name."""
    with pytest.raises(OptionError, match="option 'stream': required"):
        parser({})


def test_load_takes_what_one_of_the_reads_takes():
    """Options of either read are no mistake, those of neither are an error."""
    for options in (
        {"stream": "S", "directBelow": "5", "maxRecordsPerTrigger": "5"},
        {"stream": "S", "multiLast": ">"},
        {"bucket": "B"},
        {"STREAM": "S", "endingOffsets": "latest"},
    ):
        check_reads(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"strem": "S", "includeHeaders": "yes", "kafka.bootstrap.servers": "h:9092"},
            ["'strem': unknown option; did you mean 'stream'?",
             "'includeHeaders': expected true or false",
             "'kafka.bootstrap.servers': unknown option; it is 'servers'"],
        ),
        (
            {"stream": "S", "batch": "5", "multiLast": ">", "maxTriggerDelay": "no",
             "consumer": "c", "partitons": "4"},
            ["'batch': applies to spark.read, not to spark.readStream", "'multiLast': applies to",
             "'maxTriggerDelay': expected", "'partitons': unknown option"],
        ),
        (
            {"stream": "S", "multiLast": ">", "startingOffsets": "latest", "subject": "a",
             "endingTimestamp": "-1m"},
            ["'subject': contradicts option 'multiLast'", "'startingOffsets': contradicts option",
             "'endingTimestamp': contradicts option 'multiLast'"],
        ),
        (
            {"bucket": "B", "stream": "S", "sequence": "5", "partitions": "4"},
            ["'stream': contradicts option 'bucket'", "'sequence': contradicts option 'bucket'",
             "'partitions': contradicts option 'bucket'"],
        ),
    ],
    ids=["values", "both", "snapshot", "bucket"],
)  # fmt: skip
def test_all_that_is_wrong_is_said_at_load(options, said):
    """Each mistake once, with its option, in one error."""
    with pytest.raises(OptionError) as caught:
        check_reads(options)

    for each in said:
        assert str(caught.value).count(each) == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({"startingTimestamp": "2026-01-31T09:00:00+02:00"}, "starting.moment",
         "2026-01-31T07:00:00.000000000Z"),
        ({"endingTimestamp": "-10m"}, "ending.moment",
         "2026-01-31T07:50:00.000000000Z"),
        ({"startingTimestamp": "2025-12-31T23:59:59.123456789Z", "batch": "1"}, "start_time",
         "2025-12-31T23:59:59.123456789Z"),
        ({"multiLast": "a", "batch": "1", "upToTime": "2026-01-01T00:59:59.123456789+01:00"},
         "up_to_time", "2025-12-31T23:59:59.123456789Z"),
    ],
)  # fmt: skip
def test_moments(options, name, expected):
    """A moment is absolute in any zone, or relative; nanoseconds are kept."""
    now, moment = datetime(2026, 1, 31, 8, tzinfo=UTC), attrgetter(name)(parse("range", options))

    assert moment.rfc3339(now) == expected
    assert moment.resolve(now) == datetime.fromisoformat(expected)


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
    """`*` stands for any characters, also none; whatever else is in a pattern stands for itself."""
    several = parse_read({"streamPattern": pattern}).several

    assert list(filter(several.takes(), [*taken, *others])) == taken


@pytest.mark.parametrize("others", [{}, {"stream": "S", "streamSubjects": "a.>,b"}])
def test_a_file_of_a_configuration_says_all_of_a_stream(tmp_path, others):
    """Options that say what the file says do not contradict it; null members are none."""
    file = tmp_path / "stream.json"
    file.write_text('{"name": "S", "subjects": ["a.>", "b"], "max_age": 5, "mirror": null}')
    options = {"createStream": "true", "streamConfig": str(file)} | others

    assert parse_sink(options).create == StreamCreation("S", ("a.>", "b"), 1, {"max_age": 5})


@pytest.mark.parametrize("size", ["1", "3B", "1MiB", "128MiB"])
def test_buffer_memory_bounds_all_rows_of_a_task(size):
    """A9, B18: what is on the wire, queued and paused has parts of it, and no more together."""
    options = parse_sink({"bufferMemory": size})
    parts = options.window.max_in_flight_bytes, options.rules.queue_bytes

    assert min(*parts, options.rules.held_bytes) > 0
    assert sum(parts) + options.rules.held_bytes <= max(3, value_of.size(size))
    assert parse_sink({"bufferMemory": "128MiB"}) == parse_sink({})
