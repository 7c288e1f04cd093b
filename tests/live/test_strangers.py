"""Streams with whatever bytes a real server stores: every way of reading."""

import json
import logging

import pyarrow as pa
import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.blocks import lines_of, stored_before
from pyspark_jetstream.fetch.decoding.rows import user_headers
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Layout, Slice
from pyspark_jetstream.readstream.shared import claimedread
from pyspark_jetstream.readstream.shared.claimedread import ClaimedRead

from ..kits.encoder import LISTS, plain_builder
from ..kits.messages import ODD, SOUND
from ..kits.ranges import reader as snapshot
from ..kits.ranges import reading
from ..kits.reading import jobs as query
from ..kits.reading import rows_of as snapshot_rows
from ..kits.streams import answer, delete_messages, stored

__all__ = ["query"]

BLOCKS = [*ODD.values(), *(block for block, _ in SOUND.values())]
LOOKALIKE = b"HMSG a 2 b HMSG a 3 b HMSG a 4 b " * 5000
SUBJECTS = [b"a\rb", b"a\vb", b"a\x0cb", b"a\r", b"a\x00b", b"a\x1cb", b"a\xc2\xa0b", b"a\xc2\x85b"]


def hpub(js, messages):
    """Publishes (subject, header block, payload), each with its PubAck."""
    connection = js.client.connection
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox)
    for subject, block, data in messages:
        line = b"HPUB %b %b %d %d" % (subject, inbox.encode(), len(block), len(block) + len(data))
        connection.send(b"%b\r\n%b%b\r\n" % (line, block, data))
        frame = answer(connection, sid)
        assert b'"error"' not in frame.data, frame
    connection.unsubscribe(sid)


def expected(js, stream):
    """What a read owes, one by one from the leader."""
    return [
        message
        | {"sequence": seq, "headers": user_headers(lines_of(stored_before(message["headers"])))}
        for seq, message in stored(js, stream).items()
    ]


def of(batches):
    names = ("subject", "sequence", "data", "headers")
    return [{name: row[name] for name in names} for each in batches for row in each.to_pylist()]


def filled(js, stream, publish):
    """Ordinary messages with a stranger's between them; what reads of them owe."""
    for i, block in enumerate(BLOCKS):
        publish([(f"{stream}.good.{i}", b"before %d" % i, [("A", str(i))][: i % 2])])
        hpub(js, [(f"{stream}.odd.{i}".encode(), block, b"odd %d\r\n" % i * (i % 3))])
    hpub(js, [(f"{stream}.like".encode(), b"", LOOKALIKE)])
    hpub(js, [(f"{stream}.like".encode(), ODD["no end"], LOOKALIKE)])
    publish([(f"{stream}.good.end", b"end")])
    rows = expected(js, stream)
    headers = [None] * len(ODD) + [each for _, each in SOUND.values()]
    assert [row["headers"] for row in rows[1 : 2 * len(BLOCKS) : 2]] == headers
    return rows


@pytest.fixture
def strange(js, new_stream, publish):
    """A stream with a stranger's messages, and what its reads owe."""
    stream = new_stream()
    return stream, filled(js, stream, publish)


def consumed(js, stream, end, filter=None, headers=True):
    read = reading(stream, end, filter, partition=0, include_headers=headers)
    return [row for each in read.batches(js.client) for row in each.to_pylist()]


def got(js, stream, start, end, filter=None):
    read = Slice(
        partition=0, stream=stream, filter=filter, start=start, end=end, expected=None,
        include_headers=True, fail_on_data_loss=True,
    )  # fmt: skip
    return of(read_direct(js.client, read))


def test_a_consumer_of_ones_own(js, strange):
    """Its deliveries are all read, with and without headers."""
    stream, rows = strange
    found = consumed(js, stream, len(rows))
    assert [{name: row[name] for name in rows[0]} for row in found] == rows

    bare = consumed(js, stream, len(rows), headers=False)
    assert [(row["sequence"], row["data"]) for row in bare] == [
        (row["sequence"], row["data"]) for row in rows
    ]
    for row in rows[1::2]:
        only = consumed(js, stream, len(rows), filter=row["subject"])
        assert [each["sequence"] for each in only if each["subject"] == row["subject"]]


@pytest.mark.parametrize("mode", ["own", "direct"])
def test_a_header_that_could_not_be_written_is_left_out(js, new_stream, mode):
    """Headers that no write takes are left out of reads."""
    stream = new_stream()
    js.publish(f"{stream}.a", b"1", [("ok", "1")])
    bad = [("a b", "1"), ("caf\u00e9", "2"), ("line", "a\rb"), ("", "3"), ("tab\t", "4")]
    js.publish(f"{stream}.a", b"2", [bad[0], ("ok", "2"), *bad[1:], ("last", "5")])
    rows = consumed(js, stream, 2) if mode == "own" else got(js, stream, 0, 2)

    assert [row["headers"] for row in rows] == [
        [("ok", ["1"])], [("ok", ["2"]), ("last", ["5"])],
    ]  # fmt: skip
    headers = pa.array([row["headers"] for row in rows], LISTS)
    batch = pa.record_batch({"subject": ["s", "s"], "data": ["1", "2"], "headers": headers})
    assert len(plain_builder().build(batch)) == 2


def test_direct_mode(js, strange):
    """Ranges that lie anywhere are read whole by batched direct get, filtered or not."""
    stream, rows = strange
    assert got(js, stream, 0, len(rows)) == rows
    for at in range(len(rows)):
        assert got(js, stream, at, at + 1) == rows[at : at + 1]
    odd = [row for row in rows if ".odd." in row["subject"]]
    assert got(js, stream, 0, len(rows), f"{stream}.odd.*") == odd


def test_single_and_batched_direct_gets(nats_server, js, strange):
    """Every call of direct get brings such messages, and none of them passes for a status."""
    stream, rows = strange
    with DirectCalls.open({"servers": nats_server.url}, stream) as calls:
        found = [calls.message(row["sequence"]) for row in rows]
        found += [calls.last(row["subject"]) for row in rows[1 : 2 * len(BLOCKS) : 2]]
        found += list(calls.batch(len(rows), sequence=1))
        found += calls.multi_last([f"{stream}.odd.*"])
        wanted = rows + rows[1 : 2 * len(BLOCKS) : 2] + rows + rows[1 : 2 * len(BLOCKS) : 2]

    assert [each._asdict() | {"timestamp": None} for each in found if each is not None] == [
        row | {"timestamp": None} for row in wanted
    ]


@pytest.mark.parametrize("way", ["names", "back"])
def test_snapshots(nats_server, js, strange, monkeypatch, way):
    """`multiLast` has the last message of every subject, whatever it was stored with."""
    stream, rows = strange
    monkeypatch.setattr("pyspark_jetstream.read.snapshot.choose_way", lambda *_: way)
    for options in ({}, {"upToSequence": len(rows) - 3}):
        upto = options.get("upToSequence", len(rows))
        source = snapshot(
            nats_server, stream=stream, multiLast=f"{stream}.>", includeHeaders=True, **options
        )
        last = {row["subject"]: row for row in rows[:upto]}
        found = [{name: row[name] for name in rows[0]} for row in snapshot_rows(source)]

        assert sorted(found, key=lambda row: row["sequence"]) == sorted(
            last.values(), key=lambda row: row["sequence"]
        )


def test_claimed_and_shared_reads(js, strange, query):
    """Claims of a shared consumer are read, and what others claimed is left out."""
    stream, rows = strange
    claims = {1: [(2, 5), (9, 9)], 2: [(20, len(rows))]}
    read = ClaimedRead(0, stream, None, 0, 0, None, True, True, layout=Layout(()), claims={}).of(
        claims
    )
    mine = [row for row in rows if 2 <= row["sequence"] <= 5 or row["sequence"] == 9]
    assert of(read.batches(js.client)) == mine + rows[19:]

    # A header block of one byte makes nats-server 2.15.1 panic when a consumer delivers headers
    # only (consumer.go, convertToHeadersOnly), as the claims of shared consumers do.
    delete_messages(
        js, stream, [row["sequence"] for row in rows if row["subject"] == one_byte(stream)]
    )
    rows = [row for row in rows if row["subject"] != one_byte(stream)]
    one = query(stream=stream, includeHeaders=True, startingOffsets="earliest")
    one.drain()
    found = [{name: row[name] for name in rows[0]} for row in one.rows]
    assert sorted(found, key=lambda row: row["sequence"]) == rows


def test_runs_of_claims_come_in_batches_of_one_size(js, new_stream, monkeypatch):
    """Claims that are far apart are asked for run by run; a batch has as many rows as any other."""
    monkeypatch.setattr(claimedread, "MAX_BATCH_ROWS", 3)
    stream = new_stream()
    hpub(js, [(f"{stream}.a".encode(), b"NATS/1.0\r\n\r\n", b"x")] * 901)
    read = ClaimedRead(0, stream, None, 0, 0, None, False, True, layout=Layout(()), claims={})
    read = read.of({1: tuple((sequence, sequence) for sequence in range(1, 902, 100))})
    batches = list(read.batches(js.client))

    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]
    assert [s for batch in batches for s in batch["sequence"].to_pylist()] == [*range(1, 902, 100)]


def one_byte(stream):
    return f"{stream}.odd.{BLOCKS.index(b'N')}"


def test_what_is_asked_of_streams(js, strange):
    """Counts and positions are the server's, not those that were stored."""
    stream, rows = strange
    found = js.next_messages([(stream, {"seq": row["sequence"]}) for row in rows])
    assert [(each.sequence, each.subject.decode()) for each in found] == [
        (row["sequence"], row["subject"]) for row in rows
    ]
    whole = js.messages(stream, [{"seq": row["sequence"]} for row in rows])
    assert [bool(each.headers) for each in whole] == [bool(row["headers"]) for row in rows]


@pytest.mark.parametrize("code", [503, 10008, 10039])
def test_a_payload_is_no_answer_of_the_server(js, new_stream, caplog, code):
    """What is stored may look like an error; it is a message."""
    stream = new_stream()
    said = json.dumps({"error": {"code": 503, "err_code": code}}).encode()
    js.client.request(f"{stream}.A", said, b"NATS/1.0 503 xyz\r\n\r\n")
    with caplog.at_level(logging.WARNING):
        (found,) = js.next_messages([(stream, {"seq": 1, "next_by_subj": ">"})])

    assert (found.sequence, found.subject.decode()) == (1, f"{stream}.A")
    assert "waited for" not in caplog.text


@pytest.mark.parametrize("headers", [b"", b"NATS/1.0\r\nA: 1\r\n\r\n"], ids=["bare", "headers"])
def test_subjects_with_blanks(js, new_stream, headers):
    """Subjects with blanks are read as they are; direct get gives a CR as a blank."""
    stream = new_stream()
    hpub(js, [(b"%b.%b" % (stream.encode(), each), headers, each) for each in SUBJECTS])
    subjects = [f"{stream}.{each.decode()}" for each in SUBJECTS]
    sent = [each.replace("\r", " ").strip(" ") for each in subjects] if headers else subjects

    assert [row["subject"] for row in consumed(js, stream, len(SUBJECTS))] == subjects
    found = got(js, stream, 0, len(SUBJECTS))
    assert [(row["subject"], row["data"]) for row in found] == list(
        zip(sent, SUBJECTS, strict=True)
    )


def test_a_status_of_the_server_is_one(js, new_stream):
    """What the server itself says is still understood: an empty stream, the end of a batch."""
    stream = new_stream()
    assert js.next_messages([(stream, {"seq": 1})]) == [None]
    hpub(js, [(f"{stream}.a".encode(), ODD["status"], b"x")])
    reply = js.client.request(f"{js.prefix}.DIRECT.GET.{stream}", b'{"seq":1}')
    assert wire.status_of(reply.headers)[0] == 503, "or the tests above test nothing"
    assert got(js, stream, 0, 1)[0]["data"] == b"x"
