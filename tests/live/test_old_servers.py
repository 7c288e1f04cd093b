"""Servers that are too old: what is missing and since when, never a wrong answer or a wait."""

import pytest
from pyspark.sql.types import StringType, StructType

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import UnsupportedServerError
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice
from pyspark_jetstream.options import parse_sink

from ..kits.proxy import Proxy, info_with
from ..kits.recorded import INFO_2_9, RecordedServer, stream_2_9

ROWS = StructType().add("subject", StringType()).add("data", StringType())


@pytest.fixture
def old():
    """nats-server 2.9.25, as far as it was recorded."""
    with RecordedServer(INFO_2_9, stream_2_9()) as server:
        yield server


@pytest.fixture
def mixed():
    """A cluster: the server we are connected to is new, the one that has the stream is old."""
    with RecordedServer(INFO_2_9 | {"version": "2.15.1"}, stream_2_9()) as server:
        yield server


CALLS = {
    "batch": lambda calls: list(calls.batch(3, sequence=1)),
    "batch-next": lambda calls: list(calls.batch(3, "S.>")),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_old_server_shows_in_its_first_answer(mixed, call):
    """The first reply without Nats-Num-Pending shows it (ADR-31), in a cluster as well."""
    with (
        DirectCalls.open({"servers": mixed.url}, "S") as calls,
        pytest.raises(
            UnsupportedServerError, match=r"this one is 2\.15\.1, but an older one has answered"
        ),
    ):
        CALLS[call](calls)


@pytest.mark.parametrize("server", ["old", "mixed"])
@pytest.mark.parametrize("what", ["count", "range"])
def test_what_reads_are_made_of(request, server, what):
    """Counting and reading a range name what an old server has not, at once."""
    client = Client(parse_sink({"servers": request.getfixturevalue(server).url}).connection)
    js = JetStream(client)
    with pytest.raises(UnsupportedServerError, match="needs nats-server 2.12 or newer"):
        if what == "count":
            js.next_messages([("S", {"seq": 1})])
        else:
            list(read_direct(client, Slice.whole("S", 0, 4)))
    client.close()


@pytest.mark.parametrize("options", [{"sequence": 1}, {"multiLast": "S.>"}, {}])
def test_reads_from_an_old_server(old, options):
    """`spark.read` names on the driver what is missing."""
    given = {"servers": old.url, "stream": "S"} | {k: str(v) for k, v in options.items()}
    source = JetStreamDataSource(given)
    with pytest.raises(UnsupportedServerError, match="needs nats-server 2.12"):
        source.reader(source.schema()).partitions()


def test_a_range_from_a_server_that_counts_otherwise(nats_server, new_stream):
    """nats-server 2.11 has batches, but counts what follows a message with the message itself."""
    with Proxy(nats_server.port, info_with(version="2.11.11")) as proxy:
        source = JetStreamDataSource({"servers": proxy.url, "stream": new_stream()})
        with pytest.raises(UnsupportedServerError, match=r"2\.12 or newer, this one is 2\.11\.11"):
            source.reader(source.schema()).partitions()
