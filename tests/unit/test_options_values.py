"""Options: how the text of a value is read, and what is none."""

from __future__ import annotations

import pytest

from ..kits.options import parse, refused


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
        ("stream", "priorityPolicy", "pinned", "pinned_client"),
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
        ("stream", "startingOffsets", '{"0": -3}', "JSON"),
        ("stream", "startingOffsets", '{"0": 1.0}', "JSON"),
        ("stream", "startingOffsets", '{"0": true}', "JSON"),
        ("stream", "startingOffsets", '{"0": null}', "JSON"),
        ("stream", "startingOffsets", '{"0": [1]}', "JSON"),
        ("stream", "startingOffsets", '{"0": "soon"}', "JSON"),
        ("stream", "startingOffsets", "[" * 100_000, "JSON"),
        ("stream", "startingTimestamp", "yesterday", "RFC 3339"),
        ("stream", "startingTimestamp", '{"S": {"0": "yesterday"}}', "RFC 3339"),
        ("stream", "startingTimestamp", '{"S": {"0": 3}}', "expected a moment, or JSON"),
        ("stream", "startingTimestamp", '{"0": "-10m"}', "expected a moment, or JSON"),
        ("stream", "startingTimestamp", "{", "expected a moment, or JSON"),
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
        ("sink", "publishOrder", "random", "subject or strict or none"),
        ("sink", "ackTimeout", "soon", "unit"),
        ("sink", "tlsCaFile", "/no/such/file", "no such file"),
        ("sink", "credentialsFile", "/no/such/file", "no such file"),
        ("sink", "credentials", "no creds", "NATS USER JWT"),
        ("sink", "jsDomain", "a.b", "without dots"),
        ("sink", "jsApiPrefix", "a..b", "empty"),
        ("sink", "inboxPrefix", "a..b", "empty"),
        ("stream", "inboxPrefix", "_INBOX.>", "wildcard"),
        ("range", "inboxPrefix", "$JS.API", "nobody's"),
        ("sink", "inboxPrefix", "x" * 49, "48"),
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
    assert parse("stream", {"maxBytesPerTrigger": text}).max_bytes == size


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
