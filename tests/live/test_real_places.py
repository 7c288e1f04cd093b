"""Reads and writes over an account's import, over a leaf node's link, and with short JWTs."""

import time
from contextlib import closing, suppress
from threading import Event, Thread

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.task import write_task

from ..kits.logins import creds_of, operator_mode
from ..kits.options import sink_of
from ..kits.reading import Query
from ..kits.servers import DevServer, free_ports
from ..kits.shared import eventually
from ..kits.streams import stored

COUNT = 50
JWT_S = 8
STREAM = {"name": "S", "subjects": ["S.>"], "allow_direct": True}
SHARED = {"S.>": "S.>", "$KV.>": "A.API.$KV.>", "$JS.ACK.>": "$JS.ACK.>"}


def accounts(type_):
    """Of a server: account B has JetStream by an import, whose export has this response type."""
    exported = "".join(f', {{ service: "{subject}" }}' for subject in SHARED)
    imported = "".join(
        f', {{ service: {{ account: A, subject: "{subject}" }}, to: "{to}" }}'
        for subject, to in SHARED.items()
    )
    return f"""
jetstream: enabled
accounts {{
  A {{ jetstream: enabled, users: [{{ user: a, password: a }}],
       exports: [{{ service: "$JS.API.>", response_type: {type_} }}{exported}] }}
  B {{ users: [{{ user: b, password: b }}],
       imports: [{{ service: {{ account: A, subject: "$JS.API.>" }}, to: "A.API.>" }}{imported}] }}
}}
"""


@pytest.fixture(scope="module", params=["stream", "singleton"])
def place(request):
    """A server with a stream of some messages, the options of account B, and its response type."""
    with DevServer(accounts(request.param)) as server:
        own = parse_connection({"servers": server.url, "user": "a", "password": "a"})
        with closing(Client(own)) as client:
            js = JetStream(client)
            js.create_stream(STREAM)
            for i in range(COUNT):
                js.publish(f"S.{i % 4}", b"%d" % i, [])
        login = {"servers": server.url, "user": "b", "password": "b", "jsApiPrefix": "A.API"}
        yield server, login | {"requestTimeout": "20s"}, request.param


def rows_of(server, **options):
    """The number of rows of a read: a streaming one up to the end, or a batch read."""
    if "startingOffsets" in options:
        query = Query(server, **options)
        try:
            query.drain()
            return len(query.rows)
        finally:
            query.reader.stop()
    source = JetStreamDataSource({name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"startingOffsets": "earliest"}, COUNT),
        ({"startingOffsets": "earliest", "directBelow": 0}, COUNT),
        ({"startingOffsets": "earliest", "consumer": "c", "priorityPolicy": "overflow"}, COUNT),
        ({}, COUNT),
        ({"multiLast": ">"}, 4),
        ({"sequence": 1, "batch": 7}, 7),
    ],
    ids=["streaming", "own", "shared", "range", "snapshot", "call"],
)
def test_reads_of_an_import(place, options, rows):
    """They are exact, or the response type that keeps answers back is named at the start."""
    server, login, type_ = place
    if type_ == "stream":
        assert rows_of(server, stream="S", **login | options) == rows
        return
    with pytest.raises(JetStreamError, match=r"'S' only the first comes.*response_type: stream"):
        rows_of(server, stream="S", **login | options)


def written(login, batch, kill_at=None):
    """Writes a block of rows as an exactly-once task; an attempt before it dies, if asked."""

    def blocks(until):
        for i in range(COUNT):
            if i == until:
                raise InterruptedError
            yield pa.record_batch({"subject": [f"S.{i % 4}"], "data": [f"{batch}-{i}"]})

    connection = parse_connection({name: str(value) for name, value in login.items()})
    options = sink_of(connection, ledger=True)
    with closing(Client(connection)) as client:
        Ledger(JetStream(client)).ensure()
        name = TaskName("w", batch, 0)
        with suppress(InterruptedError):
            if kill_at is not None:
                write_task(client, options, blocks(kill_at), name, Ids(f"w{batch}"))
        found = write_task(client, options, blocks(COUNT), name, Ids(f"w{batch}"))
        assert found.acked + found.already_stored == COUNT


def data_of(js):
    return [message["data"] for message in stored(js, "S").values()]


def test_exactly_once_over_an_import(place):
    """A task that died is known to the next one, or the response type is named."""
    server, login, type_ = place
    if type_ == "singleton":
        with pytest.raises(JetStreamError, match="response_type: stream"):
            written(login, 1, kill_at=30)
        return
    written(login, 1, kill_at=30)
    own = parse_connection({"servers": server.url, "user": "a", "password": "a"})
    with closing(Client(own)) as client:
        mine = [data for data in data_of(JetStream(client)) if data.startswith(b"1-")]
        assert mine == [b"1-%d" % i for i in range(COUNT)]


def test_a_domain_behind_a_leaf_node():
    """Read and write go on where the link was away, and each row is there once."""
    (link,) = free_ports(1)
    hub = f'leafnodes {{ listen: "127.0.0.1:{link}" }}\njetstream {{ domain: hub }}'
    remotes = f'remotes: [{{ url: "nats-leaf://127.0.0.1:{link}" }}], reconnect: 1'
    leaf = f"leafnodes {{ {remotes} }}\njetstream {{ domain: leaf }}"
    with DevServer(hub) as near, DevServer(leaf) as far:
        login = {"servers": near.url, "jsDomain": "leaf", "requestTimeout": "60s"}
        with closing(Client(parse_connection({"servers": far.url}))) as client:
            js = JetStream(client)
            js.create_stream(STREAM)
            query = Query(near, stream="S", **login)
            query.step()
            for batch in range(3):
                written(login, batch, kill_at=20)
                near.restart()
                query.drain()
            query.restart()
            query.drain()
            query.reader.stop()

            assert query.data == data_of(js)
            assert query.data == [b"%d-%d" % (b, i) for b in range(3) for i in range(COUNT)]


def test_short_jwts_under_a_read_and_a_write(tmp_path):
    """Each JWT ends after seconds, and its file is always written anew before: neither notices."""
    mode, creds, over = operator_mode(), tmp_path / "user.creds", Event()

    def renew():
        new = tmp_path / "new.creds"
        new.write_text(creds_of(mode.issued(exp=int(time.time()) + JWT_S), mode.seed))
        new.rename(creds)

    def keep():
        while not over.wait(0.2):
            renew()

    renew()
    keeper = Thread(target=keep)
    keeper.start()
    with DevServer(mode.config) as server:
        login = {"servers": server.url, "credentialsFile": str(creds), "requestTimeout": "60s"}
        with closing(Client(parse_connection(login))) as client:
            js = JetStream(client)
            js.create_stream(STREAM)
            query = Query(server, stream="S", **login)
            query.step()
            for batch in range(3):
                ending = client.connection
                written(login, batch, kill_at=10)
                query.drain()
                eventually(lambda old=ending: js.stream_info("S") and client.connection is not old)
            query.drain()
            query.reader.stop()
            over.set()
            keeper.join()

        assert query.data == [b"%d-%d" % (b, i) for b in range(3) for i in range(COUNT)]
