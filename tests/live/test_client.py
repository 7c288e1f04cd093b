"""Connections to real servers: reaching and losing them, prefixes, lending clients to tasks."""

from __future__ import annotations

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_jetstream.client import connection, wire
from pyspark_jetstream.client.connection import Client, borrow
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import NotConnectedError, PermissionsError, RequestTimeoutError
from pyspark_jetstream.values import Secret

from ..kits.clients import account_info, options, serving
from ..kits.servers import DevServer


def free_port():
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_a_server_that_is_down_is_passed_over(nats_server):
    """Of several servers the first that is up is taken."""
    for down in (f"nats://127.0.0.1:{free_port()}", "nats://no-such-host.invalid:4222"):
        assert "memory" in account_info(options(down, nats_server.url))


def test_a_restart_between_requests_does_not_show():
    """Requests reconnect to a server that was killed and came back."""
    with serving(streams={}, request_timeout_s=15.0) as (server, js):
        client = js.client
        first = client.request("$JS.API.INFO")
        server.kill()
        timer = threading.Timer(1.0, server.restart)
        timer.start()
        second = client.request("$JS.API.INFO")
        timer.join()

    assert first.status == second.status == 0


def test_an_answer_goes_where_it_may_and_costs_no_connection():
    """A stranger may ask by a subject of a stream, or for more than max_payload has room for."""
    with serving("max_payload: 1024", {"s": {}}) as (_, js):
        connection = js.client.connection
        inbox = connection.new_inbox()
        sid = connection.subscribe(inbox)
        for reply, data in [(inbox, b"x" * 1025), ("s.a", b"forged"), (inbox, b"x" * 1024)]:
            connection.answer(reply.encode(), data)
        frame = connection.next_frame(time.monotonic() + 10.0)

        assert (frame.sid, frame.data) == (sid, b"x" * 1024)
        assert js.stream_info("s").last_seq == 0


def test_a_server_that_does_not_answer():
    """A frozen server ends in a typed error, on an open connection and on a new one."""
    with serving(streams={}, request_timeout_s=3.0, connect_timeout_s=3.0) as (server, js):
        client = js.client
        client.request("$JS.API.INFO")
        server.pause()
        try:
            with pytest.raises(RequestTimeoutError, match="requestTimeout"):
                client.request("$JS.API.INFO")
            with pytest.raises(NotConnectedError):
                client.request("$JS.API.INFO")
        finally:
            server.resume()
        assert client.request("$JS.API.INFO").status == 0


def test_a_client_is_lent_again_after_success_only(nats_server):
    """A thread's next task gets the connection of one that ended well, else a new one."""
    opts = options(nats_server.url, client_name="lending")
    with borrow(opts) as first:
        kept = first.connection
    with pytest.raises(ValueError), borrow(opts) as second:
        assert second.connection is kept
        raise ValueError
    with borrow(opts) as third:
        assert third.connection is not kept
        third.request("$JS.API.INFO")
    with borrow(opts) as last:
        last.close()


def test_two_tasks_at_once_have_two_connections(nats_server):
    """A client that is lent is not lent a second time."""
    opts = options(nats_server.url, client_name="twice")
    with borrow(opts) as one, borrow(opts) as two:
        assert one.connection is not two.connection
    with borrow(opts) as last:
        last.close()
    two.close()


def test_a_connection_of_a_server_that_went_away_is_not_lent():
    """A kept connection is tried before it is lent."""
    with DevServer() as server:
        opts = options(server.url)
        with borrow(opts) as client:
            client.request("$JS.API.INFO")
        server.restart()
        with borrow(opts) as client:
            assert client.request("$JS.API.INFO").status == 0
            client.close()


def test_reply_subjects_cannot_be_guessed(nats_server):
    """Who was asked knows nothing of the next request's reply subject."""
    asker, other = Client(options(nats_server.url)), Client(options(nats_server.url))
    mine, theirs = asker.connection, other.connection
    theirs.subscribe("ask")
    theirs.ping(60.0)
    seen = []

    def answer():
        frame = theirs.next_frame(time.monotonic() + 60)
        inbox, _, token = frame.reply.decode().rpartition(".")
        seen.append(token)
        for number in range(100):
            theirs.send(wire.pub(f"{inbox}.{number}", b"forged"))
        theirs.send(wire.pub(frame.reply.decode(), b"true"))

    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            answering = pool.submit(answer)
            assert mine.request("ask", b"", 10.0).data == b"true"
            answering.result()
    asker.close()
    other.close()

    assert all(re.fullmatch("[0-9a-f]{16}", token) for token in seen)
    assert len({*seen}) == 2
    assert len({mine.new_inbox() for _ in range(1000)}) == 1000


def test_what_takes_the_server_longer_is_waited_for(nats_server, monkeypatch):
    """Each attempt lasts twice as long as the one before, so slow answers count at last."""
    monkeypatch.setattr(connection, "_ATTEMPT_S", 0.1)
    asker = Client(options(nats_server.url, api_prefix="$JS.slow.API"))
    other = Client(options(nats_server.url))
    gathering = other.connection
    gathering.subscribe("$JS.slow.API.CONSUMER.LIST.S")
    gathering.ping(60.0)
    asked: list[str] = []
    listed = threading.Event()

    def gather():
        while not listed.is_set():
            frame = gathering.next_frame(time.monotonic() + 0.05)
            if frame is None or not frame.reply:
                continue
            asked.append(frame.reply.decode())
            if len(asked) > 2:
                time.sleep(0.3)
                gathering.send(wire.pub(asked[-1], b'{"total": 1, "missing": ["gone"]}'))

    with ThreadPoolExecutor(1) as pool:
        gathered = pool.submit(gather)
        try:
            found = JetStream(asker).consumer_list("S")
        finally:
            listed.set()
        gathered.result()
    asker.close()
    other.close()

    assert found == ([], ["gone"])
    assert len(asked) > 2


def test_many_requests_at_once(js, new_stream):
    """Requests sent together are answered in the order they were asked."""
    streams = [new_stream() for _ in range(20)]
    infos = js.stream_infos(streams)

    assert [info.name for info in infos] == streams


def test_answers_that_are_more_than_a_server_holds():
    """They are asked for in parts: else a connection that is cut off for them is cut off again."""
    with serving("max_pending: 2MB") as (_, js):
        for _ in range(60):
            js.client.request("S.x", bytes(1_000_000))

        assert all(js.messages("S", [{"seq": seq} for seq in range(1, 61)]))


READER = """
authorization { users: [
  { user: admin, password: pw-a }
  { user: reader, password: pw-r, permissions: {
      publish: ["$JS.API.INFO"], subscribe: ["_INBOX.>"] } }
] }
"""


def test_requests_that_are_forbidden_together_are_one_error():
    """The server says of each that it is forbidden; what is asked next does not hear of it."""
    with serving(READER, {}, user="reader", password=Secret("pw-r")) as (_, js):
        client = js.client
        forbidden = [(f"$JS.API.STREAM.INFO.S{n}", b"") for n in range(50)]
        for _ in range(20):
            with pytest.raises(PermissionsError):
                client.requests(forbidden)
            assert client.request("$JS.API.INFO").data
