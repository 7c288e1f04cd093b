"""What a micro-batch asks the server, counted as it goes over the wire."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from datetime import timedelta

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.client import connection
from pyspark_jetstream.fetch import survey
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream import rangedriver
from pyspark_jetstream.readstream.pinned import durables
from pyspark_jetstream.readstream.reader import StreamReader

from ..kits.proxy import Proxy
from ..kits.reading import hang_up
from ..kits.shared import eventually

_SENT = re.compile(rb"(?:^|\r\n)(?:H?PUB \$JS\.API\.([A-Z.]+[A-Z])\.|(PING)\r)")


@pytest.fixture
def wire(nats_server, monkeypatch):
    """A proxy before the server; nothing is asked because time has passed."""
    monkeypatch.setattr(survey, "_COVER_EVERY_S", math.inf)
    monkeypatch.setattr(survey, "_TRUSTED", timedelta.max)
    monkeypatch.setattr(durables, "_LOOK_EVERY_S", math.inf)
    monkeypatch.setattr(connection, "_RECENT_S", math.inf)
    monkeypatch.setattr(rangedriver, "_LOOK_EVERY_S", math.inf)
    with Proxy(nats_server.port) as proxy:
        yield proxy
        hang_up()


class Heard:
    """What clients have asked since this was looked at last, by request."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._marks: list[int] = []

    def __call__(self) -> dict[str, int]:
        new = b""
        for index, said in enumerate(self._proxy.heard):
            new += b"\r\n" + said[self._marks[index] if index < len(self._marks) else 0 :]
        self._marks = [len(said) for said in self._proxy.heard]
        return dict(Counter((found[1] or found[2]).decode() for found in _SENT.finditer(new)))


TASK = {"CONSUMER.INFO": 1, "CONSUMER.MSG.NEXT": 1}
"""
What a task asks for its few messages under the pin of the one before: where the consumer stands,
the messages.
"""

SETTLING = {
    "limits": {},
    "interest": {"CONSUMER.INFO": 1, "CONSUMER.RESET": 1},
    "workqueue": {"STREAM.PURGE": 1},
}
"""A partition, at the commit."""


def times(count: int, asked: dict[str, int]) -> dict[str, int]:
    return {name: count * number for name, number in asked.items()}


CASES = [
    ("limits", 4, 4),
    ("limits", 8, 8),
    ("limits", 8, 2),
    ("interest", 2, 2),
    ("workqueue", 2, 2),
]


@pytest.mark.parametrize(("retention", "partitions", "busy"), CASES)
@pytest.mark.parametrize("layout", ["streams", "filtered"])
def test_a_micro_batch_asks_for_no_more_than_it_needs(
    wire, js, new_stream, publish, layout, retention, partitions, busy
):
    """
    Near the end, batch after batch: of a partition without messages nothing is asked, however many
    there are. The driver looks at each stream that may have some, along with consumers that it
    keeps messages for. Where partitions share a stream it reads what came, for all of them at one
    time, and looks once more. A query that waits asks nothing.
    """
    if layout == "streams":
        base = new_stream()
        names = [new_stream(f"{base}-{p}", retention=retention) for p in range(partitions)]
        options = {"stream": f"{base}-{{partition}}"}
        subjects = [f"{name}.x" for name in names]
        look, counted, again = {"STREAM.INFO": busy}, {}, {}
    else:
        name = new_stream(retention=retention)
        names = [name] * partitions
        options = {"stream": name, "partitionSubject": f"{name}.{{partition}}.>"}
        subjects = [f"{name}.{p}.x" for p in range(partitions)]
        look = again = {"STREAM.INFO": 1}
        counted = {"DIRECT.GET": 1}
    kept = {"CONSUMER.INFO": busy} if retention != "limits" else {}
    options |= {"servers": wire.url, "partitions": str(partitions), "readMode": "consumer"}
    source = StreamReader(parse_stream(options))
    heard = Heard(wire)

    def batch(start):
        end = json.loads(json.dumps(source.latestOffset(start, ReadAllAvailable())))
        looked = heard()
        source.commit(start)
        settled = heard()
        tasks = source.partitions(start, end)
        planned = heard()
        rows = sum(batch.num_rows for task in tasks for batch in source.read(task))
        return end, rows, (looked, settled, planned, heard())

    def pins_are_known():
        for p in range(busy):
            (info,) = js.consumer_infos([(names[p], f"{at['consumer']}-{p}")])
            if info.pinned_id and source.driver._durables._neighbours.pin(p) != info.pinned_id:
                return False
        return True

    at, *_ = batch(source.initialOffset())
    seen = []
    for _ in range(5):
        publish([(subject, b"x") for subject in subjects[:busy]])
        at, rows, asked = batch(at)
        assert rows == busy
        seen.append(asked)
        eventually(pins_are_known)
    idle = [{"": 0}]
    while idle[-1] and len(idle) < 20:
        assert source.latestOffset(at, ReadAllAvailable()) == at
        idle.append(heard())
    source.stop()

    for looked, settled, planned, read in seen[2:]:
        assert looked == Counter(look) + Counter(kept) + Counter(counted)
        assert settled == times(busy, SETTLING[retention])
        assert planned == (again | kept if again else {})
        # Where others were purged the consumer has moved on, and is put back.
        unpinned = {"CONSUMER.UNPIN": busy} if retention == "workqueue" else {}
        spare = Counter({"CONSUMER.RESET": 1} if unpinned and layout == "filtered" else {})
        assert Counter(read) - spare == Counter(times(busy, TASK) | unpinned)
    assert idle[-1] == {}


@pytest.mark.parametrize("layout", ["streams", "filtered"])
def test_a_query_that_waits_looks_in_turns(wire, new_stream, monkeypatch, layout):
    """
    Of twelve partitions at eight at a time, each with its consumer, and at all of them in the end;
    a stream that they share is one.
    """
    monkeypatch.setattr(rangedriver, "_LOOK_EVERY_S", 0.0)
    base = new_stream()
    options = {"servers": wire.url, "partitions": "12", "stream": base}
    if layout == "streams":
        for p in range(12):
            new_stream(f"{base}-{p}")
        options["stream"] = f"{base}-{{partition}}"
    else:
        options["partitionSubject"] = f"{base}.{{partition}}.>"
    source = StreamReader(parse_stream(options))
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    source.partitions(source.initialOffset(), end)
    assert source.latestOffset(end, ReadAllAvailable()) == end
    heard = Heard(wire)
    heard()
    monkeypatch.setattr(durables, "_LOOK_EVERY_S", 0.0)
    asked, seen = [], set()
    for _ in range(3):
        source.driver._watched.look_where_unheard(0.0, ())
        asked.append(heard())
        seen |= source.driver._watched.seen.consumers.keys()
    source.stop()

    streams = 8 if layout == "streams" else 1
    assert asked == [{"STREAM.INFO": streams, "CONSUMER.INFO": 8}] * 3
    assert seen == set(range(12))


def test_consumers_of_a_new_query_are_made_in_one_round_trip(nats_server, new_stream, monkeypatch):
    """However many partitions it has: far from the server each one more would be another."""
    stream = new_stream()
    together: list[int] = []
    original = connection.Connection.requests

    def counting(self, requests, *rest):
        made = sum(".CONSUMER.CREATE." in request[0] for request in requests)
        together.extend([made] if made else [])
        return original(self, requests, *rest)

    monkeypatch.setattr(connection.Connection, "requests", counting)
    options = {"servers": nats_server.url, "stream": stream, "partitions": "4"}
    options |= {"partitionSubject": f"{stream}.{{partition}}.>", "readMode": "consumer"}
    query = StreamReader(parse_stream(options))
    try:
        begin = query.initialOffset()
        end = query.latestOffset(begin, ReadAllAvailable())
        query.partitions(begin, end)
    finally:
        query.stop()

    assert together == [4]
