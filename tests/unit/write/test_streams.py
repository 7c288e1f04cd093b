"""Requests about the streams of a task's rows: two threads make them over one connection."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

from pyspark_jetstream.client.connection import Client, Reply
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.write.streams import Streams

from ...kits.options import connection_of, sink_of

TIME = "2026-01-01T00:00:00Z"


def answer(subject: str) -> bytes:
    """Of STREAM.INFO, and of STREAM.NAMES as well."""
    state = {"first_seq": 1, "last_seq": 0, "messages": 0, "bytes": 0, "subjects": {}}
    config = {"name": subject.rpartition(".")[2], "subjects": ["a"]}
    info = {"config": config, "created": TIME, "ts": TIME, "state": state, "streams": ["S"]}
    return json.dumps(info).encode()


class Lock:
    """A lock that says when another thread than the maker of rows wants it."""

    def __init__(self, lock, wanted):
        self._lock, self._wanted = lock, wanted

    def __enter__(self):
        if threading.current_thread().name != "rows":
            self._wanted.set()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


def test_the_maker_of_rows_and_their_publisher_take_turns(monkeypatch):
    """
    While the one looks up a stream, the other, which does so too, waits: a connection is read by
    one thread at a time.
    """
    asking, wanted, turns = threading.Event(), threading.Event(), list[str]()

    def requests(_: Client, requests, *more) -> list[Reply]:
        name = threading.current_thread().name
        turns.append(name)
        if name == "rows":
            asking.set()
            assert wanted.wait(60)
        wanted.set()
        turns.append(f"{name} done")
        return [Reply(0, "", b"", answer(subject)) for subject, *_ in requests]

    monkeypatch.setattr(Client, "requests", requests)
    monkeypatch.setattr(Client, "connection", SimpleNamespace(max_payload=1 << 20))
    options = sink_of(connection_of("nats://model"), ledger=True)
    streams = Streams(Client(options.connection), options)
    streams.requests, streams.publishing = Lock(streams.requests, wanted), True
    wanted.clear()
    turns.clear()
    maker = threading.Thread(target=streams.find, args=(["a"],), name="rows")
    maker.start()
    assert asking.wait(60)
    assert streams.find(["b"]) == [Target.parse({"name": "S", "subjects": ["a"]})]
    maker.join()

    mine = threading.current_thread().name
    assert turns == ["rows", "rows done"] * 2 + [mine, f"{mine} done"] * 2
