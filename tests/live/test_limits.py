"""Reads and writes where a server, an account or a stream limits what clients may ask for."""

from threading import Timer

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.keyvalue import Bucket
from pyspark_jetstream.errors import LedgerError, NotConnectedError, OptionError, ReadError
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write.creation import create_streams
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.clients import serving
from ..kits.logins import operator_mode
from ..kits.options import connection_of
from ..kits.reading import Query
from ..kits.servers import DevCluster, DevServer
from .test_creation import creation_of

LIMITED = """
jetstream { limits { max_request_batch: 100, max_ack_pending: 50, duplicate_window: "30s" } }
"""
SIZED = """
jetstream: enabled
accounts { A { users: [{user: a, password: x}], jetstream: {max_bytes_required: true} } }
no_auth_user: a
"""
FULL = {
    "server": "max_connections: 1",
    "account": "accounts { A { users: [{user: a, password: x}], limits: {max_connections: 1} } }\n"
    "no_auth_user: a",
}
CONSUMERS = {"inactive_threshold": 3600 * 10**9, "max_ack_pending": 40}
BRIEF = {"inactive_threshold": 5 * 10**9}
COUNT = 250


@pytest.fixture(params=["limits", "interest", "workqueue"])
def retention(request):
    return str(request.param)


@pytest.fixture(scope="module")
def limited():
    with DevServer(LIMITED) as server:
        yield server


@pytest.fixture
def js(limited):
    client = Client(connection_of(limited.url))
    js = JetStream(client)
    yield js
    js.delete_stream("S")
    client.close()


def read(query, js):
    """What a query reads that is there when messages come, over a restart."""
    try:
        query.step()
        query.restart()
        for _ in range(COUNT):
            js.publish("S.a", b"", [])
        query.drain()
        query.restart()
        query.drain()
        return query.sequences
    finally:
        query.reader.stop()


@pytest.mark.parametrize("limits", [{}, CONSUMERS, BRIEF], ids=["server", "stream", "brief"])
def test_a_query_is_granted_what_is_allowed(limited, js, retention, limits, caplog):
    """A limit lowers what is asked for, or fills it in: that is no edit, and nothing is missing."""
    config = {"name": "S", "subjects": ["S.>"], "allow_direct": True, "retention": retention}
    js.create_stream(config | {"consumer_limits": limits})

    assert read(Query(limited, stream="S", directBelow=0), js) == list(range(1, COUNT + 1))
    is_told = retention == "interest" and limits != {}
    assert ("forgets the query's after" in caplog.text) == is_told


def test_queries_that_share_are_granted_what_is_allowed(limited, js):
    """A shared consumer is made with what is allowed; what exceeds it names option and limit."""
    js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
    shared = {"stream": "S", "consumer": "c", "priorityPolicy": "overflow"}
    many = Query(limited, **shared, maxAckPending=51)
    with pytest.raises(OptionError, match="'maxAckPending'.* 50"):
        many.plan()
    many.reader.stop()

    assert sorted(read(Query(limited, **shared), js)) == list(range(1, COUNT + 1))


def test_a_stream_is_made_with_the_window_that_is_allowed(js):
    """Nobody asked for a longer one; who does hears of the limit."""
    with pytest.raises(OptionError, match="'createStream'.* 30s"):
        create_streams(js, creation_of("S", ("S.>",), duplicate_window=60 * 10**9))
    create_streams(js, creation_of("S", ("S.>",)))

    assert js.stream_info("S").config["duplicate_window"] == 30 * 10**9


def test_a_limit_of_consumers_is_named(js, limited):
    """A query whose consumers find no room says which limit is to be raised."""
    config = {"name": "S", "subjects": ["S.>"], "allow_direct": True, "max_consumers": 1}
    js.create_stream(config | {"retention": "interest"})
    first, second = (Query(limited, stream="S", consumer=name) for name in "ab")
    try:
        first.step()
        with pytest.raises(ReadError, match="10026.* look at max_consumers"):
            second.step()
    finally:
        first.reader.stop()
        second.reader.stop()


def test_a_bucket_where_each_stream_has_a_size():
    """An account that wants a limit of bytes gets one."""
    with serving(SIZED, {}) as (_, js):
        bucket = Bucket(js, "RECORDS", "of a test")

        assert bucket.ensure() is None
        with pytest.raises(OptionError, match="have max bytes set; streamConfig"):
            create_streams(js, creation_of("S", ("S.>",)))
        assert bucket.ensure() is None


@pytest.mark.parametrize(
    ("tier", "named"),
    [
        ({"R1": {"streams": 1}}, "maximum number of streams.* R1 max_streams=1"),
        ({"R3": {"streams": 7}}, "no JetStream default or applicable tier.* R3 max_streams=7"),
        ({"R1": {"disk_max_stream_bytes": 999, "max_bytes_required": True}},
         "stream max bytes exceeds account limit.* R1 storage_max_stream_bytes=999"),
        ({"R1": {"disk_storage": 1000, "max_bytes_required": True}},
         "insufficient storage resources.* R1 max_storage=1000"),
    ],
)  # fmt: skip
def test_a_tier_of_the_account_is_named(tier, named):
    """With its value, where a stream or the ledger exceeds it, and nothing refused as well."""
    mode = operator_mode(tier)
    with serving(mode.config, {}, credentials=Secret(mode.creds)) as (_, js):
        with pytest.raises(OptionError, match=f"option 'createStream': stream '[ST]': {named}"):
            for name in "ST":
                create_streams(js, creation_of(name, (f"{name}.>",), max_bytes=2000))
        with pytest.raises(LedgerError, match=named) as caught:
            Ledger(js).ensure()

    assert "nats kv add" not in str(caught.value)


def test_a_limit_of_replicated_assets_is_named():
    """A server that may have no more of them takes no seat of a replicated stream."""
    stream = {"name": "S", "subjects": ["S.>"], "allow_direct": True, "num_replicas": 3}
    with DevCluster(3, "jetstream { limits { max_ha_assets: 1 } }") as cluster:
        query = Query(cluster.servers[0], stream="S")
        client = Client(connection_of(cluster.servers[0].url))
        JetStream(client).create_stream(stream)
        with pytest.raises(ReadError, match="insufficient resources.* max_ha_assets"):
            query.step()
        query.reader.stop()
        client.close()


@pytest.mark.parametrize("of", FULL)
def test_a_limit_of_connections_is_named(of):
    """Who finds no room tries again, and says at last which limit is to be raised."""
    with DevServer(FULL[of]) as server:
        first, hasty, patient = (
            Client(connection_of(server.url, connect_timeout_s=s), at_start=True)
            for s in (5, 1, 60)
        )
        assert first.connection
        with pytest.raises(NotConnectedError, match=r"maximum .*connections exc.* max_connections"):
            _ = hasty.connection
        Timer(0.5, first.close).start()
        assert patient.connection
        patient.close()
