"""Options: their names, where they apply, defaults, which contradict each other."""

from __future__ import annotations

import pickle
from dataclasses import MISSING, fields

import pytest

from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import all_options, check_reads
from pyspark_jetstream.values import one_filter

from ..kits.options import PARSERS, SECRET, parse, refused


@pytest.mark.parametrize("kind", PARSERS)
def test_defaults(kind):
    """
    Without options everything has its documented default.
    """
    parsed = parse(kind, {})

    assert parsed.connection == parse_connection({})
    assert parsed.connection.servers == ("nats://127.0.0.1:4222",)


def _said_least(kind):
    """
    Typed options of which no more is given than they need, and the fields that this decides.
    """
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
    """
    Each row's default is a text that its own parser reads; where nothing is given the dataclasses
    hold just that, and what one row of the kind fills has no default of its own.
    """
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
    """
    No row fills a field that no dataclass has.
    """
    holders = [each for kind in PARSERS for each, _ in _said_least(kind)]
    holders += [each.extent for each in holders if hasattr(each, "extent")]
    sink = parse("sink", {})
    holders += [sink.connection, sink.connection.tls, sink.rows, sink.window, sink.metrics]
    there = {field.name for each in holders for field in fields(each)}

    assert {row.field for row in all_options() if row.field} <= there


@pytest.mark.parametrize("kind", PARSERS)
def test_what_asks_for_tls(kind, tmp_path):
    """
    TLS is asked for by any of the options that have to do with it, and by tls:// once in a list.
    """
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


@pytest.mark.parametrize(
    ("kind", "given", "near"),
    [
        ("stream", "steram", "stream"),
        ("stream", "startingOffset", "startingOffsets"),
        ("stream", "MAXRECORDPERTRIGGER", "maxRecordsPerTrigger"),
        ("stream", "serverz", "servers"),
        ("range", "endingOffset", "endingOffsets"),
        ("range", "pasword", "password"),
        ("sink", "buferMemory", "bufferMemory"),
        ("sink", "subjectMaping", "subjectMapping"),
        ("sink", "bufferMemoryy", "bufferMemory"),
    ],
)
def test_unknown_option_names_the_nearest_one(kind, given, near):
    """
    An unknown option is an error that names it as written and the nearest one of its kind, and
    never its value.
    """
    error = refused(kind, {given: SECRET})

    assert error.option == given
    assert f"did you mean '{near}'?" in str(error)
    assert SECRET not in str(error)


def test_unknown_option_like_no_other_suggests_nothing():
    """
    What resembles no option gets no suggestion, but the place where they all stand.
    """
    said = "option 'zzqqxx': unknown option; no option is spelled alike"

    assert str(refused("stream", {"zzqqxx": "1"})) == said


def test_load_takes_what_one_of_the_reads_takes():
    """
    Where Spark does not say which read it is, the options of either are none's mistake, and those
    of neither are an error.
    """
    for options in (
        {"stream": "S", "readMode": "direct", "maxRecordsPerTrigger": "5"},
        {"stream": "S", "multiLast": ">"},
        {"bucket": "B"},
        {"STREAM": "S", "endingOffsets": "latest"},
    ):
        check_reads(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'stream': required"),
        ({"strem": "S"}, "did you mean 'stream'?"),
        ({"stream": "S", "maxRecordPerTrigger": "5"}, "did you mean 'maxRecordsPerTrigger'?"),
        ({"stream": "S", "maxrecordspertrigger": "many"}, "'maxRecordsPerTrigger': expected a pos"),
        ({"stream": "S", "multiLast": "a..b"}, "'multiLast': invalid subject filter"),
        ({"stream": "S", "minPending": "5"}, "'minPending': belongs to priorityPolicy=overflow"),
        ({"stream": "S", "batch": "5"}, "'batch': needs where to begin"),
        (
            {"stream": "S", "multiLast": ">", "readMode": "direct"},
            "option 'multiLast': no read takes both 'multiLast', of spark.read, and 'readMode', of"
            " spark.readStream",
        ),
        ({"stream": "S", "publishMode": "fast"}, "'publishMode': applies to a write"),
        ({"stream": "S", "partitionSubject": "a.{partition}"}, "needs option 'partitions' too"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_said_at_load(options, said):
    """
    What neither read takes is an error of the one that its options are of.
    """
    with pytest.raises(OptionError) as caught:
        check_reads(options)

    assert said in str(caught.value)


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
            {"stream": "S", "batch": "5", "multiLast": ">", "readMode": "no", "consumer": "c",
             "partitons": "4"},
            ["no read takes both 'batch', 'multiLast', of spark.read, and 'readMode', 'consumer'",
             "'readMode': expected", "'partitons': unknown option"],
        ),
        (
            {"stream": "S", "multiLast": ">", "startingOffsets": "latest", "subject": "a",
             "endingTimestamp": "-1m"},
            ["'subject': contradicts option 'multiLast'", "'startingOffsets': contradicts option",
             "'endingTimestamp': contradicts option 'multiLast'"],
        ),
        (
            {"stream": "S", "multiLast": ">", "startingOffsets": "latest", "minPending": "5"},
            ["no read takes both 'multiLast', of spark.read, and 'minPending'",
             "'startingOffsets': contradicts option 'multiLast'",
             "'minPending': belongs to priorityPolicy=overflow"],
        ),
        (
            {"bucket": "B", "stream": "S", "sequence": "5", "partitions": "4"},
            ["'stream': contradicts option 'bucket'", "'sequence': contradicts option 'bucket'",
             "'partitions': contradicts option 'bucket'"],
        ),
    ],
    ids=["values", "both", "snapshot", "both and more", "bucket"],
)  # fmt: skip
def test_all_that_is_wrong_is_said_at_load(options, said):
    """
    Each mistake once, with its option, in one error.
    """
    with pytest.raises(OptionError) as caught:
        check_reads(options)

    for each in said:
        assert str(caught.value).count(each) == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("stream", "endingTimestamp", "-1m"),
        ("sink", "includeHeaders", "true"),
        ("sink", "startingOffsets", "latest"),
        ("range", "readMode", "direct"),
        ("range", "maxRecordsPerTrigger", "5"),
        ("range", "maxInFlight", "5"),
        ("stream", "ackTimeout", "5s"),
    ],
)
def test_an_option_of_another_kind_says_where_it_applies(kind, name, text):
    """
    An option of reads given to a write, or the other way round, names where it belongs.
    """
    error = refused(kind, {name: text})

    assert error.option == name
    assert "applies to" in error.reason


@pytest.mark.parametrize("subject", ["[eu].>", '["[eu].>"]'])
def test_a_filter_may_begin_with_a_bracket(subject):
    """
    It is a list only if it is one.
    """
    assert one_filter(subject) == "[eu].>"


def test_subject_is_a_filter_of_reads_and_a_subject_of_writes():
    """
    `subject` exists twice: reads take wildcards, writes do not.
    """
    assert parse("stream", {"subject": "a.*.>"}).subjects == ("a.*.>",)
    assert parse("range", {"subject": "a.*.>"}).subjects == ("a.*.>",)
    assert parse("sink", {"subject": "a.b"}).rows.subject == "a.b"
    assert "wildcard" in str(refused("sink", {"subject": "a.*"}))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("stream", {"STREAM": "S", "INCLUDEHEADERS": "TRUE", "readmode": "DIRECT"}),
        ("range", {"stream": "S", "includeheaders": "True", "STARTINGOFFSETS": "LATEST"}),
        ("sink", {"MAXINFLIGHT": "7"}),
    ],
)
def test_names_and_words_are_case_insensitive(kind, options):
    """
    Names and words are read without regard to case, as Spark does.
    """
    parsed = parse(kind, options)

    assert getattr(parsed, "include_headers", True) is True
    assert getattr(parsed, "max_in_flight", 7) == 7


@pytest.mark.parametrize("key", ["checkpointLocation", "queryName", "path"])
def test_sparks_own_options_are_not_ours(key):
    """
    What Spark puts beside our options is no mistake.
    """
    assert parse("stream", {key: ""}).stream == "S"


def test_a_path_is_refused():
    """
    `load("somewhere")` is a mistake: a stream has no path.
    """
    assert "no path" in str(refused("range", {"path": "/tmp/x"}))


@pytest.mark.parametrize("kind", PARSERS)
def test_null_is_no_value(kind):
    """
    An option set to None is an error, not the text "None".
    """
    assert "null" in str(refused(kind, {"user": None}))


@pytest.mark.parametrize(
    ("kind", "options", "blamed"),
    [
        ("stream", {"stream": "S-{partition}{partition}", "partitions": "2"}, "stream"),
        (
            "stream",
            {"stream": "S-{partition}", "partitions": "2", "partitionSubject": "a.{partition}"},
            "partitionSubject",
        ),
        ("stream", {"stream": "S-{partition}", "partitions": "2", "subject": "a"}, "subject"),
        ("stream", {"partitionSubject": "a.{partition}"}, "partitionSubject"),
        ("range", {"subject": "a", "partitions": "2"}, "subject"),
        (
            "range",
            {"subject": "a", "partitions": "2", "partitionSubject": "a.{partition}"},
            "subject",
        ),
        (
            "range",
            {"startingOffsets": "latest", "startingTimestamp": "-1m"},
            "startingTimestamp",
        ),
        ("range", {"endingOffsets": "latest", "endingTimestamp": "-1m"}, "endingTimestamp"),
        (
            "range",
            {
                "partitions": "2",
                "partitionSubject": "a.{partition}",
                "startingOffsets": '{"2": 1}',
            },
            "startingOffsets",
        ),
        (
            "range",
            {"partitions": "2", "partitionSubject": "a.{partition}", "endingOffsets": '{"9": 1}'},
            "endingOffsets",
        ),
        ("stream", {"maxTriggerDelay": "1s"}, "maxTriggerDelay"),
        (
            "stream",
            {"minRecordsPerTrigger": "3", "maxRecordsPerTrigger": "2"},
            "minRecordsPerTrigger",
        ),
        ("stream", {"readMode": "direct", "consumer": "c"}, "consumer"),
        ("stream", {"readMode": "direct", "priorityGroup": "g"}, "priorityGroup"),
        ("stream", {"readMode": "direct", "priorityTimeout": "1s"}, "priorityTimeout"),
        ("stream", {"standby": "true"}, "standby"),
        ("stream", {"readMode": "consumer", "minPartitions": "2"}, "minPartitions"),
        ("stream", {"readMode": "consumer", "maxRecordsPerPartition": "2"}, None),
        ("sink", {"user": "u"}, "user"),
        ("sink", {"password": "p"}, "password"),
        ("sink", {"user": "u", "password": "p", "token": "t"}, "token"),
        ("sink", {"jsDomain": "d", "jsApiPrefix": "p"}, "jsApiPrefix"),
        ("sink", {"tlsCertFile": __file__}, "tlsCertFile"),
        ("sink", {"tlsKeyFile": __file__}, "tlsKeyFile"),
        ("sink", {"nkeySeedFile": __file__, "token": "t"}, "token"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else str(value),
)
def test_contradictions(kind, options, blamed):
    """
    Options that cannot go together are an error that blames one of them.
    """
    error = refused(kind, options)

    assert error.option == (blamed or "maxRecordsPerPartition")


def test_every_option_has_one_sentence():
    """
    The table's docs are sentences, names are unique within a kind, and secrets are marked.
    """
    for kind in PARSERS:
        names = [option.name for option in all_options() if kind in option.kinds]
        assert len(names) == len(set(names))

    assert all(option.doc.endswith(".") for option in all_options())
    assert {o.name for o in all_options() if o.secret} == {"credentials", "password", "token"}
