"""
Messages whose subject is no UTF-8, which a server stores like any other, in every way of reading.
"""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.errors import ReadError
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read import snapshot
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.read.singleget import JetStreamCallReader
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader
from pyspark_jetstream.subjects import readable

from ..kits.reading import Query, query, rows_of
from ..kits.seeds import fresh
from .test_strangers import hpub

__all__ = ["query"]

SUBJECTS = [
    b"0.a", b"0.\xff", b"1.b", b"0.\xfe", b"0.\xef\xbf\xbd", b"1.\xc3\xa9", b"0.\xff", b"1.c",
]  # fmt: skip
"""Three of which look alike as text, and one more that looks like them and is sound."""

EVERY = {"replace": [1, 2, 3, 4, 5, 6, 7, 8], "drop": [1, 3, 5, 6, 8]}


class Way:
    """A way to read, by its name."""

    def __init__(self, server, monkeypatch, stream) -> None:
        self._server, self._patch = server, monkeypatch
        self._options = {"servers": server.url, "stream": stream, "requestTimeout": "5s"}
        self._filters = {"partitions": "2", "partitionSubject": f"{stream}.{{partition}}.>"}

    def _read(self, kind, **options):
        return rows_of(kind(parse_read(self._options | options)))

    def _stream(self, **options):
        """The rows of a query's first micro-batch, which is committed."""
        one = Query(self._server, **self._options | options)
        try:
            one.batch()
            one.settle()
        finally:
            one.stop()
        return one.rows

    def range(self, **options):
        return self._read(JetStreamRangeReader, **options)

    def range_by_own(self, **options):
        more = {"directBelow": "0"} | options
        reader = JetStreamRangeReader(parse_read(self._options | more))
        assert all(task.work.group for task in reader.partitions())
        return rows_of(reader)

    def consumer(self, **options):
        return self._stream(directBelow="0", **self._filters, **options)

    def shared(self, **options):
        sharing = {"priorityPolicy": "overflow", "consumer": "jobs"}
        return self._stream(**sharing | options)

    def batch(self, **options):
        return self._read(JetStreamCallReader, batch="50", sequence="1", **options)

    def snapshot_by_names(self, **options):
        self._patch.setattr(snapshot, "choose_way", lambda *_: "names")
        return self._read(JetStreamSnapshotReader, multiLast=">", **options)

    def snapshot_from_back(self, **options):
        self._patch.setattr(snapshot, "choose_way", lambda *_: "back")
        return self._read(JetStreamSnapshotReader, multiLast=">", **options)

    def partitioned_batch(self, **options):
        return self._read(JetStreamCallReader, batch="50", sequence="1", **self._filters, **options)

    def partitioned_snapshot(self, **options):
        return self._read(JetStreamSnapshotReader, multiLast=">", **self._filters, **options)


SNAPSHOTS = ["snapshot_by_names", "snapshot_from_back", "partitioned_snapshot"]
WAYS = [
    "range", "range_by_own", "consumer", "shared", "batch", "partitioned_batch", *SNAPSHOTS,
]  # fmt: skip


@pytest.fixture
def strange(js, new_stream):
    """A stream with all of them."""
    stream = new_stream()
    hpub(js, [(stream.encode() + b"." + subject, b"", b"x") for subject in SUBJECTS])
    return stream


@pytest.mark.parametrize("way", WAYS)
def test_it_fails_unless_told_otherwise(nats_server, strange, monkeypatch, way):
    """The error names a sequence, the subject's bytes, and the option."""
    with pytest.raises(ReadError) as caught:
        getattr(Way(nats_server, monkeypatch, strange), way)()

    text = str(caught.value)
    assert any(f"sequence {seq} " in text for seq in (2, 4, 7)), text
    assert rf"b'{strange}.0.\xf" in text and "onInvalidSubject" in text


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_what_is_left_out_counts_as_read(query, js, new_stream, retention):
    """Where a message has no other reason to be gone than that it was read, as well."""
    stream = new_stream(retention=retention)
    one = query(stream=stream, onInvalidSubject="drop")
    one.batch()
    hpub(js, [(stream.encode() + b"." + subject, b"", b"x") for subject in SUBJECTS])
    one.batch()
    one.settle()

    assert one.sequences == EVERY["drop"]


@pytest.mark.parametrize("way", ["snapshot_by_names", "snapshot_from_back"])
def test_a_snapshot_of_others_does_not_mind(nats_server, strange, monkeypatch, way):
    """Where no filter matches them, and where they lie beyond its sequence."""
    of = Way(nats_server, monkeypatch, strange)
    snapshot = getattr(of, way)
    rows = of._read(JetStreamSnapshotReader, multiLast=f"{strange}.1.*")
    assert [row["sequence"] for row in rows] == [3, 6, 8]
    assert [row["sequence"] for row in snapshot(upToSequence="1")] == [1]
    assert [row["sequence"] for row in snapshot(upToSequence="5", onInvalidSubject="replace")] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip


def test_single_gets(nats_server, strange):
    """One message: its text, or none."""

    def got(**options):
        texts = {"servers": nats_server.url, "stream": strange} | options
        return [
            (row["sequence"], row["subject"])
            for row in rows_of(JetStreamCallReader(parse_read(texts)))
        ]

    text = f"{strange}.0.\ufffd"
    for option in ({"sequence": "7"}, {"nextBySubject": f"{strange}.0.*", "sequence": "6"}):
        assert got(**option, onInvalidSubject="replace") == [(7, text)]
        assert got(**option, onInvalidSubject="drop") == []
        with pytest.raises(ReadError, match="sequence 7 "):
            got(**option)
    assert got(lastBySubject=f"{strange}.0.*", onInvalidSubject="replace") == [(7, text)]


@pytest.mark.parametrize("seed", [1, *fresh(__name__)])
def test_it_looks_as_in_the_servers_own_words(nats_server, js, new_stream, seed):
    """JSON of the API has U+FFFD for the same bytes, so that lists of subjects can be compared."""
    rng, stream = random.Random(seed), new_stream()
    pieces = [
        b"\xff",
        b"\xc3",
        b"\xa9",
        b"\xe2\x82\xac",
        b"\xe2\x82",
        b"\xed\xa0\x80",
        b"\xf0\x9f",
        b"a",
    ]
    names = {b"".join(rng.choices(pieces, k=rng.randrange(1, 7))) for _ in range(200)}
    stored = [stream.encode() + b"." + name for name in names]
    hpub(js, [(subject, b"", b"x") for subject in stored])
    rows = Way(nats_server, None, stream).range(onInvalidSubject="replace")

    assert [row["subject"] for row in rows] == list(map(readable, stored))
    asked = js.messages_of([(stream, {"seq": row["sequence"]}) for row in rows])
    assert [message.subject for message in asked] == [row["subject"] for row in rows]
    assert js.subject_counts(stream, [">"])[1].keys() == {row["subject"] for row in rows}


KINDS = {"true": JetStreamRangeReader, "false": JetStreamSnapshotReader}


@pytest.mark.parametrize("history", KINDS)
def test_a_bucket(nats_server, js, new_stream, history):
    """Keys are what is left of subjects; a history is a range, the latest values are a snapshot."""
    name = f"B{new_stream()}"
    new_stream(name=f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=5)
    keys = [b"a", b"\xff", b"\xff", b"b.\xfe", b"c"]
    hpub(js, [(f"$KV.{name}.".encode() + key, b"", b"x") for key in keys])

    def rows(**options):
        texts = {"servers": nats_server.url, "bucket": name, "history": history} | options
        return [(row["revision"], row["key"]) for row in rows_of(KINDS[history](parse_read(texts)))]

    every = [(1, "a"), (2, "\ufffd"), (3, "\ufffd"), (4, "b.\ufffd"), (5, "c")]
    latest = [row for row in every if history == "true" or row[0] != 2]
    assert sorted(rows(onInvalidSubject="replace")) == latest
    assert sorted(rows(onInvalidSubject="drop")) == [(1, "a"), (5, "c")]
    with pytest.raises(ReadError):
        rows()
    assert sorted(rows(onInvalidSubject="drop", keys="a,b.*")) == [(1, "a")]
