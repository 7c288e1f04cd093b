"""Reading what an earlier attempt of a write has stored, from a stream with anything in it."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch.pulling import pulls
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.exactlyonce.recovery import Recovery
from pyspark_jetstream.write.exactlyonce.targetstate import FoundStream

from ..kits.options import connection_of
from ..kits.servers import DevServer
from .test_strangers import hpub


@pytest.mark.parametrize("pull", [20_000, 2])
def test_what_others_stored_stops_nobody(monkeypatch, pull):
    """
    A header block of a single byte, with which a consumer that brings headers only ends the server,
    messages larger than a pull's bytes, and a pull that ends with its last message: every row is
    found, and the server lives.
    """
    monkeypatch.setattr(pulls, "_PULL_MESSAGES", pull)
    with DevServer("max_payload: 16MB") as server:
        client = Client(connection_of(server.url, request_timeout_s=60.0))
        js = JetStream(client)
        try:
            js.create_stream({"name": "S", "subjects": ["S.>"]})
            empty = js.stream_info("S")
            large = bytes(9 << 20)
            for row, data in enumerate([b"a", b"b", large, large, b"c", b"d"]):
                js.publish("S.a", data, [("Nats-Msg-Id", f"t-0-{row}")])
                hpub(js, [(b"S.b", b"A", b"body")])
            found = Recovery(client, TaskName("w", 0, 0), [FoundStream.of(empty)], "t")
            found.refresh()
            stored = found._found["S"].between(0, 9)

            assert stored["row"].to_pylist() == list(range(6))
            assert stored["size"].to_pylist() == [1, 1, 9 << 20, 9 << 20, 1, 1]
            assert js.stream_info("S").messages == 12
        finally:
            client.close()
