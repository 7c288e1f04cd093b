"""Servers that leave one after another, and reloads, amid a read and a write."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from threading import Event, Thread

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import JetStreamError, PublishError
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.clients import close_idle
from ..kits.reading import Query
from ..kits.servers import DevCluster, DevServer
from ..kits.shared import eventually
from ..kits.streams import create
from ..kits.writing import WriteQuery

STREAM = {"name": "S", "subjects": ["S.>"], "allow_direct": True}
LAME = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"'
"""The shortest that a server takes; it ends when the last client has gone."""


class Writer(WriteQuery):
    """Batches of 40 rows."""

    def __init__(self, login, replicas=1):
        connection = parse_connection(login)
        super().__init__(connection, "S", publish_timeout_s=100.0, ack_timeout_s=2.0)
        self.written: list[bytes] = []
        with closing(Client(connection)) as client:
            create(JetStream(client), STREAM | {"num_replicas": replicas})
            Ledger(JetStream(client)).ensure()

    def write(self, size=10):
        rows = [b"%d" % n for n in range(40 * self.at, 40 * self.at + 40)]
        found = self.batch([self.rows(40, data=[row.ljust(size) for row in rows])])
        assert found.acked + found.already_stored == 40
        self.written += rows

    def until(self, over):
        while not over.is_set() or len(self.written) < 200:
            self.write()
        close_idle()


def lame(server):
    """Drives its clients away, ends by itself, and comes again."""
    os.kill(server.pid, signal.SIGUSR2)
    eventually(lambda: not server.running, 100)
    server.restart()


@pytest.mark.parametrize("leave", [lame, DevServer.restart], ids=["lame duck", "restart"])
def test_all_servers_leave_one_after_another(leave):
    """Each row is written once, and read once, while the three are restarted."""
    with DevCluster(3, LAME) as cluster:
        login = {"servers": cluster.urls, "requestTimeout": "100s"}
        writer = Writer(login, replicas=3)
        query, over = Query(cluster.servers[0], stream="S", **login), Event()
        query.step()
        writing = Thread(target=writer.until, args=(over,))
        writing.start()
        leaving = Thread(
            target=lambda: [(leave(s), cluster.await_leader()) for s in cluster.servers]
        )
        leaving.start()
        while leaving.is_alive():
            query.step()
        over.set()
        writing.join()
        query.drain()
        query.restart()
        query.drain()
        query.stop()

    assert len(writer.written) >= 200
    assert [data.strip() for data in query.data] == writer.written


@pytest.fixture
def place():
    """A server with a user whose permissions a reload changes, with a read and a write."""
    users = "{ user: u, password: u, permissions: { publish: { deny: [none] } } }"
    with DevServer(f"max_payload: 1000000\nauthorization {{ users: [{users}] }}") as server:
        login = {"servers": server.url, "user": "u", "password": "u", "requestTimeout": "20s"}
        writer = Writer(login)
        query = Query(server, stream="S", **login)
        query.step()
        writer.write(9000)
        query.drain()
        yield server, query, writer
        query.stop()


def test_a_lower_max_payload(place):
    """What is stored is read all the same; a row that is too large now is named, with the limit."""
    server, query, writer = place
    server.reload("max_payload: 1000000", "max_payload: 5000")
    writer.write(1000)
    with pytest.raises(PublishError, match=r"(?i)max(_|imum )payload"):
        writer.write(9000)
    query.drain()
    server.reload("max_payload: 5000", "max_payload: 1000000")
    writer.write(9000)
    query.drain()
    again = Query(server, **query.options)
    again.drain()
    again.stop()

    assert [data.strip() for data in query.data] == writer.written
    assert again.data == query.data


@pytest.mark.parametrize("denied", ['"S.>"', '"$JS.API.DIRECT.>"'])
def test_permissions_that_go_and_come_back(place, denied):
    """Who needs them is told the subject; from then on each row is written and read once."""
    server, query, writer = place
    writes, about = denied == '"S.>"', r"S\.\d" if denied == '"S.>"' else "DIRECT.GET.S"
    attempt = writer.write if writes else query.drain
    if not writes:
        writer.write()
    server.reload(r"deny: \[none\]", f"deny: [{denied}]")
    with pytest.raises(JetStreamError, match=f"(?i)permissions violation.*{about}"):
        attempt()
    server.reload(r"deny: \[.*?\]", "deny: [none]")
    query.restart()
    writer.write()
    query.drain()

    assert [data.strip() for data in query.data] == writer.written


def test_a_login_while_a_server_reloads(place):
    """It refuses everybody for a moment, and nobody notices."""
    server, query, _ = place
    login = {name: text for name, text in query.options.items() if name != "stream"}
    connection, over, logins = parse_connection(login), Event(), 0

    def reloads():
        for sizes in [(1000000, 5000), (5000, 1000000)] * 5:
            server.reload(*(f"max_payload: {size}" for size in sizes))
            time.sleep(0.5)  # else the next one may refuse each further try
        over.set()

    reloading = Thread(target=reloads)
    reloading.start()
    while not over.is_set():
        with closing(Client(connection)) as client:
            client.request("$JS.API.INFO")
            logins += 1
    reloading.join()

    assert logins > 20
