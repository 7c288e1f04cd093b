"""A server whose clock differs from ours: moments before now are before the server's now."""

import re
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream.client.connection import Client, borrow
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.options import parse_read, parse_stream
from pyspark_jetstream.read.singleget import JetStreamCallReader

from ..kits.options import connection_of
from ..kits.proxy import Proxy
from ..kits.ranges import reader
from ..kits.reading import rows_of as rows


def moved(data):
    """What a server says, its clock an hour ahead in the answers of its API."""

    def later(found):
        now = datetime.fromisoformat(found[0].decode()) + timedelta(hours=1)
        return now.strftime("%Y-%m-%dT%H").encode()

    return re.sub(rb'(?<="ts":")\d{4}-\d\d-\d\dT\d\d', later, data)


@pytest.fixture
def ahead(nats_server):
    """Where a server is whose clock is an hour ahead of ours."""
    with Proxy(nats_server.port, rewrite=moved) as proxy:
        yield proxy
        with borrow(parse_connection({"servers": proxy.url})) as client:
            client.drop()


@pytest.fixture
def stream(new_stream, publish):
    """Ten messages of now by our clock, of an hour ago by the server's."""
    name = new_stream()
    publish([(f"{name}.a", b"%d" % i) for i in range(10)])
    return name


@pytest.mark.parametrize("parse", [parse_read, parse_stream])
def test_a_range_starts_and_ends_by_the_servers_clock(ahead, stream, parse):
    """Ten minutes before the messages, and ten behind them, by the server's clock."""
    with closing(Client(connection_of(ahead.url))) as client:
        js = JetStream(client)
        between = js.stream_info(stream).now - datetime.now(UTC)
        assert abs(between - timedelta(hours=1)) < timedelta(minutes=1)
        for text, position in (("-70m", 0), ("-50m", 10)):
            options = parse({"stream": stream, "servers": ahead.url, "startingTimestamp": text})
            survey = Survey(client, options)
            found = survey.positions(options.starting, survey.streams(), "startingOffsets")
            assert found == (position,), text


@pytest.mark.parametrize(("moment", "there"), [("-70m", False), ("-50m", True)])
def test_snapshots_are_as_of_the_servers_clock(ahead, stream, moment, there):
    """Ten minutes before the messages a snapshot is empty, ten minutes behind them it is not."""
    options = {"stream": stream, "multiLast": f"{stream}.a", "upToTime": moment}
    planned = rows(reader(ahead, **options))
    single = rows(JetStreamCallReader(parse_read({"servers": ahead.url, "batch": "1"} | options)))

    assert [row["sequence"] for row in planned] == [10] * there
    assert [row["sequence"] for row in single] == [10] * there
