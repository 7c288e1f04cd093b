"""Options: every rule of the parser, and that no secret ever shows."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream.admission import Rules
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import (
    ConnectionOptions,
    StreamCreation,
    parse_sink,
    parse_stream,
)
from pyspark_jetstream.optiontable import LATER, OPTIONS
from pyspark_jetstream.priority import Priorities, Priority
from pyspark_jetstream.readoptions import parse_read
from pyspark_jetstream.values import Secret

SECRET = "hunter2-unmistakable"
PARSERS = {"stream": parse_stream, "range": parse_read, "sink": parse_sink}


def parse(kind, options):
    """The options of one kind; reads get a stream when they name none."""
    needed = (
        {} if kind == "sink" or any(k.lower() == "stream" for k in options) else {"stream": "S"}
    )
    return PARSERS[kind](needed | options)


def refused(kind, options) -> OptionError:
    """The error these options end in."""
    with pytest.raises(OptionError) as caught:
        parse(kind, options)
    return caught.value


@pytest.mark.parametrize("kind", PARSERS)
def test_defaults(kind):
    """
    Without options everything has its documented default.
    """
    parsed = parse(kind, {})

    assert parsed.connection == ConnectionOptions()
    assert parsed.connection.servers == ("nats://127.0.0.1:4222",)


@pytest.mark.parametrize(
    ("kind", "given", "near"),
    [
        ("stream", "steram", "stream"),
        ("stream", "startingOffset", "startingOffsets"),
        ("stream", "MAXRECORDPERTRIGGER", "maxRecordsPerTrigger"),
        ("stream", "serverz", "servers"),
        ("range", "endingOffset", "endingOffsets"),
        ("range", "pasword", "password"),
        ("sink", "maxInflightByte", "maxInFlightBytes"),
        ("sink", "subjectMaping", "subjectMapping"),
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
    What resembles no option gets no suggestion.
    """
    assert str(refused("stream", {"zzqqxx": "1"})) == "option 'zzqqxx': unknown option"


@pytest.mark.parametrize(
    "name",
    ["minPending", "standby", "priority", "ONREJECT"],
)
@pytest.mark.parametrize("kind", PARSERS)
def test_options_of_later_versions_say_so(kind, name):
    """
    An option of the contract that this version lacks is refused as such, not as unknown.
    """
    assert "not supported by this version" in str(refused(kind, {name: "1"}))


def test_no_supported_option_is_called_unsupported():
    """
    The list of later options and the table of supported ones are disjoint.
    """
    assert not LATER & {option.name.lower() for option in OPTIONS}


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("stream", "endingOffsets", "latest"),
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


def test_subject_is_a_filter_of_reads_and_a_subject_of_writes():
    """
    `subject` exists twice: reads take wildcards, writes do not.
    """
    assert parse("stream", {"subject": "a.*.>"}).subject == "a.*.>"
    assert parse("range", {"subject": "a.*.>"}).subject == "a.*.>"
    assert parse("sink", {"subject": "a.b"}).subject == "a.b"
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
    ("kind", "name", "text", "expected"),
    [
        ("stream", "partitions", "0", "positive integer"),
        ("stream", "partitions", "-1", "positive integer"),
        ("stream", "partitions", "4k", "'4k'"),
        ("stream", "partitions", "1.5", "positive integer"),
        ("stream", "partitions", "", "positive integer"),
        ("stream", "partitions", "٣", "positive integer"),
        ("stream", "partitions", "9" * 5000, "positive integer"),
        ("stream", "includeHeaders", "yes", "true or false"),
        ("stream", "requestTimeout", "30", "with its unit"),
        ("stream", "requestTimeout", "30 s s", "with its unit"),
        ("stream", "requestTimeout", "-3s", "with its unit"),
        ("stream", "requestTimeout", "0s", "more than zero"),
        ("stream", "requestTimeout", "0.0ms", "more than zero"),
        ("stream", "requestTimeout", "36501d", "at most"),
        ("stream", "requestTimeout", "9" * 400 + "s", "at most"),
        ("stream", "maxBytesPerTrigger", "8 parsecs", "8MiB"),
        ("stream", "maxBytesPerTrigger", "0", "8MiB"),
        ("stream", "maxBytesPerTrigger", "-1", "8MiB"),
        ("stream", "maxBytesPerTrigger", "1.5MiB", "8MiB"),
        ("stream", "readMode", "fast", "auto or consumer or direct"),
        ("stream", "priorityPolicy", "overflow", "pinned_client"),
        ("stream", "priorityGroup", "seventeen-letters", "1 to 16"),
        ("stream", "priorityGroup", "a b", "1 to 16"),
        ("stream", "stream", "", "empty"),
        ("stream", "stream", "a.b", "no dots"),
        ("stream", "stream", "a*", "no dots"),
        ("stream", "stream", "a b", "no dots"),
        ("stream", "stream", "a/b", "no dots"),
        ("stream", "consumer", "a.b", "no dots"),
        ("stream", "consumer", "a{partition}", "no dots"),
        ("stream", "subject", "a..b", "empty"),
        ("stream", "subject", "a.>.b", "last token"),
        ("stream", "subject", "a b", "white space"),
        ("stream", "subject", "a\u0000b", "control"),
        ("stream", "partitionSubject", "a.>", "{partition}"),
        ("stream", "partitionSubject", "a.{partition}.{partition}", "exactly one"),
        ("stream", "partitionSubject", "a.x{partition}", "exactly one"),
        ("stream", "startingOffsets", "first", "earliest, latest, or JSON"),
        ("stream", "startingOffsets", "{}", "JSON"),
        ("stream", "startingOffsets", "[1]", "JSON"),
        ("stream", "startingOffsets", '{"x": 1}', "JSON"),
        ("stream", "startingOffsets", '{"00": 1}', "JSON"),
        ("stream", "startingOffsets", '{"-1": 1}', "JSON"),
        ("stream", "startingOffsets", '{"0": -1}', "JSON"),
        ("stream", "startingOffsets", '{"0": 1.0}', "JSON"),
        ("stream", "startingOffsets", '{"0": true}', "JSON"),
        ("stream", "startingOffsets", '{"0": null}', "JSON"),
        ("stream", "startingOffsets", '{"0": [1]}', "JSON"),
        ("stream", "startingOffsets", '{"0": "soon"}', "JSON"),
        ("stream", "startingOffsets", "[" * 100_000, "JSON"),
        ("stream", "startingTimestamp", "yesterday", "RFC 3339"),
        ("stream", "startingTimestamp", "2026-01-31T08:00:00", "zone"),
        ("stream", "startingTimestamp", "2026-13-31T08:00:00Z", "RFC 3339"),
        ("stream", "startingTimestamp", "0001-01-01T00:00:00+14:00", "RFC 3339"),
        ("stream", "startingTimestamp", "-10", "unit"),
        ("stream", "startingTimestamp", "-99999999999d", "at most"),
        ("stream", "startingTimestamp", "--10m", "unit"),
        ("range", "endingOffsets", "earliest", "latest or JSON"),
        ("range", "endingOffsets", '{"0": "earliest"}', "sequences or latest"),
        ("sink", "subject", "a.>", "wildcard"),
        ("sink", "subjectMapping", "{", "subjectMapping"),
        ("sink", "maxInFlight", "0", "positive integer"),
        ("sink", "limiter", "vegas", "gradient"),
        ("sink", "ackTimeout", "soon", "unit"),
        ("sink", "tlsCaFile", "/no/such/file", "no such file"),
        ("sink", "credentialsFile", "/no/such/file", "no such file"),
        ("sink", "credentials", "no creds", "NATS USER JWT"),
        ("sink", "jsDomain", "a.b", "without dots"),
        ("sink", "jsApiPrefix", "a..b", "empty"),
        ("sink", "servers", "http://h:1", "nats://"),
        ("sink", "servers", "nats://h:x", "nats://"),
        ("sink", "servers", "nats://h:99999", "nats://"),
        ("sink", "servers", "nats://h:0", "nats://"),
        ("sink", "servers", "a,,b", "nats://"),
        ("sink", "servers", "", "nats://"),
        ("sink", "servers", "nats://h/path", "nats://"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
)
def test_malformed_values(kind, name, text, expected):
    """
    A malformed value is an error that names the option and what was expected.
    """
    error = refused(kind, {name: text})

    assert error.option == name
    assert expected in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("kind", "options", "blamed"),
    [
        ("stream", {"stream": "S-{partition}"}, "stream"),
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
        ("stream", {"minPartitions": "2"}, "minPartitions"),
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


@pytest.mark.parametrize("parser", [parse_stream, parse_read], ids=["stream", "range"])
def test_a_read_needs_a_stream(parser):
    """
    The one option that every read needs is asked for by name.
    """
    with pytest.raises(OptionError, match="option 'stream': required"):
        parser({})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("1.5m", 90.0),
        ("2 h", 7200.0),
        (" 1d ", 86400.0),
        ("36500d", 36500 * 86400.0),
    ],
)
def test_durations(text, seconds):
    """
    Durations are read with their unit into seconds.
    """
    assert parse("sink", {"requestTimeout": text}).connection.request_timeout_s == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("17B", 17),
        ("2kB", 2000),
        ("2KiB", 2048),
        ("8 MiB", 8 << 20),
        ("3mb", 3_000_000),
        ("1GiB", 1 << 30),
        ("1gb", 10**9),
    ],
)
def test_sizes(text, size):
    """
    Sizes are read into bytes; decimal and binary units differ.
    """
    assert parse("sink", {"maxInFlightBytes": text}).max_in_flight_bytes == size


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("h", ("nats://h",)),
        ("h:1, tls://i:2/", ("nats://h:1", "tls://i:2")),
        ("nats://[::1]:4222", ("nats://[::1]:4222",)),
    ],
)
def test_servers(text, servers):
    """
    Servers are a comma list; the scheme may be left out.
    """
    assert parse("sink", {"servers": text}).connection.servers == servers


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "$JS.API"),
        ({"jsDomain": "hub"}, "$JS.hub.API"),
        ({"jsApiPrefix": "JS.imported."}, "JS.imported"),
    ],
    ids=["default", "domain", "prefix"],
)
def test_api_prefix(options, prefix):
    """
    A domain is a prefix of its own; a prefix may end in a dot.
    """
    assert parse("sink", options).connection.api_prefix == prefix


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
            "priorityTimeout": "3s",
            "maxRecordsPerTrigger": "9",
            "maxBytesPerTrigger": "1KiB",
            "minRecordsPerTrigger": "9",
            "maxTriggerDelay": "1m",
            "failOnDataLoss": "false",
            "includeHeaders": "true",
            "readMode": "consumer",
        },
    )

    assert dataclasses.asdict(parsed) | {"connection": None, "starting": None} == {
        "connection": None,
        "starting": None,
        "stream": "S",
        "subject": None,
        "partitions": 4,
        "partition_subject": "a.{partition}.>",
        "include_headers": True,
        "fail_on_data_loss": False,
        "min_partitions": None,
        "max_records_per_partition": None,
        "consumer": "mine",
        "priority_group": "g",
        "priority_timeout_s": 3.0,
        "read_mode": "consumer",
        "max_records": 9,
        "max_bytes": 1024,
        "min_records": 9,
        "max_trigger_delay_s": 60.0,
    }


def test_direct_reads_may_be_split():
    """
    `minPartitions` and `maxRecordsPerPartition` go with direct reads.
    """
    split = {"minPartitions": "3", "maxRecordsPerPartition": "10"}
    stream = parse("stream", {"readMode": "direct"} | split)
    batch = parse("range", split)

    assert (stream.min_partitions, stream.max_records_per_partition) == (3, 10)
    assert (batch.min_partitions, batch.max_records_per_partition) == (3, 10)


def secretive(tmp_path) -> list[dict[str, str]]:
    """Sets of options that hold a secret, each in another place."""
    seed = tmp_path / "seed"
    seed.write_text(SECRET)
    creds = tmp_path / "creds"
    creds.write_text(f"-----BEGIN NATS USER JWT-----\n{SECRET}")
    return [
        {"user": "u", "password": SECRET},
        {"token": SECRET},
        {"credentials": f"-----BEGIN NATS USER JWT-----\n{SECRET}"},
        {"credentialsFile": str(creds)},
        {"nkeySeedFile": str(seed)},
    ]


@pytest.mark.parametrize("kind", PARSERS)
def test_no_secret_shows_in_parsed_options(kind, tmp_path):
    """
    `repr`, `str` and `format` of parsed options hold no secret, wherever it was given; a task
    still gets it.
    """
    for options in secretive(tmp_path):
        parsed = parse(kind, options)
        shown = f"{parsed!r} {parsed} {parsed.connection} {parsed.connection.display_servers}"
        shown += f"{dataclasses.asdict(parsed.connection) | {'servers': None}}"

        assert SECRET not in shown, list(options)
        assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize("kind", PARSERS)
def test_no_secret_shows_in_an_error(kind, tmp_path):
    """
    An error about other options, or about the secret one, holds no secret: not as text, not
    in its arguments, and not once pickled.
    """
    for options in secretive(tmp_path):
        for mistake in ({"requestTimeout": "x"}, {"nonsense": "1"}, {"token": "t", "user": "u"}):
            error = refused(kind, mistake | options)

            for each in (error, pickle.loads(pickle.dumps(error))):
                assert SECRET not in f"{each} {each!r} {each.args}", list(options)
            assert error.__context__ is None or error.__suppress_context__


@pytest.mark.parametrize(
    "servers",
    [
        f"nats://u:pa/{SECRET}@h",
        f"nats://u:{SECRET}/x@h",
        f"u:{SECRET}@no host",
        f"nats://u:p@{SECRET}@h",
        f"nats://u:{SECRET},{SECRET}@h",
        f"http://u:{SECRET}@h",
        f"nats://u:{SECRET}@h:port",
        f"nats://u:{SECRET}@",
        f"nats://u:{SECRET}@h:4222",
        f"{SECRET}@h:4222,nats://x:{SECRET}@i",
    ],
)
def test_a_user_in_a_url_is_refused_and_not_shown(servers):
    """
    A server list with credentials in it is refused, because query plans show it, and not quoted.
    """
    error = refused("sink", {"servers": servers})

    assert SECRET not in str(error)
    assert "user and password" in str(error)


def test_a_bad_credentials_text_is_not_quoted():
    """
    Credentials without a JWT are refused without showing them.
    """
    assert SECRET not in str(refused("sink", {"credentials": SECRET}))


def test_secret_reveals_only_when_asked():
    """
    A secret prints as stars, compares and hashes by value, and survives pickling.
    """
    secret = Secret(SECRET)

    assert f"{secret} {secret!r} {[secret]} %s" % secret == "*** *** [***] ***"
    assert pickle.loads(pickle.dumps(secret)).reveal() == SECRET
    assert secret == Secret(SECRET) and hash(secret) == hash(Secret(SECRET))
    assert secret != SECRET


def test_every_option_has_one_sentence():
    """
    The table's docs are sentences, names are unique within a kind, and secrets are marked.
    """
    for kind in PARSERS:
        names = [option.name for option in OPTIONS if kind in option.kinds]
        assert len(names) == len(set(names))

    assert all(option.doc.endswith(".") for option in OPTIONS)
    assert {o.name for o in OPTIONS if o.secret} == {"credentials", "password", "token"}


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
        ({}, ("gradient", 1, 64, 4096)),
        ({"maxInFlight": "1"}, ("gradient", 1, 64, 1)),
        (
            {"minInFlight": "8", "initialInFlight": "8", "maxInFlight": "8"},
            ("gradient", 8, 8, 8),
        ),
        ({"limiter": "fixed", "maxInFlight": "9"}, ("fixed", 1, 64, 9)),
    ],
)
def test_limits_in_flight(given, expected):
    """
    minInFlight ≤ initialInFlight ≤ maxInFlight; what is not given does not contradict.
    """
    parsed = parse("sink", given)

    assert expected == (
        parsed.limiter,
        parsed.min_in_flight,
        parsed.initial_in_flight,
        parsed.max_in_flight,
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


# ── pressure ─────────────────────────────────────────────────────────────────────────────────


def test_a_write_under_pressure():
    """
    What the options of pauses, queue, priorities and shedding become.
    """
    options = parse_sink(
        {
            "throttleSubject": "ops.throttle",
            "throttleMode": "fail-fast",
            "throttleMaxWait": "1m",
            "throttleBufferBytes": "1MiB",
            "queueSize": "sqrt",
            "queueBytes": "2MiB",
            "queueTimeout": "30s",
            "publishTimeout": "20s",
            "overloadPolicy": "dead-letter",
            "deadLetterSubject": "dead.{subject}",
            "shedPriorities": "normal, non-critical",
            "overloadWindow": "3s",
            "prioritySubjects": "orders.>=critical, metrics.*=non-critical",
            "priorityHeader": "X-Priority",
            "priorityClaim": "tenant",
            "priorityClaimValues": "acme=critical",
            "priorityStrategies": "claim, header",
            "priorityResolver": "mine.rules:urgency",
        }
    )

    assert options.throttle
    assert options.throttle_subject == "ops.throttle"
    assert options.dead_letter_subject == "dead.{subject}"
    assert options.rules == Rules(
        queue_size="sqrt",
        queue_bytes=2 << 20,
        parked_bytes=1 << 20,
        sheddable=frozenset({Priority.NORMAL, Priority.NON_CRITICAL}),
        overload_window_s=3.0,
        queue_timeout_s=30.0,
        publish_timeout_s=20.0,
        throttle_max_wait_s=60.0,
        fail_fast=True,
    )
    assert options.priorities == Priorities(
        subjects=(("orders.>", Priority.CRITICAL), ("metrics.*", Priority.NON_CRITICAL)),
        header="X-Priority",
        claim="tenant",
        claim_values=(("acme", Priority.CRITICAL),),
        strategies=("claim", "header"),
    )
    assert options.priority_resolver == "mine.rules:urgency"


def test_a18_nothing_is_shed_by_default():
    """
    A18, I3: the default is to block; with another policy only non-critical rows are shed.
    """
    assert parse_sink({}).rules.sheddable == frozenset()
    assert parse_sink({"overloadPolicy": "drop"}).rules.sheddable == {Priority.NON_CRITICAL}


@pytest.mark.parametrize(
    ("given", "blamed", "text"),
    [
        ({"overloadPolicy": "dead-letter"}, "deadLetterSubject", "give both"),
        ({"deadLetterSubject": "dead"}, "deadLetterSubject", "give both"),
        ({"deadLetterSubject": "dead.*"}, "deadLetterSubject", "wildcard"),
        (
            {"overloadPolicy": "dead-letter", "deadLetterSubject": "dead", "subject": "dead"},
            "deadLetterSubject",
            "dead",
        ),
        ({"overloadPolicy": "drop", "shedPriorities": "critical"}, "shedPriorities", "never shed"),
        ({"overloadPolicy": "drop", "shedPriorities": "low"}, "shedPriorities", "expected"),
        ({"shedPriorities": "normal"}, "shedPriorities", "block"),
        ({"overloadWindow": "1s"}, "overloadWindow", "block"),
        ({"priorityClaim": "tenant"}, "priorityClaim", "give both"),
        ({"priorityClaimValues": "a=critical"}, "priorityClaim", "give both"),
        ({"prioritySubjects": "orders.>=high"}, "prioritySubjects", "critical, normal"),
        ({"priorityStrategies": "header, header"}, "priorityStrategies", "each once"),
        ({"priorityResolver": "function"}, "priorityResolver", "package.module:function"),
        ({"throttle": "false", "throttleSubject": "a"}, "throttleSubject", "throttle=false"),
        ({"throttleSubject": "a.*"}, "throttleSubject", "wildcard"),
        ({"queueSize": "none"}, "queueSize", "auto, sqrt"),
    ],
)
def test_a19_a20_pressure_that_cannot_be_meant_is_refused(given, blamed, text):
    """
    A19, A20: critical rows are never shed, and dead letters have somewhere to go: on the driver.
    """
    with pytest.raises(OptionError) as raised:
        parse_sink(given)
    assert raised.value.option == blamed
    assert text in str(raised.value)
