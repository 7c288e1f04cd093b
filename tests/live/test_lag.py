"""Replicas and mirrors that lag, played by a client: their answers reach no snapshot."""

import json
import random
import threading
import time

import pytest

from pyspark_jetstream import subjects
from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import ReadTimeoutError
from pyspark_jetstream.read import lookups, snapshot

from ..kits.clients import serving
from ..kits.options import connection_of
from ..kits.ranges import as_dict, reader, reduced
from ..kits.reading import rows_of as rows
from ..kits.streams import stored


class LaggingReplica:
    """Answers direct gets from the first messages of the stream."""

    def __init__(self, options, stream, messages, names_beyond=False):
        self.answers = 0
        self._stream = stream
        self._messages = sorted((seq, m["subject"], m["data"]) for seq, m in messages.items())
        self._last = self._messages[-1][0] if self._messages else 0
        self._client = Client(options)
        connection = self._client.connection
        connection.subscribe("lagging")
        connection.ping(60.0)
        self._stop = threading.Event()
        self._knows_beyond = names_beyond
        """As the memory store does: answers as of a sequence that it has not come to."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self):
        connection = self._client.connection
        while not self._stop.is_set():
            frame = connection.next_frame(time.monotonic() + 0.1)
            if frame is None:
                continue
            self.answers += 1
            reply = frame.reply.decode()
            for headers, data in self._answer(json.loads(frame.data)):
                connection.send(wire.pub(reply, data, headers=headers))

    def _answer(self, query):
        first = query.get("seq", 0)
        batched = "batch" in query or "multi_last" in query
        if "multi_last" in query:
            up_to = query.get("up_to_seq", self._last)
            known = self._knows_beyond or up_to <= self._last
            last = {
                subject: (seq, subject, data)
                for seq, subject, data in self._messages
                if known and seq <= up_to
                and any(subjects.matches(each, subject) for each in query["multi_last"])
            }  # fmt: skip
            found = [each for each in sorted(last.values()) if each[0] >= first]
        elif "last_by_subj" in query:
            found = [m for m in self._messages if subjects.matches(query["last_by_subj"], m[1])]
            found = found[-1:]
        else:
            filter_ = query.get("next_by_subj")
            found = [
                m for m in self._messages
                if m[0] >= first and (filter_ is None or subjects.matches(filter_, m[1]))
            ]  # fmt: skip
            if not batched and filter_ is None:
                found = [m for m in found if m[0] == first]
            pending = len(found)
            found = found[: query.get("batch", 1)]
        if not found:
            yield b"NATS/1.0 404 Message Not Found\r\n\r\n", b""
            return
        left = len(found) if "multi_last" in query else pending if batched else 0
        before = 0
        for seq, subject, data in found:
            left -= 1
            lines = [
                ("Nats-Stream", self._stream), ("Nats-Subject", subject),
                ("Nats-Sequence", str(seq)), ("Nats-Time-Stamp", "2026-01-01T00:00:00Z"),
            ]  # fmt: skip
            if batched:
                lines += [("Nats-Num-Pending", str(left)), ("Nats-Last-Sequence", str(before))]
            before = seq
            yield wire.header_block(lines), data
        if batched:
            end = f"Nats-Num-Pending: {left}\r\nNats-Last-Sequence: {before}\r\n"
            if "multi_last" in query:
                end += f"Nats-UpTo-Sequence: {query.get('up_to_seq', self._last)}\r\n"
            yield f"NATS/1.0 204 EOB\r\n{end}\r\n".encode(), b""


MAPPING = """
mappings = {
  "$JS.API.DIRECT.GET.S": [
    {destination: "$JS.API.DIRECT.GET.S", weight: 50%}
    {destination: "lagging", weight: 50%}
  ]
}
"""


@pytest.fixture
def lagged():
    """A server that sends half of the direct gets of stream S elsewhere; S with some messages."""
    with serving(MAPPING) as found:
        yield found


def write(js, count, subjects_, rng):
    """Writes and returns all that the stream then holds."""
    js.client.requests(
        [(f"S.{rng.randrange(subjects_)}", b"%d" % rng.randrange(10**6)) for _ in range(count)]
    )
    return stored(js, "S")


@pytest.mark.parametrize("beyond", [True, False], ids=["memory", "file"])
@pytest.mark.parametrize("way", ["names", "back"])
def test_a_replica_that_lags_is_not_believed(lagged, monkeypatch, way, beyond):
    """With a replica that misses the newest messages every snapshot is exact."""
    monkeypatch.setattr(snapshot, "choose_way", lambda *_: way)
    replicated(monkeypatch)
    (server, js), rng = lagged, random.Random(3)
    old = write(js, 300, 40, rng)
    there = write(js, 300, 60, rng)
    with LaggingReplica(js.client.options, "S", old, beyond) as replica:
        for up_to in (None, 600, 599, 450, 301, 300, 299, 120):
            bound = {"upToSequence": up_to} if up_to else {}
            found = as_dict(rows(reader(server, stream="S", multiLast="S.*", **bound)))

            assert found == reduced(there, [">"], up_to or 600), up_to
    assert replica.answers > 3


def replicated(monkeypatch):
    """Lets the plan take the stream for one with replicas, as only a cluster has them."""
    real = lookups.Lookups.__init__

    def init(self, client, stream, sequence, replicas):
        real(self, client, stream, sequence, 3)

    monkeypatch.setattr(lookups.Lookups, "__init__", init)


def test_a_replica_that_never_catches_up_ends_in_a_typed_error():
    """When nobody who is up to date answers within requestTimeout, the error says so."""
    with serving(MAPPING.replace("50%", "0%", 1).replace("50%", "100%")) as (server, js):
        old = write(js, 1, 1, random.Random(1))
        write(js, 2, 1, random.Random(1))
        client = Client(connection_of(server.url, request_timeout_s=5.0))
        with LaggingReplica(js.client.options, "S", old, True):
            for pin in (3, 2):
                lookup = lookups.Lookups(client, "S", pin, replicas=3)
                with pytest.raises(ReadTimeoutError, match="requestTimeout.*replicas that lag"):
                    list(lookup.last(["S.0"], len))
        client.close()
